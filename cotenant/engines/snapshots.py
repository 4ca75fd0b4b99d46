"""An engine's cluster as a snapshot for Decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from cotenant.engines.job_tag import JobTag
from cotenant.engines.records import EngineGpu, EngineJob, EnginePhase, EngineState
from cotenant.v1 import resources_pb2, scheduling_pb2

_SHARES: Final[Mapping[str, resources_pb2.ShareMode.ValueType]] = MappingProxyType(
    {
        "never": resources_pb2.SHARE_MODE_NEVER,
        "safe": resources_pb2.SHARE_MODE_SAFE,
        "any": resources_pb2.SHARE_MODE_ANY,
    }
)


def make_snapshot(state: EngineState, pending: Iterable[EngineJob], *, now_ms: int) -> scheduling_pb2.Snapshot:
    """Return a snapshot in which some jobs wait.

    Args:
        state: Everything else; jobs that hold GPUs run, those of which we know nothing do not share.
        pending: The jobs to decide about.
        now_ms: Time of the reading.
    """
    made = scheduling_pb2.Snapshot(now_ms=now_ms)
    for node in state.nodes:
        row = made.nodes.add(
            node_id=node.node_id,
            cpu_cores=max(node.cpu_cores, 0.0),
            host_memory_bytes=max(node.host_memory_bytes, 0),
            schedulable=node.is_usable,
            queues=node.queues,
        )
        for gpu in node.gpus:
            row.gpus.add(
                gpu_id=gpu.gpu_id,
                device=gpu.device,
                memory_bytes=gpu.memory_bytes,
                healthy=True,
                sharing=resources_pb2.DeviceSharing.ValueType(gpu.sharing),
            )
    gpus = state.gpus
    for job in state.jobs:
        if job.phase in (EnginePhase.RUNNING, EnginePhase.PLACED, EnginePhase.INTERRUPTED) and job.held_slots:
            _add_running(made, job, gpus, now_ms)
    for job in pending:
        made.pending.add(job=_job_message(job), submitted_at_ms=job.submitted_at_ms, not_before_ms=job.not_before_ms)
    return made


def _add_running(made: scheduling_pb2.Snapshot, job: EngineJob, gpus: Mapping[str, EngineGpu], now_ms: int) -> None:
    started_at_ms = job.started_at_ms or now_ms
    row = made.running.add(
        job=_job_message(job),
        attempt=1,
        submitted_at_ms=job.submitted_at_ms,
        started_at_ms=started_at_ms,
        attained_gpu_ms=max(now_ms - started_at_ms, 0) * len(job.held_slots),
    )
    # A policy that orders by length would take a job that is nearly over to be as long as at first.
    row.steps_done = min(job.steps_done, row.job.steps_total)
    row.job.gpus = len(job.held_slots)
    for rank, gpu_id in enumerate(sorted(job.held_slots)):
        row.assignments.add(gpu_id=gpu_id, rank=rank)
    # No job can be added to a GPU that the engine has handed out as a whole.
    if not all(slots and gpus[gpu_id].slots for gpu_id, slots in job.held_slots.items() if gpu_id in gpus):
        row.job.share = resources_pb2.SHARE_MODE_NEVER


def _job_message(job: EngineJob) -> scheduling_pb2.SnapshotJob:
    tag = job.tag or JobTag(share="never")
    message = scheduling_pb2.SnapshotJob(
        job_id=job.job_id,
        tenant=job.tenant,
        job_key=tag.job_key,
        graph_sha256=tag.graph_sha256,
        gpus=job.gpus,
        global_batch_size=tag.global_batch_size,
        steps_total=tag.steps_total,
        share=_SHARES[tag.share],
        max_slowdown_ratio=tag.max_slowdown_ratio,
        cpu_cores=job.cpu_cores,
        host_memory_bytes=job.host_memory_bytes,
        # No engine moves a job within a minute as a trial may ask.
        no_trial=True,
        # Nor does one tell a script in how many passes to make a step.
        takes_whole_batch=True,
        queue=job.queues[0] if len(job.queues) == 1 else "",
        allowed_node_ids=job.allowed_node_ids,
        excluded_node_ids=job.excluded_node_ids,
        allowed_devices=job.allowed_devices,
        array_id=job.array_id,
        array_running_max=job.array_running_max,
        stated_memory_bytes=tag.memory_bytes,
        stated_utilization_ratio=tag.utilization_ratio,
        stated_slowdown_ratio=tag.slowdown_ratio,
        stated_step_ms=tag.step_ms,
    )
    if tag.graph_sha256 and tag.global_batch_size:
        message.settings.global_batch_size = tag.global_batch_size
    return message
