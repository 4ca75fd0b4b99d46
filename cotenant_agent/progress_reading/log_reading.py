"""Reading the two rotating files of a job's output as one stream, also while they rotate."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.keeper.rotating_log import CUT_SUFFIX
from cotenant_agent.ranks.rank_plan import log_name
from cotenant_agent.ranks.spec_records import read_launched_ranks, read_log_name, read_ranks, read_servers
from cotenant_agent.storage.durable_files import read_json
from cotenant_agent.storage.state_directory import AttemptDirectory

CHUNK_BYTES = 64 * 1024
CUT_NOTE = (
    b"[cotenant: what was printed before this is not kept; a log has two files of --log-limit-bytes of the agent]\n"
)


class LogReader:
    """A position in the output of one attempt."""

    def __init__(self, directory: AttemptDirectory, tail_bytes: int = 0, name: str = "") -> None:
        """Start at the oldest byte that is kept, or `tail_bytes` before the end (0 = all).

        Args:
            directory: Of the attempt.
            tail_bytes: How much of the end is read; 0 = all.
            name: Of one rank's log; empty = that of the job's first process.
        """
        self._files = directory.log_files(name)
        self._file: BinaryIO | None = None
        self._is_from_start = tail_bytes <= 0
        self._skip_bytes = max(0, _kept_bytes(self._files) - tail_bytes) if tail_bytes > 0 else 0

    def read(self) -> bytes:
        """The next bytes, at most 64 KiB; empty when there are none now. Of a log that was cut the first say so."""
        if self._is_from_start:
            self._is_from_start = False
            if self._is_cut():
                return CUT_NOTE
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

    def _is_cut(self) -> bool:
        return any(path.with_name(path.name + CUT_SUFFIX).exists() for path in self._files)

    def _following(self) -> Path | None:
        """The file after the present one; the oldest one at the beginning; None at the newest."""
        files = [path for path in self._files if path.exists()]
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


def find_rank_log(directory: AttemptDirectory, rank: int, server: int | None = None) -> str:
    """Name of the file of one rank's output, or of one parameter server's.

    Raises:
        CommandRefusedError: The attempt has no such rank or server here.
    """
    spec = read_json(directory.spec) or {}
    if server is not None:
        return _find_server_log(directory, spec, server)
    ranks, launched = read_ranks(spec), read_launched_ranks(spec)
    if rank in launched:
        return log_name(0)
    ranks = ranks or tuple(launched)
    if rank in (ranks or (0,)):
        return log_name(rank, first_rank=min(ranks, default=0))
    found = f"the ranks {min(ranks)} to {max(ranks)}" if ranks else "one process, and no ranks"
    raise CommandRefusedError("NO_SUCH_RANK", f"{directory.path.name} has {found} on this node, not rank {rank}")


def _find_server_log(directory: AttemptDirectory, spec: dict[str, object], server: int) -> str:
    servers = read_servers(spec)
    if server in servers:
        return read_log_name(spec, servers[server])
    found = f"the parameter servers {min(servers)} to {max(servers)}" if servers else "no parameter servers"
    raise CommandRefusedError("NO_SUCH_RANK", f"{directory.path.name} has {found} on this node, not server {server}")


def read_tail(directory: AttemptDirectory, size_bytes: int, name: str = "") -> bytes:
    """The last bytes of an attempt's output, or of one of its ranks'."""
    reader = LogReader(directory, size_bytes, name)
    content = b""
    try:
        while part := reader.read():
            content = (content + part)[-size_bytes:]
    finally:
        reader.close()
    return content


def _kept_bytes(files: Iterable[Path]) -> int:
    return sum(_size_bytes(path) for path in files)


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


@contextlib.contextmanager
def open_quietly(path: Path) -> Iterator[int]:
    """Yield a descriptor for reading; -1 where there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
