"""What the shim writes down when the disk will not take it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from cotenant_agent import shim


def test_the_exit_record_is_written_once_the_disk_takes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A folder in the place of the temporary file refuses every write, as a full disk does.
    obstacle = tmp_path / ".exit.json.shim"
    obstacle.mkdir()
    with pytest.raises(OSError, match="directory"):
        shim.write_record("exit.json", {"return_code": 0})
    relief = threading.Timer(0.2, obstacle.rmdir)
    relief.start()
    shim.write_record_at_last("exit.json", {"return_code": 0})
    relief.join()
    assert json.loads((tmp_path / "exit.json").read_text()) == {"return_code": 0}
