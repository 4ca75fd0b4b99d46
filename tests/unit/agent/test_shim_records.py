"""What the shim writes down when the disk will not take it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cotenant_agent.keeper import rotating_log, shim_records
from cotenant_agent.storage.durable_files import keep_room

# A file may grow to one page here, so that the kernel takes the beginning of a longer one and refuses the rest.
WRITE_TOO_MUCH = """
import importlib.util, resource, signal, sys
found = importlib.util.spec_from_file_location("shim_records", sys.argv[1])
shim_records = importlib.util.module_from_spec(found)
found.loader.exec_module(shim_records)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    shim_records.write_record("exit.json", {"return_code": 0, "log_tail": "x" * 8192})
except OSError:
    print("refused")
"""


def test_the_exit_record_is_written_once_the_disk_takes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A folder in the place of the temporary file refuses every write, as a full disk does.
    obstacle = tmp_path / ".exit.json.shim"
    obstacle.mkdir()
    with pytest.raises(OSError, match="directory"):
        shim_records.write_record("exit.json", {"return_code": 0})
    relief = threading.Timer(0.2, obstacle.rmdir)
    relief.start()
    shim_records.write_record_at_last("exit.json", {"return_code": 0})
    relief.join()
    assert json.loads((tmp_path / "exit.json").read_text()) == {"return_code": 0}


def test_the_end_is_written_on_a_full_disk_in_the_room_that_was_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep_room(tmp_path / "exit.json")
    (tmp_path / ".exit.json.shim").symlink_to("/dev/full")
    shim_records.write_record("exit.json", {"return_code": 0, "log_tail": "x" * 8192})
    assert json.loads((tmp_path / "exit.json").read_text()) == {"return_code": 0, "log_tail": "x" * 8192}
    with pytest.raises(OSError, match="No space"):
        shim_records.write_record("exit.json", {"return_code": 1})
    assert json.loads((tmp_path / "exit.json").read_text())["return_code"] == 0


def test_a_refused_record_holds_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".exit.json.shim").symlink_to("/dev/full")
    for _ in range(10):
        with pytest.raises(OSError, match="No space"):
            shim_records.write_record("exit.json", {"return_code": 0})
    # Others of this process come and go with what earlier tests left to be collected: only these count.
    assert [opened for opened in _opened_files() if opened == "/dev/full"] == []


def test_half_a_record_is_no_record(tmp_path: Path) -> None:
    program = [sys.executable, "-c", WRITE_TOO_MUCH, str(shim_records.__file__)]
    assert subprocess.run(program, cwd=tmp_path, check=True, capture_output=True, text=True).stdout == "refused\n"
    assert not (tmp_path / "exit.json").exists()


def test_output_that_finds_no_new_file_is_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    obstacle = tmp_path / "out.log.1"
    (obstacle / "within").mkdir(parents=True)
    log = rotating_log.RotatingLog(10)
    log.write(b"0123456789abc")
    assert ((tmp_path / "out.log").read_bytes(), log.dropped_bytes, log.tail) == (b"0123456789", 3, b"0123456789abc")
    (obstacle / "within").rmdir()
    obstacle.rmdir()
    log.write(b"def")
    assert ((tmp_path / "out.log").read_bytes(), obstacle.read_bytes()) == (b"def", b"0123456789")


def _opened_files() -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found
