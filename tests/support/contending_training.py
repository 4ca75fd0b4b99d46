"""A training that others in its folder slow down: `python contending_training.py STEPS STEP_MS WEIGHT`.

A step takes so long times the weights of all such trainings that live, as if they took turns on one device. It sleeps
meanwhile: what else the machine does changes little, whereas trainings that kept a core busy would look the faster
together, the more others use that core.
"""

from __future__ import annotations

import fcntl
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from cotenant import job

SUFFIX = ".weight"


def main(steps_total: int, step_ms: int, weight: int) -> None:
    """Steps to the end; its file is locked for as long as it lives, however it ends."""
    # Jobs have process ids of their own, so that two may have the same.
    with NamedTemporaryFile("w", dir=".", suffix=SUFFIX) as own_file:
        own_file.write(str(weight))
        own_file.flush()
        fcntl.flock(own_file, fcntl.LOCK_EX)
        for step in range(1, steps_total + 1):
            time.sleep(living_weight() * step_ms / 1000)
            job.report(step, loss=1.0 / step)
            if job.should_stop():
                job.leave()


def living_weight() -> int:
    """Returns the sum of the weights of all trainings of this folder that live."""
    return sum(weight_of(file) for file in Path().glob(f"*{SUFFIX}"))


def weight_of(file: Path) -> int:
    """Returns the weight of the process whose file this is; 0 = it has ended."""
    with suppress(FileNotFoundError), file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(opened.read())
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
