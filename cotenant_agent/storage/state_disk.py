"""Whether the disk of the state folder takes what a launch writes; while it does not, this node is given no new job."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

FULL_BYTES: Final = 1 << 20
"""With less left no job starts: its files take a few hundred KiB before it prints anything."""
ROOMY_BYTES: Final = 2 << 20
"""With so much left jobs start again; between the two it stays as it was, so that it does not flicker."""

_log = logging.getLogger(__name__)


def free_bytes(folder: Path) -> int:
    """Return what the disk of a folder takes from this user yet, bytes; 0 where no file can be made any more.

    Raises:
        OSError: The folder cannot be asked, or nothing may be written there.
    """
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if disk.f_files and not disk.f_ffree:
        return 0
    return disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)


class StateDisk:
    """Watches the disk of one folder.

    Args:
        folder: The agent's state.
        measure: Returns what is left of its disk, bytes; raises OSError; None = asks the system.
    """

    def __init__(self, folder: Path, measure: Callable[[Path], int] | None = None) -> None:
        self._folder = folder
        self._measure = measure or free_bytes
        self._is_full = False

    def fault(self) -> str:
        """Return why no job may start here now, with the remedy; empty = nothing is wrong with the disk."""
        try:
            left_bytes = self._measure(self._folder)
        except OSError as error:
            return f"nothing starts here, since {self._folder} takes nothing: {error.strerror}; check the disk"
        was_full, self._is_full = self._is_full, left_bytes < (ROOMY_BYTES if self._is_full else FULL_BYTES)
        remedy = f"make room below {self._folder}, or start the agent with a --state-dir on another disk"
        if self._is_full and not was_full:
            _log.error("state_disk_full", extra={"left_bytes": left_bytes, "remedy": remedy})
        elif was_full and not self._is_full:
            _log.info("state_disk_has_room", extra={"left_bytes": left_bytes})
        return f"the disk of its state is full, so nothing starts here; {remedy}" if self._is_full else ""
