"""Files of the Pollux family for tests: the public ones, and a toy of one application that can be computed by hand."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from cotenant_simulator.pollux_rules.applications import Application, read_applications
from cotenant_simulator.pollux_rules.cluster import ClusterShape
from cotenant_simulator.pollux_rules.simulation import simulate
from cotenant_simulator.pollux_rules.workload import read_workload
from tests.support.shared_data import shared_data

PolicyRun = tuple[str, str, str]
"""Policy, load and workload."""


def family_folder() -> Path:
    """The public files; skips the test where they are absent."""
    return shared_data("traces/pollux")


def applications() -> dict[str, Application]:
    """The public applications, read once."""
    return _applications_in(family_folder() / "profiles")


@cache
def _applications_in(profiles: Path) -> dict[str, Application]:
    return read_applications(profiles)


def reference_times(file: str) -> dict[PolicyRun, dict[str, int]]:
    """Completion times by run and job, seconds; those of rounds of a minute."""
    found: dict[PolicyRun, dict[str, int]] = {}
    with (family_folder() / file).open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row.get("round_s", "60") == "60":
                of_run = found.setdefault((row["policy"], row["load"], row["workload"]), {})
                of_run[row["job_id"]] = int(row["jct_s"])
    return found


def simulated_times(run: PolicyRun) -> dict[str, int]:
    """Completion times of one run by job under our rules, seconds."""
    policy, load, workload = run
    path = family_folder() / "workloads" / f"load-{load}" / f"{workload}.csv"
    jobs = simulate(read_workload(path, applications()), policy, ClusterShape(16, 4))
    return {job.job_id: (job.finished_s or 0) - job.submit_s for job in jobs}


def times_of(found: dict[str, object]) -> dict[str, int]:
    """Completion times in a document of `cotenant simulate`, seconds."""
    rows = found["jobs"]
    assert isinstance(rows, list)
    return {row["job_id"]: row["jct_s"] for row in rows}


TOY = {
    "applications.csv": [
        "application,init_batch_size,max_batch_size,min_local_batch_size,max_local_batch_size,epochs_table_used,"
        "max_gpus_by_batch,forced_max_gpus",
        "toy,10,40,5,20,2,8,",
    ],
    "validation.csv": [
        "application,batch_size,epoch,progress,iteration,metric,grad_sqr,grad_var",
        "toy,10,1,50,50,0.1,1,0",
        "toy,10,2,100,100,0.2,1,0",
        "toy,40,1,50,50,0.1,1,0",
        "toy,40,2,100,100,0.2,1,0",
    ],
    "placements.csv": [
        "application,placement,local_batch_size,step_time_s,sync_time_s",
        *(f"toy,{shape},{samples},2.0,0.5" for shape in ("1", "2", "11", "12", "22") for samples in (5, 20)),
    ],
    "unmeasured.csv": [
        "application,num_nodes,num_gpus,local_batch_size,step_time_s,sync_time_s",
        "toy,5,5,5,2.0,0.5",
    ],
}
"""Every step takes 2 s and gains 1 (no gradient noise), an epoch is 50 steps, and there are two epochs."""


def write_toy(folder: Path, **changes: list[str]) -> Path:
    """Write the toy's profiles; `changes` replace the lines of a file by its stem."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in TOY.items():
        content = changes.get(name.removesuffix(".csv"), lines)
        (folder / name).write_text("\n".join(content) + "\n", encoding="utf-8")
    return folder


def write_workload(path: Path, *rows: str) -> Path:
    """Write a workload of rows `job_id,submit_time_s,application,num_gpus,batch_size`."""
    path.write_text("\n".join(["job_id,submit_time_s,application,num_gpus,batch_size", *rows]) + "\n", encoding="utf-8")
    return path
