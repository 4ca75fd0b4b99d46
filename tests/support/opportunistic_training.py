"""A journalled training that says what it has allocated: more while a file `<job>.peak` is in its journal directory.

Run as a job: `python opportunistic_training.py JOURNAL_DIRECTORY STEPS STEP_MS`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cotenant import job
from tests.support import journalled_training

HELD_BYTES = 300 << 20
PEAK_BYTES = 1_300 << 20


def main(journal_directory: Path, steps_total: int, step_ms: int) -> None:
    """Train, and tell of memory that is not really taken."""
    peak = peak_file(journal_directory, os.environ["COTENANT_JOB_ID"])
    job.watch_memory(lambda: PEAK_BYTES if peak.exists() else HELD_BYTES)
    journalled_training.main(journal_directory, steps_total, step_ms)


def peak_file(journal_directory: Path, job_id: str) -> Path:
    """Return what a test creates for the time of a job's peak."""
    return journal_directory / f"{job_id}.peak"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
