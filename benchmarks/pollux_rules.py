"""The Pollux family under its own rules: `python -m benchmarks.pollux_rules` prints JSON.

Needs the public workloads (COTENANT_SHARED_DATA). Says how many published runs come out equal for every job, how far
our Pollux is from the published averages, and what whole processes cost: CPU seconds of `cotenant simulate` with all
that it starts, best of five. The peer's figures are those of the artifact's engine, measured where ours were.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cotenant_simulator.pollux_rules.entry_point import run_pollux_rules

REPEATS = 5
VARIABLE = "COTENANT_SHARED_DATA"
COMMANDS = {
    "cotenant_simulate": (str(Path(sys.executable).with_name("cotenant")), "simulate"),
    "program_alone": (sys.executable, "-m", "cotenant_simulator", "simulate"),
}


def children_cpu_s(command: Sequence[str]) -> float:
    """CPU time of a process and of all that it waits for, seconds; it must print a run in which jobs finished."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert json.loads(printed)["policies"][0]["jobs_finished"] > 0
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def process_cpu_s(name: str, workload: Path, policy: str) -> list[float]:
    """CPU seconds of five runs."""
    flags = ("--engine-rules", "pollux", "--policies", policy, "--cluster", "16x4", "-o", "json")
    command = (*COMMANDS[name], str(workload), *flags)
    return [children_cpu_s(command) for _ in range(REPEATS)]


def simulated_times(folder: Path, policy: str, load: str, workload: str) -> dict[str, int]:
    """Completion times by job, seconds."""
    path = folder / "workloads" / f"load-{load}" / f"{workload}.csv"
    rows = run_pollux_rules(path, folder / "profiles", policy)["jobs"]
    assert isinstance(rows, list)
    return {row["job_id"]: row["jct_s"] for row in rows}


def equality(folder: Path) -> dict[str, object]:
    """Published runs of Tiresias and Optimus, and how many of them come out equal for every job."""
    published: dict[tuple[str, str, str], dict[str, int]] = {}
    with (folder / "published" / "job_jct.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["policy"] != "pollux":
                run = (row["policy"], row["load"], row["workload"])
                published.setdefault(run, {})[row["job_id"]] = int(row["jct_s"])
    equal = sum(simulated_times(folder, *run) == times for run, times in published.items())
    return {"runs": len(published), "jobs": sum(map(len, published.values())), "equal_runs": equal}


def pollux_averages(folder: Path) -> dict[str, object]:
    """Our average completion time over the published one, less 1, by run."""
    with (folder / "published" / "avg_jct.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["policy"] == "pollux"]
    differences = {}
    for row in rows:
        times = simulated_times(folder, "pollux", row["load"], row["workload"])
        ratio = sum(times.values()) / len(times) / float(row["avg_jct_s"])
        differences[f"{row['load']}/{row['workload']}"] = round(ratio - 1, 4)
    worst = max(differences.values(), key=abs)
    mean = sum(differences.values()) / len(differences)
    return {"difference_ratio": differences, "mean_ratio": round(mean, 4), "largest_ratio": worst}


def main() -> dict[str, object]:
    """Measures everything; skipped with a sentence where the data is not at hand."""
    root = os.environ.get(VARIABLE, "")
    folder = Path(root, "traces", "pollux")
    if not root or not folder.exists():
        return {"skipped": f"{VARIABLE} does not name a folder with traces/pollux"}
    large, middle = (folder / "workloads" / f"load-{load}" / "workload-6.csv" for load in ("1.5", "1.0"))
    runs = {
        **{
            f"{name}_{policy}_240_jobs": (name, large, policy)
            for name in COMMANDS
            for policy in ("tiresias", "optimus")
        },
        "cotenant_simulate_pollux_160_jobs": ("cotenant_simulate", middle, "pollux"),
    }
    spent_s = {name: process_cpu_s(*run) for name, run in runs.items()}
    return {
        "unit": "CPU seconds, best of 5",
        "processes_s": {name: min(times) for name, times in spent_s.items()},
        "processes_runs_s": spent_s,
        "target": {"240_jobs_s": 0.5, "pollux_160_jobs_s": 60, "pollux_difference_ratio": 0.03},
        "peer": {"240_jobs_s": [21, 51], "pollux_160_jobs_s": [547, 1_350]},
        "published": equality(folder),
        "pollux": pollux_averages(folder),
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
