"""What `cotenant observe` says of jobs that cotenant did not start, against what they say of themselves.

    python -m benchmarks.observe_accuracy [--seconds 75]

Two jobs on the core of a stand-in device, each a process group of its own that prints its steps into a file: one alone
for some time, then both. Each notes when its steps ended; the errors are those of the step times and of the slowdown
over the same time. Other processes of the machine may use the core meanwhile: that slows both accounts alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from cotenant_agent.devices.import_baseline import NO_BASELINE
from cotenant_agent.devices.standin_inventory import StandinInventory
from cotenant_agent.observing.foreign_jobs import ForeignJob, ForeignJobs
from cotenant_agent.observing.observer import ObservedWindow, Observer
from cotenant_agent.processes import LinuxProcesses
from cotenant_agent.system_clock import steady_ns
from tests.support.interruptions import unwind_when_ended

CORE = 0
_JOB = """
import os, sys, time
os.sched_setaffinity(0, {core})
work, ends = int(sys.argv[2]), open(sys.argv[1], "w", buffering=1)
step = 0
while True:
    total = sum(number * number for number in range(work))
    step += 1
    print(f"step {{step}} loss {{total % 7}}", flush=True)
    ends.write(f"{{time.monotonic_ns()}}\\n")
"""


def main(seconds: float = 75.0) -> dict[str, object]:
    """Return the windows with both accounts, and the largest errors as ratios."""
    with tempfile.TemporaryDirectory() as name:
        return _compare(Path(name), seconds)


def _compare(folder: Path, seconds: float) -> dict[str, object]:
    inventory = StandinInventory(
        node_id="observed", cores=[CORE], memory_bytes=2**31, baseline=NO_BASELINE, processes=LinuxProcesses()
    )
    jobs: dict[str, subprocess.Popen[bytes]] = {}

    def find(users: Mapping[str, frozenset[int]]) -> Iterable[ForeignJob]:
        own = {f"group/{job.pid}" for job in jobs.values()}
        return [job for job in ForeignJobs().find(users) if job.job_id in own]

    observer = Observer(inventory, find, campaign="collected_00000000", make_id=lambda: os.urandom(16).hex())
    windows: list[tuple[int, ObservedWindow]] = []
    try:
        for name, work in (("a", 200_000), ("b", 350_000)):
            jobs[name] = _start(folder, name, work)
            _observe(observer, seconds, windows)
    finally:
        for job in jobs.values():
            job.kill()
            job.wait()
    windows += [(steady_ns(), one) for one in observer.close(steady_ns())]
    return _errors(folder, {f"group/{job.pid}": name for name, job in jobs.items()}, windows)


def _start(folder: Path, name: str, work: int) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        script = [sys.executable, "-c", _JOB.format(core={CORE}), str(folder / f"{name}.ends"), str(work)]
        return subprocess.Popen(script, stdout=log, start_new_session=True)


def _observe(observer: Observer, seconds: float, windows: list[tuple[int, ObservedWindow]]) -> None:
    end_ns = steady_ns() + int(seconds * 1e9)
    while steady_ns() < end_ns:
        windows += [(steady_ns(), one) for one in observer.beat(steady_ns())]
        time.sleep(2)


def _errors(folder: Path, names: Mapping[str, str], windows: list[tuple[int, ObservedWindow]]) -> dict[str, object]:
    ends = {name: [int(line) for line in (folder / f"{name}.ends").read_text().split()] for name in names.values()}
    rows: list[dict[str, object]] = []
    solo_own_ms = 0.0
    for ended_ns, one in windows:
        own_ms = _own_step_ms(ends[names[one.job_id]], ended_ns, one.window.window_ms)
        row = {"job": names[one.job_id], "window_s": one.window.window_ms / 1_000, "is_alone": not one.others}
        row |= {"step_ms": round(one.step_ms, 2), "own_step_ms": round(own_ms, 2)}
        row["step_error_ratio"] = round(one.step_ms / own_ms - 1, 4)
        if not one.others:
            solo_own_ms = own_ms
        elif one.slowdown_ratio is not None and solo_own_ms:
            own_ratio = own_ms / solo_own_ms - 1
            row |= {"slowdown_ratio": round(one.slowdown_ratio, 4), "own_slowdown_ratio": round(own_ratio, 4)}
            row["slowdown_error_ratio"] = round(one.slowdown_ratio / own_ratio - 1, 4)
        rows.append(row)
    return {"windows": rows, "foreign_load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1)}


def _own_step_ms(ends_ns: list[int], ended_ns: int, window_ms: int) -> float:
    """Return the mean step of a job by its own clock, over the time that a window took before its end."""
    inside = [at_ns for at_ns in ends_ns if ended_ns - (window_ms + 2_000) * 1_000_000 <= at_ns <= ended_ns]
    return (inside[-1] - inside[0]) / 1e6 / max(len(inside) - 1, 1)


if __name__ == "__main__":
    unwind_when_ended()
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=75.0)
    print(json.dumps(main(parser.parse_args().seconds), indent=2))
