"""What a full disk kept out of the log of a job: its newest end, in room that was taken when the job was launched.

The agent reads there how far the job is, and which error ended it. Standard library only: the shim writes it.
"""

from __future__ import annotations

import contextlib
import os

_SUFFIX = ".lost"
KEPT_BYTES = 8192
_COUNT_BYTES = 20
_ROOM_BYTES = KEPT_BYTES + 2 * _COUNT_BYTES


def keep_room(log: str) -> None:
    """Take the space now, next to the log."""
    with open(f"{log}{_SUFFIX}", "wb") as file:  # noqa: PTH123 (pathlib would double the size of the shim)
        file.write(bytes(_ROOM_BYTES))


def note_lost(log: str, lost_bytes: int, end: bytes) -> None:
    """Replace what is kept; where no room was taken nothing is.

    Args:
        log: Name of the log.
        lost_bytes: How much was lost by now.
        end: The last of it.
    """
    count = b"%0*d" % (_COUNT_BYTES, lost_bytes)
    # The count on both sides shows a reader that it has read one note, not parts of two.
    note = count + end[-KEPT_BYTES:].rjust(KEPT_BYTES, b"\0") + count
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{log}{_SUFFIX}", os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.pwrite(descriptor, note, 0)
        finally:
            os.close(descriptor)


def read_lost(log: str, known_bytes: int) -> tuple[int, bytes]:
    """Return how much was lost by now, and what of it is new.

    Args:
        log: Name of the log.
        known_bytes: How much had been lost at the last reading; what is kept no more begins with a line of its own.
    """
    note = _read(f"{log}{_SUFFIX}")
    first, end, second = note[:_COUNT_BYTES], note[_COUNT_BYTES:-_COUNT_BYTES], note[-_COUNT_BYTES:]
    if len(note) != _ROOM_BYTES or first != second or not first.isdigit() or int(first) <= known_bytes:
        return known_bytes, b""
    new_bytes = int(first) - known_bytes
    if new_bytes <= KEPT_BYTES:
        return int(first), end[KEPT_BYTES - new_bytes :]
    return int(first), b"\n" + end.replace(b"\r", b"\n").partition(b"\n")[2]


def _read(name: str) -> bytes:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _ROOM_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
