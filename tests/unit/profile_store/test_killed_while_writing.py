"""A writer that is killed leaves every call whole or nothing of it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from predictor_service.profile_store.store import ProfileStore

ROOT = Path(__file__).resolve().parents[3]
CALL = 7
WRITER = f"""
import sys
from pathlib import Path
from predictor_service.profile_store.store import ProfileStore
from tests.support.measurement_windows import NOW_MS, job, window
store = ProfileStore(Path(sys.argv[1]))
number = 0
while True:
    store.add([window(number + index, job=job(number + index)) for index in range({CALL})], NOW_MS)
    number += {CALL}
    print(number, flush=True)
"""


@pytest.mark.parametrize("calls", [1, 4, 11])
def test_a_killed_writer_leaves_whole_calls(tmp_path: Path, calls: int) -> None:
    path = tmp_path / "profiles.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    reported = 0
    for _ in range(calls):
        reported = int(writer.stdout.readline())
    writer.kill()
    writer.communicate()
    with closing(ProfileStore(path)) as store:
        stored = store.read()
    assert len(stored) >= reported
    assert len(stored) % CALL == 0
    assert all(item.window is not None and not item.fault for item in stored)
