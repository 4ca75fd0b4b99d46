"""What submitting an array of 1,000 tasks costs: `python -m benchmarks.array_submission`, as JSON.

A scheduler of its own, without nodes, takes five arrays one after the other by `cotenant submit --array 1-1000`: the
last one joins a queue of 4,000. CPU seconds of the command, its start included, and of the scheduler until two seconds
after the command has its answer.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.scheduler_load import Scheduler

ARRAYS = 5
TASKS = 1_000
_SETTLES_S = 2.0


def main() -> dict[str, object]:
    """Submit the arrays and return the cost of each."""
    with tempfile.TemporaryDirectory(prefix="cotenant-arrays-") as name, Scheduler(folder=Path(name)) as scheduler:
        rows = [_submit(scheduler, Path(name)) for _ in range(ARRAYS)]
    return {
        "tasks": TASKS,
        "cpu_s": min(row["command_cpu_s"] + row["scheduler_cpu_s"] for row in rows),
        "arrays": rows,
    }


def _submit(scheduler: Scheduler, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "cotenant", "submit", "--scheduler", scheduler.address, "--array", f"1-{TASKS}"]
    command += ["--force", "--no-capture", "--steps", "100", "--", "python", "train.py"]
    before_s, own_s = scheduler.cpu_s(), _children_cpu_s()
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run(command, check=True, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    own_s = _children_cpu_s() - own_s
    time.sleep(_SETTLES_S)
    return {"command_cpu_s": round(own_s, 2), "scheduler_cpu_s": round(scheduler.cpu_s() - before_s, 2)}


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
