"""A training that writes every step into a file of its own, for judging from outside: FILE STEPS STEP_MS.

Each attempt appends lines in single writes: `start FENCE`, `step FENCE STEP`, `end FENCE`, and `twice FENCE` when
another process of the same job lives (shown by a lock that the kernel frees with its process).
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from cotenant import job

CHECKPOINT_STEPS = 5


def train(path: Path, steps_total: int, step_ms: int) -> None:
    """Steps from the newest checkpoint to the end."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    fence = os.environ["COTENANT_FENCE"]

    def note(line: str) -> None:
        os.write(file, f"{line}\n".encode())

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(f"twice {fence}")
    first = job.resume_step()
    note(f"start {fence}")
    for step in range(first + 1, steps_total + 1):
        time.sleep(step_ms / 1000)
        note(f"step {fence} {step}")
        job.report(step, loss=1.0 / step)
        stop = job.should_stop()
        if stop or job.should_checkpoint() or step % CHECKPOINT_STEPS == 0:
            written = job.checkpoint_directory() / f"step-{step}"
            written.write_text(str(step))
            job.checkpointed(written, step)
        if stop:
            job.leave()
    note(f"end {fence}")


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
