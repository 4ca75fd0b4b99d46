"""What is dear is made once in a run of tests, by whichever process asks first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.shared_folders import made_once, share_folders


def make(folder: Path) -> None:
    (folder / "made_by").write_text(str(os.getpid()))


def test_processes_that_share_folders_make_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_TEST_RUN", "")
    share_folders()
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            made_once("models", make)
            os._exit(0)
        pids.append(pid)
    assert {os.waitpid(pid, 0)[1] for pid in pids} == {0}
    folder = made_once("models", lambda _: pytest.fail("made again"))
    assert int((folder / "made_by").read_text()) in pids


def test_what_was_left_half_made_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_TEST_RUN", str(tmp_path))

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        made_once("models", fail)
    assert {path.name for path in made_once("models", make).iterdir()} == {"made_by", "is_full"}


def test_a_process_without_others_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTENANT_TEST_RUN", raising=False)
    assert made_once("models", make) != made_once("models", make)
