"""Parts of an attempt's spec.json as records of the agent."""

from __future__ import annotations

from dataclasses import asdict

from cotenant.job_settings import JobSettingsError, read_stored_settings, stored_settings
from cotenant_agent.ranks.rank_plan import log_name
from cotenant_agent.records import MeasuredJob
from cotenant_agent.storage.durable_files import read_integer, read_text


def stored_job(job: MeasuredJob) -> dict[str, object]:
    """Return the recordable facts of a job as the attempt's spec.json keeps it."""
    return {**asdict(job), "settings": stored_settings(job.settings)}


def _read_processes(spec: dict[str, object]) -> list[dict[str, object]]:
    found = spec.get("ranks")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def read_ranks(spec: dict[str, object]) -> tuple[int, ...]:
    """The ranks of a gang on this node, those of its parameter servers last; empty = the job is one process."""
    return tuple(read_integer(one, "rank") for one in _read_processes(spec))


def read_servers(spec: dict[str, object]) -> dict[int, int]:
    """The ranks of its parameter servers on this node, by their numbers."""
    found = [one for one in _read_processes(spec) if "server" in one]
    return {read_integer(one, "server"): read_integer(one, "rank") for one in found}


def read_log_name(spec: dict[str, object], rank: int | None) -> str:
    """Name of the file of one rank's output; of the only process where there are no ranks."""
    named = {read_integer(one, "rank"): read_text(one, "log") for one in _read_processes(spec)}
    return named.get(rank or 0) or log_name(rank or 0, first_rank=min(named, default=0))


def read_watched_ranks(spec: dict[str, object]) -> tuple[int, ...]:
    """The ranks whose own time for a step is told to the scheduler, where it wants to know."""
    servers = read_servers(spec).values()
    return tuple(rank for rank in read_ranks(spec) if rank not in servers) if spec.get("watches_ranks") is True else ()


def process_name(spec: dict[str, object], rank: int) -> str:
    """One process of a gang in words."""
    server = next((number for number, of_server in read_servers(spec).items() if of_server == rank), None)
    world_size = read_integer(spec, "world_size", len(read_ranks(spec)))
    return f"rank {rank} of {world_size}" if server is None else f"server {server}"


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
