"""Folders that one process of a run of tests fills, and that all others of the run use as they are."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

_VARIABLE: Final = "COTENANT_TEST_RUN"
_IS_FULL: Final = "is_full"


def share_folders() -> None:
    """Let every process that this one starts from now on look for folders in one place, until this one ends."""
    os.environ[_VARIABLE] = _own_root()


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder that is made by whoever of the run asks first; nothing may change it.

    Args:
        name: Of what is in it.
        make: Fills the folder, which is there and empty; others wait for its end.
    """
    root = Path(os.environ.get(_VARIABLE) or _own_root())
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _IS_FULL).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / _IS_FULL).touch()
    return folder


def _own_root() -> str:
    root, owner = mkdtemp(prefix="cotenant-test-shared-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a fork that ends leaves it
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return root
