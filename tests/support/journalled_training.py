"""A training without torch that writes down every step it does: the witness of the kill -9 tests.

Run as a job: `python journalled_training.py JOURNAL_DIRECTORY STEPS STEP_MS`. A test that writes another number into
`<job>.step_ms` changes its pace, as a co-located job would. Each attempt appends lines to
`<job>.journal`: `start FENCE FIRST_STEP`, `step FENCE STEP`, `end FENCE STEP`, and `twice FENCE` when another attempt
of the same job is running (shown by a lock that the kernel frees with the process).
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from typing import IO

from cotenant import job

CHECKPOINT_EVERY_STEPS = 5


def main(journal_directory: Path, steps_total: int, step_ms: int) -> None:
    """Counts to `steps_total`, checkpointing as a training would."""
    name = os.environ["COTENANT_JOB_ID"]
    fence = os.environ["COTENANT_FENCE"]
    journal_path, lock_path = (journal_directory / f"{name}.{kind}" for kind in ("journal", "lock"))
    with journal_path.open("a", buffering=1) as journal, lock_path.open("w") as lock:
        _note_second_life(lock, journal, fence)
        first = job.resume_step()
        journal.write(f"start {fence} {first}\n")
        for step in range(first + 1, steps_total + 1):
            time.sleep(paced_step_ms(journal_directory, name, step_ms) / 1000)
            journal.write(f"step {fence} {step}\n")
            job.report(step, loss=1.0 / step)
            if job.should_stop() or job.should_checkpoint() or step % CHECKPOINT_EVERY_STEPS == 0:
                _checkpoint(step)
            if job.should_stop():
                job.leave()
        journal.write(f"end {fence} {steps_total}\n")


def paced_step_ms(directory: Path, job_id: str, usual_ms: int) -> int:
    """What a step takes now, ms: a test may say so in a file."""
    try:
        return int((directory / f"{job_id}.step_ms").read_text())
    except (FileNotFoundError, ValueError):  # there is none, or it is just being written
        return usual_ms


def _note_second_life(lock: IO[str], journal: IO[str], fence: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        journal.write(f"twice {fence}\n")


def _checkpoint(step: int) -> None:
    path = job.checkpoint_directory() / f"step-{step}"
    path.write_text(str(step))
    job.checkpointed(path, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
