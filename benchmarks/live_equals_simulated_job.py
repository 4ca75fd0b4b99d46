"""A training of the benchmark `live_equals_simulated`: STEPS CPU_MS WAIT_MS MEMORY_MIB JOURNAL FORM.

A step waits for input and then computes, or waits as long where FORM is `wait`; ranks of a gang divide the computing,
and meet after every step at rank 0's socket, where they also agree whether to stop. Rank 0 writes `ATTEMPT STEP NS`
(since 1970) into the journal after each step, and the checkpoints.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cotenant import job

CHECKPOINT_STEPS = 50
_MEETING_S = 30.0


class Gang:
    """The other ranks, as rank 0 and the others see them."""

    def __init__(self) -> None:
        self.size = job.world_size() if "RANK" in os.environ else 1
        self._peers: list[socket.socket] = []
        if self.size > 1 and job.rank() == 0:
            self._peers = _peers_of(self.size)
        elif self.size > 1:
            self._peers = [_first_rank()]

    def agree(self, *, stop: bool) -> bool:
        """Wait for all ranks; whether any of them wants to stop."""
        if self.size > 1 and job.rank() == 0:
            votes = [peer.recv(1) for peer in self._peers]
            stop = stop or b"s" in votes
            for peer in self._peers:
                peer.sendall(b"s" if stop else b"g")
        elif self.size > 1:
            self._peers[0].sendall(b"s" if stop else b"g")
            stop = self._peers[0].recv(1) != b"g"
        return stop


def _peers_of(size: int) -> list[socket.socket]:
    with socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as server:
        server.settimeout(_MEETING_S)
        peers = [server.accept()[0] for _ in range(size - 1)]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _first_rank() -> socket.socket:
    until_s = time.monotonic() + _MEETING_S
    while True:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)
        else:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer


def _save(step: int) -> None:
    if job.rank() > 0:
        job.checkpointed("", step)
        return
    path = job.checkpoint_directory() / f"step-{step}.txt"
    path.write_text(str(step), encoding="utf-8")
    job.checkpointed(path, step)


def _compute(duration_s: float) -> None:
    until_s = time.process_time() + duration_s
    while time.process_time() < until_s:
        pass


def run_training(
    steps: int, cpu_ms: float, wait_ms: float, memory_mib: int, *, journal_path: str, work: Callable[[float], None]
) -> None:
    """Step from the newest checkpoint to the end."""
    held = bytearray(memory_mib * 2**20)
    held[::4096] = b"\1" * len(held[::4096])
    first, gang, attempt = job.resume_step() + 1, Gang(), os.environ.get("COTENANT_ATTEMPT", "0")
    path = journal_path if job.rank() == 0 else os.devnull
    with Path(path).open("a", buffering=1, encoding="utf-8") as journal:
        for step in range(first, steps + 1):
            time.sleep(wait_ms / 1_000)
            work(cpu_ms / gang.size / 1_000)
            stop = gang.agree(stop=job.should_stop())
            journal.write(f"{attempt} {step} {time.time_ns()}\n")
            job.report(step, loss=1.0 / step)
            if stop or step % CHECKPOINT_STEPS == 0:
                _save(step)
            if stop:
                job.leave()


if __name__ == "__main__":
    run_training(
        int(sys.argv[1]),
        float(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
        journal_path=sys.argv[5],
        work=_compute if sys.argv[6] == "compute" else time.sleep,
    )
