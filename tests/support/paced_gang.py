"""A gang's training with a pause after each step, so that it can be reshaped: `paced_gang.py MODULE STEP_MS ...`.

Another number of milliseconds in the file `<job>.step_ms` of its working directory changes the pause.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant import job
from tests.support.journalled_training import paced_step_ms


def main(module: str, step_ms: int, flags: list[str]) -> None:
    """Run the command line of a training, which reports each step by `job.report`."""
    reported: Callable[..., None] = job.report
    folder, job_id = Path.cwd(), os.environ["COTENANT_JOB_ID"]

    def report(done: int, **values: Any) -> None:
        reported(done, **values)
        time.sleep(paced_step_ms(folder, job_id, step_ms) / 1000)

    job.report = report  # type: ignore[assignment]
    importlib.import_module(module).main(flags)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
