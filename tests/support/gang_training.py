"""A gang without torch whose ranks do every step together: the witness of tests that kill a part of it.

Run as a job with ranks: `python gang_training.py JOURNAL_DIRECTORY STEPS STEP_MS [sharded]`. The ranks meet at
MASTER_ADDR and MASTER_PORT and tell each other after every step what they sum, and whether one was asked to stop. Each
rank appends to `<job>.<rank>.journal`: `start FENCE FIRST_STEP SUM`, `step FENCE STEP`, `end FENCE SUM`, and `twice
FENCE` when another attempt's same rank still runs (shown by a lock that the kernel frees with the process).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from cotenant import job, rank_times
from tests.support.journalled_training import paced_step_ms

CHECKPOINT_EVERY_STEPS = 5
_MEETING_S = 240.0


class Collective:
    """All-reduce over plain connections: everybody to rank 0 and back."""

    def __init__(self) -> None:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._streams = self._accept(address) if job.rank() == 0 else [_connect(address)]

    def add(self, values: Sequence[int]) -> list[int]:
        """The sum of each value over all ranks; OSError where one of them is gone."""
        if job.rank() > 0:
            _write(self._streams[0], values)
            return _read(self._streams[0])
        found = [list(values), *(_read(stream) for stream in self._streams)]
        sums = [sum(column) for column in zip(*found, strict=True)]
        for stream in self._streams:
            _write(stream, sums)
        return sums

    def _accept(self, address: tuple[str, int]) -> list[IO[bytes]]:
        with socket.create_server(address) as listener:
            listener.settimeout(_MEETING_S)
            return [cast("IO[bytes]", listener.accept()[0].makefile("rwb")) for _ in range(job.world_size() - 1)]


def _connect(address: tuple[str, int]) -> IO[bytes]:
    until = time.monotonic() + _MEETING_S
    while True:
        try:
            return cast("IO[bytes]", socket.create_connection(address).makefile("rwb"))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _write(stream: IO[bytes], values: Sequence[int]) -> None:
    stream.write(json.dumps(values).encode() + b"\n")
    stream.flush()


def _read(stream: IO[bytes]) -> list[int]:
    line = stream.readline()
    if not line:
        raise ConnectionError("Connection closed by peer")
    return list(json.loads(line))


def main(directory: Path, steps_total: int, step_ms: int, *, is_sharded: bool) -> None:
    """Sum 1 for every step and every sample of it, all ranks together."""
    name, fence = f"{os.environ['COTENANT_JOB_ID']}.{job.rank()}", os.environ["COTENANT_FENCE"]
    with (
        (directory / f"{name}.journal").open("a", buffering=1) as journal,
        (directory / f"{name}.lock").open("w") as lock,
    ):
        _note_second_life(lock, journal, fence)
        first, total = job.resume_step(), _restore()
        collective = Collective()
        journal.write(f"start {fence} {first} {total}\n")
        for step in range(first + 1, steps_total + 1):
            time.sleep(paced_step_ms(directory, os.environ["COTENANT_JOB_ID"], step_ms) / 1000)
            # A rank that asks no more is told nothing more.
            is_due = job.should_stop() or job.should_checkpoint() or step % CHECKPOINT_EVERY_STEPS == 0
            with rank_times.waiting():
                added, stop, due = collective.add([job.rank() + 1, job.should_stop(), is_due])
            rank_times.step_done()
            total += added
            journal.write(f"step {fence} {step}\n")
            job.report(step, loss=1.0 / step)
            if due:
                _checkpoint(step, total, is_sharded=is_sharded)
            if stop:
                job.leave()
        journal.write(f"end {fence} {total}\n")


def _note_second_life(lock: IO[str], journal: IO[str], fence: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        journal.write(f"twice {fence}\n")


def _checkpoint(step: int, total: int, *, is_sharded: bool) -> None:
    """Rank 0 writes the sum, or every rank its part of it."""
    ranks = job.world_size() if is_sharded else 1
    if job.rank() < ranks:
        path = job.checkpoint_directory() / f"step-{step}.rank-{job.rank()}"
        path.write_text(str(total // ranks + (total % ranks if job.rank() == 0 else 0)))
        job.checkpointed(path, step, is_shard=is_sharded)


def _restore() -> int:
    folder = job.resume_directory()
    return (
        0 if folder is None else sum(int(path.read_text()) for path in folder.glob(f"step-{job.resume_step()}.rank-*"))
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), is_sharded="sharded" in sys.argv[4:])
