"""A training that keeps its core busy, whatever it is said to do: `python busy_training.py STEPS STEP_CPU_MS HELPERS`.

Each helper is a process that computes all the time; it ends when the training has ended.
"""

from __future__ import annotations

import os
import sys
import time

from cotenant import job


def main(steps_total: int, step_cpu_ms: int, helpers: int) -> None:
    """Computes for so much time of the processor at every step, so that all that share the core wait."""
    for _ in range(helpers):
        if os.fork() == 0:
            help_until_orphaned(os.getppid())
    for step in range(1, steps_total + 1):
        compute(step_cpu_ms / 1000)
        job.report(step, loss=1.0 / step)
        if job.should_stop():
            job.leave()


def help_until_orphaned(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        compute(0.01)
    os._exit(0)


def compute(cpu_s: float) -> None:
    until_s = time.process_time() + cpu_s
    while time.process_time() < until_s:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
