"""Snapshots of other clusters: contract to core, decisions back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, islice
from operator import attrgetter
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.job_specs import kept_settings, key_of
from scheduler_service.adapters.proto_enums import LEVEL_FROM_PROTO, SHARE_FROM_PROTO
from scheduler_service.core.cluster_view.capacity import opportunistic, reserved_bytes, resident_on, samples_per_gpu
from scheduler_service.core.cluster_view.view import PendingJob, Predictions, RunningJob
from scheduler_service.core.copied_record import make_records
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge
from scheduler_service.core.planning.placement_limits import NO_LIMITS, PlacementLimits
from scheduler_service.core.queue.queue_terms import NO_TERMS, QueueTerms
from scheduler_service.core.queue.tenants import TENANTS_MAX
from scheduler_service.core.records import (
    DEFAULT_MAX_SLOWDOWN_RATIO,
    Assignment,
    Gpu,
    JobPrediction,
    JobRequest,
    Level,
    MemoryPoint,
    MemoryTriple,
    TaskDemand,
)
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api import validation
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns
from scheduler_service.grpc_api.snapshots.snapshot_ranges import LISTS_OF_JOBS, PARTS_OF_JOBS

NODES_MAX = 100_000
GPUS_MAX = 100_000
JOBS_MAX = 100_000


def snapshot_violations(snapshot: scheduling_pb2.Snapshot) -> Iterator[FieldViolation]:
    """Check how much a snapshot holds; everything else is a matter of single rows (`snapshot_rows`)."""
    for name, count, most in (
        ("nodes", len(snapshot.nodes), NODES_MAX),
        ("nodes.gpus", sum(len(node.gpus) for node in snapshot.nodes), GPUS_MAX),
        ("pending", len(snapshot.pending), JOBS_MAX),
        ("running", len(snapshot.running), JOBS_MAX),
        ("tenants", len(snapshot.tenants), TENANTS_MAX),
    ):
        if count > most:
            yield FieldViolation(field=f"snapshot.{name}", description=f"must have at most {most:,} entries")


def explanation_violations(looks: int) -> Iterator[FieldViolation]:
    """Check that every policy can look at every GPU for every pending job, which are so many looks."""
    most = validation.EXPLAINED_LOOKS_MAX
    if looks > most:
        description = f"looks at {looks:,} pairs of a job and a GPU, at most {most:,}; ask about fewer pending jobs"
        yield FieldViolation(field="explain", description=description)


def states_figures(job: scheduling_pb2.SnapshotJob) -> bool:
    """Say whether the caller states any figure of a job itself."""
    return any(figures_are_stated(RowColumns([job])))


def figures_are_stated(jobs: RowColumns) -> Sequence[bool]:
    """Say the same of many jobs."""
    return jobs.stating_any(_NUMBERS, _RATIOS)


def stated_limits(jobs: RowColumns) -> list[PlacementLimits | None]:
    """Read where jobs may run; None = anywhere."""
    are_limited = jobs.stating_any(_LIMITING)
    return [_limits(job) if is_limited else None for job, is_limited in zip(jobs.rows, are_limited, strict=True)]


def _limits(job: scheduling_pb2.SnapshotJob) -> PlacementLimits | None:
    limits = PlacementLimits(
        queue=job.queue,
        node_ids=frozenset(job.allowed_node_ids),
        excluded_node_ids=frozenset(job.excluded_node_ids),
        devices=frozenset(job.allowed_devices),
        anti_affinity_group=job.anti_affinity_group,
    )
    return None if limits == NO_LIMITS else limits


def key_of_job(message: scheduling_pb2.SnapshotJob) -> str:
    """Return the key of a job; with a graph but without a key it is the one that we would give it."""
    return message.job_key or key_of(message.graph_sha256, kept_settings(message)) or _stated_key(message)


def request(message: scheduling_pb2.SnapshotJob) -> JobRequest:
    """Read what a job asks for."""
    gpus = message.gpus or 1
    return JobRequest(
        job_id=message.job_id,
        key=key_of_job(message),
        tenant=message.tenant,
        gpus=gpus,
        allowed_gpus=tuple(sorted(set(message.allowed_gpus or (gpus,)))),
        global_batch_size=message.global_batch_size or message.settings.global_batch_size or gpus,
        steps_total=message.steps_total,
        share=SHARE_FROM_PROTO[message.share],
        max_slowdown_ratio=message.max_slowdown_ratio or DEFAULT_MAX_SLOWDOWN_RATIO,
        cpu_cores=message.cpu_cores,
        host_memory_bytes=message.host_memory_bytes,
        memory_request_bytes=message.stated_memory_bytes,
        memory_floor_bytes=message.memory_floor_bytes,
        migration_cost_ms=message.migration_cost_ms,
        no_trial=message.no_trial,
        releases_memory=message.releases_memory,
        takes_whole_batch=message.takes_whole_batch,
        worker_demand=_demand(message.worker_demand) if message.HasField("worker_demand") else None,
        server_demand=_demand(message.server_demand) if message.HasField("server_demand") else None,
        terms=QueueTerms(**dict(zip(_TERM_NAMES, terms, strict=True))) if any(terms := _TERMS(message)) else NO_TERMS,
    )


def requests(rows: RowColumns) -> list[JobRequest]:
    """Read what jobs ask for, column by column; those that have more than single fields are read one by one."""
    gpus = [count or 1 for count in rows["gpus"]]
    made = make_records(
        JobRequest,
        len(rows),
        job_id=rows["job_id"],
        key=[key or key_of_job(row) for key, row in zip(rows["job_key"], rows.rows, strict=True)],
        tenant=rows["tenant"],
        gpus=gpus,
        allowed_gpus=[(count,) for count in gpus],
        global_batch_size=[size or count for size, count in zip(rows["global_batch_size"], gpus, strict=True)],
        steps_total=rows["steps_total"],
        share=[*map(SHARE_FROM_PROTO.__getitem__, rows["share"])],
        max_slowdown_ratio=[ratio or DEFAULT_MAX_SLOWDOWN_RATIO for ratio in rows["max_slowdown_ratio"]],
        cpu_cores=rows["cpu_cores"],
        host_memory_bytes=rows["host_memory_bytes"],
        memory_request_bytes=rows["stated_memory_bytes"],
        memory_floor_bytes=rows["memory_floor_bytes"],
        migration_cost_ms=rows["migration_cost_ms"],
        no_trial=rows["no_trial"],
        releases_memory=rows["releases_memory"],
        takes_whole_batch=rows["takes_whole_batch"],
    )
    for place in compress(range(len(rows)), rows.stating_any((*LISTS_OF_JOBS, *_TERM_NAMES), PARTS_OF_JOBS)):
        made[place] = request(rows.rows[place])
    return made


_NUMBERS: Final = ("stated_memory_bytes", "stated_step_ms")
_RATIOS: Final = ("stated_utilization_ratio", "stated_slowdown_ratio")
_LIMITING: Final = ("queue", "allowed_node_ids", "excluded_node_ids", "allowed_devices", "anti_affinity_group")
_TERM_NAMES: Final = ("priority", "time_limit_ms", "array_id", "array_index", "array_running_max")
_TERMS: Final = attrgetter(*_TERM_NAMES)


def _stated_key(message: scheduling_pb2.SnapshotJob) -> str:
    """Return the key of a job about which nothing but its own figures is known: jobs that state the same are equal."""
    if not states_figures(message):
        return ""
    figures = scheduling_pb2.SnapshotJob()
    figures.CopyFrom(message)
    for field, _ in message.ListFields():
        if field.name not in _FIGURES:
            figures.ClearField(field.name)  # type: ignore[arg-type]
    return f"stated/{hashlib.sha256(figures.SerializeToString(deterministic=True)).hexdigest()}"


_FIGURES: Final = frozenset(
    {
        "stated_memory_bytes",
        "stated_utilization_ratio",
        "stated_slowdown_ratio",
        "stated_step_ms",
        "gpus",
        "allowed_gpus",
        "global_batch_size",
        "settings",
    }
)
"""All of a row that a prediction from its own figures follows from."""


def _demand(message: scheduling_pb2.TaskDemand) -> TaskDemand:
    return TaskDemand(
        cpu_cores=message.cpu_cores,
        host_memory_bytes=message.host_memory_bytes,
        gpus=message.gpus,
        network_bytes_per_s=message.network_bytes_per_s,
    )


def pending_jobs(rows: RowColumns, asked: Sequence[JobRequest]) -> list[PendingJob]:
    """Read waiting jobs.

    Args:
        rows: The jobs.
        asked: What is read of them already.
    """
    names = ("submitted_at_ms", "not_before_ms", "steps_done", "attained_gpu_ms", "preemptions")
    return make_records(PendingJob, len(rows), request=asked, **{name: rows[name] for name in names})


class RunningRows:
    """Reads the running jobs of one snapshot; what a job would occupy is found once for all jobs that are alike.

    Args:
        now_ms: Of the snapshot, which is as new as what it says of a job.
        gpus: All its GPUs by id.
        predictions: What is known of the jobs.
        tau_ratio: How often peaks of memory on one GPU may coincide; 0 = a job holds its reservation always.
    """

    def __init__(
        self, *, now_ms: int, gpus: Mapping[str, Gpu], predictions: Predictions, tau_ratio: float = 0.0
    ) -> None:
        self._now_ms, self._gpus, self._predictions, self._tau_ratio = now_ms, gpus, predictions, tau_ratio
        self._reserved: dict[object, tuple[int, MemorySurge | None]] = {}

    def read(self, rows: RowColumns, asked: Sequence[JobRequest]) -> list[RunningJob]:
        """Read running jobs; one without a micro-batch takes its share of the batch at once.

        Args:
            rows: The jobs.
            asked: What is read of them already.
        """
        assignments = _assignments(rows)
        sizes = [
            size or samples_per_gpu(request, len(parts))
            for size, request, parts in zip(rows["micro_batch_size"], asked, assignments, strict=True)
        ]
        reserved = [
            self._reservation(request, size, self._gpus[parts[0].gpu_id])
            for request, size, parts in zip(asked, sizes, assignments, strict=True)
        ]
        observed = [
            ratio if is_stated else None
            for ratio, is_stated in zip(
                rows["observed_slowdown_ratio"], rows.has("observed_slowdown_ratio"), strict=True
            )
        ]
        return make_records(
            RunningJob,
            len(rows),
            request=asked,
            assignments=assignments,
            micro_batch_size=sizes,
            memory_reserved_bytes=[reserved_bytes for reserved_bytes, _ in reserved],
            memory_surge=[surge for _, surge in reserved],
            observed_slowdown_ratio=observed,
            accrued_at_ms=[self._now_ms] * len(rows),
            **{name: rows[name] for name in _AS_STATED},
        )

    def _reservation(self, asked: JobRequest, micro_batch_size: int, gpu: Gpu) -> tuple[int, MemorySurge | None]:
        """Return what a job occupies of its first GPU: what we would have reserved there, else all of it."""
        alike = _OF_RESERVATION(asked), micro_batch_size, gpu.device, gpu.memory_bytes
        known = self._reserved.get(alike)
        if known is None:
            known = self._reserved[alike] = self._found_reservation(asked, micro_batch_size, gpu)
        return known

    def _found_reservation(self, asked: JobRequest, micro_batch_size: int, gpu: Gpu) -> tuple[int, MemorySurge | None]:
        prediction = self._predictions.job(asked.key, gpu.device)
        if self._tau_ratio <= 0:
            needed_bytes = reserved_bytes(asked, prediction, micro_batch_size, gpu)
            return gpu.memory_bytes if needed_bytes is None else needed_bytes, None
        there = resident_on(asked, prediction, micro_batch_size, gpu)
        there = there and opportunistic(there, prediction, gpu, self._tau_ratio)
        return (gpu.memory_bytes, None) if there is None else (there.memory_reserved_bytes, there.memory_surge)


def _assignments(rows: RowColumns) -> list[tuple[Assignment, ...]]:
    parts = rows.parts("assignments")
    made = iter(make_records(Assignment, len(parts), gpu_id=parts["gpu_id"], rank=parts["rank"]))
    return [tuple(islice(made, held)) for held in map(len, rows["assignments"])]


_AS_STATED: Final = ("attempt", "submitted_at_ms", "started_at_ms", "steps_done", "attained_gpu_ms", "preemptions")
"""Fields of a running job that its row has under the same name."""
_OF_RESERVATION: Final = attrgetter("key", "share", "memory_request_bytes", "memory_floor_bytes", "releases_memory")
"""All of a request that `resident_on` and `opportunistic` read."""


def job_predictions(rows: RowColumns) -> list[JobPrediction]:
    """Read what is known of keys on device types; what was observed was measured alone."""
    levels = [*map(LEVEL_FROM_PROTO.__getitem__, rows["level"])]
    memory, step_times = _memory_points(rows), rows["step_times"]
    activity = zip(rows["sm_activity_ratio"], rows.has("sm_activity_ratio"), strict=True)
    return make_records(
        JobPrediction,
        len(rows),
        key=rows["job_key"],
        device=rows["device"],
        utilization_ratio=rows["utilization_ratio"],
        sm_activity_ratio=[ratio if is_stated else None for ratio, is_stated in activity],
        memory=memory,
        step_ms=[{(one.gpus, one.micro_batch_size): one.step_ms for one in of if not one.workers} for of in step_times],
        task_step_ms=[{(one.workers, one.servers): one.step_ms for one in of if one.workers} for of in step_times],
        memory_triple=[*map(_memory_triple, rows.rows, rows.has("memory_triple"))],
        level=levels,
        in_domain=rows["in_domain"],
        measured_micro_batch_sizes=[
            tuple(sorted(points)) if level is Level.OBSERVED else ()
            for points, level in zip(memory, levels, strict=True)
        ],
    )


def _memory_points(rows: RowColumns) -> list[dict[int, MemoryPoint]]:
    points = rows.parts("micro_batches")
    expected_bytes, upper_bytes = points["memory_bytes"], points["memory_bytes_upper_99"]
    upper_bytes = [*map(max, upper_bytes, expected_bytes)]
    made = make_records(MemoryPoint, len(points), memory_bytes=expected_bytes, memory_bytes_upper_99=upper_bytes)
    by_size = zip(points["micro_batch_size"], made, strict=True)
    return [dict(islice(by_size, count)) for count in map(len, rows["micro_batches"])]


def _memory_triple(message: scheduling_pb2.SnapshotJobPrediction, is_stated: bool) -> MemoryTriple | None:
    if not is_stated:
        return None
    triple = message.memory_triple
    return MemoryTriple(
        gamma_ratio=triple.gamma_ratio, delta_ratio=triple.delta_ratio, high_state_ratio=triple.high_state_ratio
    )
