"""Files that only their owner reads, whatever the folder and the umask allow: jobs carry environment variables."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

_log = logging.getLogger(__name__)

PRIVATE_MODE = 0o600


def create_private(path: Path, *, flags: int = os.O_CREAT | os.O_EXCL) -> int:
    """Open a file for reading and writing with mode 0600 and return its descriptor; a new one has it from the start.

    Args:
        path: The file.
        flags: As of `os.open`; by default the file must be new.

    Raises:
        OSError: It cannot be opened, or is there against `flags`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, PRIVATE_MODE)
    try:
        _tighten(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: Path) -> None:
    """Remove the permissions of other users from an old file, if there is one; a refusal is logged."""
    try:
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & ~PRIVATE_MODE:
            path.chmod(PRIVATE_MODE)
    except OSError as error:
        _warn(path, error)


def _tighten(descriptor: int, path: Path) -> None:
    """Set the mode: an umask may have taken from it, an older version may have given more."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) == PRIVATE_MODE:
        return
    try:
        os.fchmod(descriptor, PRIVATE_MODE)
    except OSError as error:
        _warn(path, error)


def _warn(path: Path, error: OSError) -> None:
    _log.warning("state_file_readable_by_others", extra={"path": str(path), "reason": error.strerror})
