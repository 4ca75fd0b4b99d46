"""Reading the two rotating files of a job's output as one stream, also while they rotate."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from cotenant_agent.state_directory import AttemptDirectory

CHUNK_BYTES = 64 * 1024


class LogReader:
    """A position in the output of one attempt."""

    def __init__(self, directory: AttemptDirectory, tail_bytes: int = 0) -> None:
        """Start at the oldest byte that is kept, or `tail_bytes` before the end (0 = all)."""
        self._directory = directory
        self._file: BinaryIO | None = None
        self._skip_bytes = max(0, _kept_bytes(directory) - tail_bytes) if tail_bytes > 0 else 0

    def read(self) -> bytes:
        """The next bytes, at most 64 KiB; empty when there are none now."""
        while True:
            # Looked up before reading: a file that already has a successor is complete.
            following = self._following()
            content = b"" if self._file is None else self._file.read(CHUNK_BYTES)
            if content or following is None:
                return content
            self._go_on(following)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _following(self) -> Path | None:
        """The file after the present one; the oldest one at the beginning; None at the newest."""
        files = [path for path in (self._directory.older_log, self._directory.log) if path.exists()]
        if self._file is not None:
            # A rotated file keeps its identity; what stands behind it in the list is newer.
            files = files[next((index for index, path in enumerate(files) if _is_same(self._file, path)), -1) + 1 :]
        return files[0] if files else None

    def _go_on(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            following = path.open("rb")
            self.close()
            self._file = following
            self._skip(following)

    def _skip(self, file: BinaryIO) -> None:
        size_bytes = file.seek(0, 2)
        skipped_bytes = min(self._skip_bytes, size_bytes)
        self._skip_bytes -= skipped_bytes
        file.seek(skipped_bytes)


def read_tail(directory: AttemptDirectory, size_bytes: int) -> bytes:
    """The last bytes of an attempt's output."""
    reader = LogReader(directory, size_bytes)
    content = b""
    try:
        while part := reader.read():
            content = (content + part)[-size_bytes:]
    finally:
        reader.close()
    return content


def _kept_bytes(directory: AttemptDirectory) -> int:
    return sum(_size_bytes(path) for path in (directory.older_log, directory.log))


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_same(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
