"""One writer at a time for the lists of tokens and revoked keys, which commands read, lengthen and replace."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cotenant.errors import InputError
from cotenant.system_clock import steady_ms, wait_ms

LOCK_WAIT_MS: Final = 10_000
"""So long one command waits for another that writes the same list."""
_RETRY_MS: Final = 20


@contextmanager
def sole_writer(path: Path, *, flag: str) -> Iterator[None]:
    """Keeps other writers of a list out from before it is read until it is replaced.

    The lock is a file by the list, since the list itself becomes another file; the kernel frees it with its holder.

    Args:
        path: The list, which need not exist yet.
        flag: Of the command line, with which another list is named.

    Raises:
        InputError: The folder cannot be written, or another writer does not end.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise unwritable(path, error, flag=flag) from error
    try:
        _wait_for(descriptor, lock, flag)
        yield
    finally:
        os.close(descriptor)


def unwritable(path: Path, error: OSError, *, flag: str) -> InputError:
    """Returns the refusal of a list that cannot be written."""
    return InputError(f"cannot write {path}: {error.strerror}", remedy=f"name another {flag}")


def _wait_for(descriptor: int, lock: Path, flag: str) -> None:
    ends_at_ms = steady_ms() + LOCK_WAIT_MS
    while not _is_taken(descriptor, lock, flag):
        if steady_ms() >= ends_at_ms:
            remedy = f"end the other `cotenant certs` command, or name another {flag}"
            raise InputError(f"another command has held {lock} for {LOCK_WAIT_MS / 1_000:.0f} s", remedy=remedy)
        wait_ms(_RETRY_MS)


def _is_taken(descriptor: int, lock: Path, flag: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise unwritable(lock, error, flag=flag) from error
    return True
