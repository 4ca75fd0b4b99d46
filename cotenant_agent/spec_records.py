"""Parts of an attempt's spec.json as records of the agent."""

from __future__ import annotations

from dataclasses import asdict

from cotenant.job_settings import JobSettingsError, read_stored_settings, stored_settings
from cotenant_agent.durable_files import read_integer, read_text
from cotenant_agent.records import MeasuredJob


def stored_job(job: MeasuredJob) -> dict[str, object]:
    """Return the recordable facts of a job as the attempt's spec.json keeps it."""
    return {**asdict(job), "settings": stored_settings(job.settings)}


def read_ranks(spec: dict[str, object]) -> tuple[int, ...]:
    """The ranks of a gang on this node; empty = the job is one process."""
    found = spec.get("ranks")
    ranks = found if isinstance(found, list) else []
    return tuple(read_integer(rank, "rank") for rank in ranks if isinstance(rank, dict))


def read_launched_ranks(spec: dict[str, object]) -> range:
    """The ranks of a gang across nodes that one process of this node has started, as torchrun does; empty = none."""
    gpu_ids = spec.get("gpu_ids")
    if spec.get("is_part") is not True or read_ranks(spec) or not isinstance(gpu_ids, list):
        return range(0)
    first = read_integer(spec, "first_rank")
    return range(first, first + len(gpu_ids))


def read_measured_job(spec: dict[str, object]) -> MeasuredJob | None:
    """What may be recorded of a job; None = nothing, or what is written there cannot be."""
    record = spec.get("measured_job")
    if not isinstance(record, dict) or not isinstance(record.get("settings"), dict):
        return None
    try:
        settings = read_stored_settings(record["settings"]).checked()
    except JobSettingsError:
        return None
    return MeasuredJob(
        graph_sha256=read_text(record, "graph_sha256"),
        settings=settings,
        # Agents before 0.2 called it otherwise.
        micro_batch_size=read_integer(record, "micro_batch_size") or read_integer(record, "sub_batch"),
    )
