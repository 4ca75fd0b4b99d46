"""Whether the demo's intervals hold on stand-in cores of other speeds, as JSON.

Runs `cotenant demo` under a CPU quota: a third, two thirds and all of a core, for each of the two stand-in cores by
itself. All processes that are bound to a core share the core's control group (version 1 or 2, period 5 ms): they are
moved there within some 50 ms of their start. Services are bound to no core and run at full speed, as the host of a slow
device does. Needs the right to make control groups (root).

Figures: per speed and quantity the share of measured values inside the 90 % interval over all runs, the widest and the
median step interval (upper over lower), the duration of a run, mean JCT of sharing over exclusive, and the load
before, because others' work on the two cores counts as error here.

Usage: python -m benchmarks.demo_on_slow_cores [--runs 5] [--speeds 1 0.667 0.333]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.interruptions import unwind_when_ended

PERIOD_US: Final = 5_000
SPEEDS: Final = (1.0, 2 / 3, 1 / 3)
RUNS: Final = 5
_LOOK_S: Final = 0.05
"""Who looks takes time of the two cores as well: every 20 ms it was 11 % of one."""
_TIMEOUT_S: Final = 1_200
_ENDING_S_MAX: Final = 60
_MOUNT: Final = Path("/sys/fs/cgroup")
QUANTITIES: Final = ("memory_bytes", "utilization_ratio", "step_ms", "slowdown_ratio")


class QuotaUnavailableError(RuntimeError):
    """This account cannot make control groups with a quota."""


def main(runs: int = RUNS, speeds: Sequence[float] = SPEEDS) -> dict[str, Any]:
    """Run the demo at every speed; runs alternate between the speeds, so that the machine's moods hit all alike."""
    reports: dict[float, list[dict[str, Any]]] = {speed: [] for speed in speeds}
    for number in range(runs):
        for speed in speeds:
            sys.stderr.write(f"run {number + 1}/{runs} at {speed:.2f} of a core\n")
            reports[speed].append(_run_demo(speed))
    figures = {f"speed_{speed:.2f}": summarize(found) for speed, found in reports.items()}
    return {"period_us": PERIOD_US, "runs": runs, **figures}


def summarize(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return coverage and widths over the reports of one speed."""
    figures: dict[str, Any] = {}
    rows = [row for report in reports for row in report["comparisons"]]
    for quantity in QUANTITIES:
        inside = [row["inside"] for row in rows if row["quantity"] == quantity and row["inside"] is not None]
        figures[quantity] = {
            "held": sum(inside),
            "measured": len(inside),
            "coverage_ratio": sum(inside) / len(inside) if inside else None,
        }
    widths = sorted(row["upper"] / row["lower"] for row in rows if row["quantity"] == "step_ms" and row["lower"] > 0)
    if widths:
        figures["step_upper_over_lower"] = {"median": statistics.median(widths), "largest": widths[-1]}
    figures["missed"] = [
        {name: row[name] for name in ("job", "quantity", "predicted", "lower", "upper", "measured")}
        for row in rows
        if row["inside"] is False
    ]
    figures["run_s"] = [report["run_s"] for report in reports]
    figures["load_before"] = [report["load_before"] for report in reports]
    figures["calibrated"] = sum(bool(report["calibration"].get("calibrated")) for report in reports)
    figures["busy_ratio"] = [report["calibration"].get("busy_ratio") for report in reports]
    figures["shared_over_exclusive_jct"] = [
        report["shared"]["mean_jct_ms"] / report["exclusive"]["mean_jct_ms"]
        for report in reports
        if report["shared"] and report["exclusive"]
    ]
    return figures


def _run_demo(speed: float) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))[-2:]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from cotenant.cli.main import main; main()", "demo", "-o", "json"]
    begin_s = time.monotonic()
    with _slowed(cores, speed) as watch:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        watch(process.pid)
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        finally:
            process.terminate()  # of one that has ended nothing is left to end
            process.wait(timeout=_ENDING_S_MAX)
    report: dict[str, Any] = json.loads(output)
    return {**report, "run_s": round(time.monotonic() - begin_s, 1)}


@contextlib.contextmanager
def _slowed(cores: Sequence[int], speed: float) -> Iterator[Any]:
    """Yield a function that slows whatever of a process' descendants is bound to one of these cores."""
    stop = threading.Event()
    threads: list[threading.Thread] = []
    with contextlib.ExitStack() as stack:
        groups = {core: stack.enter_context(_group(f"cotenant-slow-{os.getpid()}-{core}", speed)) for core in cores}

        def watch(root: int) -> None:
            threads.append(threading.Thread(target=_move, args=(root, groups, stop), daemon=True))
            threads[-1].start()

        try:
            yield watch
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@contextlib.contextmanager
def _group(name: str, speed: float) -> Iterator[Path]:
    is_unified = (_MOUNT / "cgroup.controllers").exists()
    folder = _MOUNT / name if is_unified else _MOUNT / "cpu" / name
    quota_us = round(speed * PERIOD_US)
    try:
        folder.mkdir()
        if is_unified:
            (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
    except OSError as error:
        raise QuotaUnavailableError(f"no CPU quota can be set here: {error}") from error
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)


def _move(root: int, groups: Mapping[int, Path], stop: threading.Event) -> None:
    cores: dict[int, int] = {}
    while not stop.wait(_LOOK_S):
        for pid in _descendants(root):
            with contextlib.suppress(OSError):
                core, *others = os.sched_getaffinity(pid)
                # A process begins on the core of its parent and may change to another one.
                if not others and core in groups and cores.get(pid) != core:
                    (groups[core] / "cgroup.procs").write_text(str(pid))
                    cores[pid] = core


def _descendants(root: int) -> list[int]:
    """All living descendants; orphans of the demo are adopted by it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


if __name__ == "__main__":
    unwind_when_ended()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--speeds", type=float, nargs="+", default=list(SPEEDS))
    options = parser.parse_args()
    sys.stdout.write(json.dumps(main(options.runs, options.speeds), indent=2) + "\n")
