"""A training without a framework that steps at a given pace: `python paced_training.py STEPS STEP_MS`."""

from __future__ import annotations

import sys
import time

from cotenant import job


def main(steps_total: int, step_ms: int) -> None:
    """Steps to the end."""
    for step in range(1, steps_total + 1):
        time.sleep(step_ms / 1000)
        job.report(step, loss=1.0 / step)
        if job.should_stop():
            job.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
