"""A training without a framework whose loss falls as 2 / (1 + step / 100) + 0.05; it is told the ms of a step."""

from __future__ import annotations

import itertools
import sys
import time

from cotenant import job
from cotenant.target_loss import reached_target


def loss_after(step: int) -> float:
    """The loss after so many steps."""
    return 2 / (1 + step / 100) + 0.05


def main(step_ms: int) -> None:
    """Steps until the target is reached."""
    for step in itertools.count(1):
        time.sleep(step_ms / 1000)
        loss = loss_after(step)
        job.report(step, loss=loss)
        if job.should_stop():
            job.leave()
        if reached_target(loss):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
