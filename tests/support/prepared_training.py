"""A training that can be prepared: it builds for a while, waits until it may begin, and then is a journalled one.

Run as a job: `python prepared_training.py JOURNAL_DIRECTORY STEPS STEP_MS`. Each attempt appends `built FENCE` to the
journal when it is built; a test that writes a number into `build_ms` makes that take so long.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import journalled_training  # type: ignore[import-not-found] # it lies next to this program

from cotenant import job

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    slow = folder / "build_ms"
    time.sleep(int(slow.read_text()) / 1_000 if slow.exists() else 0.3)
    with (folder / f"{os.environ['COTENANT_JOB_ID']}.journal").open("a") as journal:
        journal.write(f"built {os.environ['COTENANT_FENCE']}\n")
    job.wait_for_go()
    journalled_training.main(folder, int(sys.argv[2]), int(sys.argv[3]))
