"""The jobs of a workload file of the Pollux family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant_simulator.pollux_rules.applications import Application
from cotenant_simulator.pollux_rules.csv_rows import read_lines, read_rows
from cotenant_simulator.pollux_rules.errors import WorkloadError

_COLUMNS = ("job_id", "submit_time_s", "application", "num_gpus", "batch_size")
_ARTIFACT_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
"""The same five under the names of the artifact's own files."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """One row: a job's request and its submission time.

    Attributes:
        job_id: Unique in the file.
        submit_s: Seconds from the start of the window.
        application: What it trains.
        gpus: GPUs that it asks for; policies that choose the count ignore them.
        batch: Samples per step; policies that choose it ignore it.
    """

    job_id: str
    submit_s: int
    application: Application
    gpus: int
    batch: int


def read_workload(path: Path, applications: Mapping[str, Application]) -> list[SubmittedJob]:
    """Read jobs in file order, which is the order of arrival.

    Args:
        path: A workload CSV, with our column names or the artifact's.
        applications: Those of the profiles.

    Raises:
        WorkloadError: The file is unreadable, empty, names a job twice or an unknown application, or has bad numbers.
    """
    names, _ = read_lines(path, WorkloadError)
    columns = _ARTIFACT_COLUMNS if set(_ARTIFACT_COLUMNS) <= set(names) else _COLUMNS
    jobs: dict[str, SubmittedJob] = {}
    for job_id, submit, name, gpus, batch in read_rows(path, columns, WorkloadError):
        application = applications.get(name)
        if application is None:
            known = ", ".join(sorted(applications))
            raise WorkloadError(f"{path}: job {job_id!r} trains {name!r}, but the profiles know {known} only")
        if job_id in jobs or not job_id:
            raise WorkloadError(f"{path}: job ids must be unique and not empty, but {job_id!r} is not")
        try:
            job = SubmittedJob(job_id, int(submit), application, int(gpus), int(batch))
        except ValueError as problem:
            raise WorkloadError(f"{path}: job {job_id!r} has something else than whole numbers: {problem}") from problem
        if job.submit_s < 0 or job.gpus < 1 or not 1 <= job.batch <= application.batch_max:
            raise WorkloadError(
                f"{path}: job {job_id!r} needs a submit time from 0, at least 1 GPU, and a batch size of 1 to "
                f"{application.batch_max}"
            )
        jobs[job_id] = job
    if not jobs:
        raise WorkloadError(f"{path} has no jobs")
    return list(jobs.values())
