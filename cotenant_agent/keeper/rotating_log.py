"""The bounded log of one process of a job, as the shim writes it; standard library only."""

from __future__ import annotations

import contextlib
import os
import select

from cotenant_agent.keeper.lost_output import KEPT_BYTES, note_lost
from cotenant_agent.system_clock import boot_ms

CUT_SUFFIX = ".cut"
"""Of an empty file beside a log whose beginning was dropped."""
_TAIL_BYTES = 8192
_PIPE_READ_BYTES = 65536
_PIPE_BYTES_MAX = 1 << 20
"""Of a pipe that a job has enlarged; other pipes hold a sixteenth."""
_DRAIN_MS = 1000


class RotatingLog:
    """Two files of at most `limit_bytes` each; a full disk loses output, but for its newest end, never the job."""

    def __init__(self, limit_bytes: int, name: str = "out.log") -> None:
        self._limit_bytes = limit_bytes
        self._name = name
        self._descriptor = self._open()
        self._size_bytes = os.fstat(self._descriptor).st_size
        self.dropped_bytes = 0
        self._dropped_end = b""
        self.tail = b""

    def write(self, output: bytes) -> None:
        """Append, rotating at the limit."""
        self.tail = (self.tail + output)[-_TAIL_BYTES:]
        while output:
            if self._size_bytes >= self._limit_bytes and not self._rotate():
                self._drop(output)
                return
            room = self._limit_bytes - self._size_bytes
            part, output = output[:room], output[room:]
            self._append(part)
            # Also what was lost: the next rotation gives the disk room.
            self._size_bytes += len(part)

    def _append(self, part: bytes) -> None:
        written = 0
        with contextlib.suppress(OSError):
            written = os.write(self._descriptor, part)
        if written < len(part):
            self._drop(part[written:])

    def _drop(self, output: bytes) -> None:
        self.dropped_bytes += len(output)
        self._dropped_end = (self._dropped_end + output)[-KEPT_BYTES:]
        note_lost(self._name, self.dropped_bytes, self._dropped_end)

    def _rotate(self) -> bool:
        """Go on in a new file; whether there is one."""
        try:
            # Absent where the last try has moved it and found no room for its successor.
            is_cut = os.path.exists(f"{self._name}.1")  # noqa: PTH110
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._name, f"{self._name}.1")  # noqa: PTH105
            if is_cut:
                self._note_cut()
            descriptor = self._open()
        except OSError:
            return False
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._size_bytes = 0
        return True

    def _note_cut(self) -> None:
        """Leave word for readers that the oldest output is gone; on a full disk there is none."""
        with contextlib.suppress(OSError):
            os.close(os.open(f"{self._name}{CUT_SUFFIX}", os.O_WRONLY | os.O_CREAT, 0o600))

    def _open(self) -> int:
        return os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def copy_output(output: int, log: RotatingLog) -> bool:
    """Move what has arrived into the log; False = nothing will arrive any more."""
    try:
        content = os.read(output, _PIPE_READ_BYTES)
    except BlockingIOError:
        return True
    log.write(content)
    return bool(content)


def drain_output(output: int, log: RotatingLog) -> None:
    """Move the rest of what an ended process has written, and for a second at most what others write at its end.

    What the pipe can hold is read in any case: this process may stand still for a second as well.
    """
    until_ms = boot_ms() + _DRAIN_MS
    reads_left = _PIPE_BYTES_MAX // _PIPE_READ_BYTES
    while (reads_left > 0 or boot_ms() < until_ms) and select.select([output], [], [], 0)[0]:
        if not copy_output(output, log):
            return
        reads_left -= 1
