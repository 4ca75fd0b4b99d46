"""Which numbers a snapshot may hold: nothing that is no number, no size below zero, nothing that no cluster has.

A policy reckons with whatever it is given; what it must not be given is refused here, for all policies alike.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import compress
from operator import methodcaller
from typing import Any, Final

from cotenant.array_terms import INDEX_MAX, TASKS_MAX
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.queue.queue_terms import DEVICES_MAX, PRIORITY_MAX
from scheduler_service.core.queue.tenants import GPUS_MAX, WEIGHT_MAX, WEIGHT_MIN
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api import validation
from scheduler_service.grpc_api.queue import queue_validation
from scheduler_service.grpc_api.snapshots.repeated_rows import repeats
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns

_TIME_MS_MAX: Final = 2**53
_COUNT_MAX: Final = 2**31 - 1
_CORES_MAX: Final = 100_000
_BYTES_PER_S_MAX: Final = 10**15
_STEP_MS_MIN, _STEP_MS_MAX = 1e-6, 1e12
_SLOWDOWN_MIN, _SLOWDOWN_MAX = -1, 10**6
_NAMED_MAX: Final = 20
_NAME_CHARACTERS_MAX: Final = 200

Range = tuple[str, float, float]
"""Field, least and most."""

_NODE: Final[tuple[Range, ...]] = (("cpu_cores", 0, _CORES_MAX), ("host_memory_bytes", 0, validation.BYTES_MAX))
_GPU: Final[tuple[Range, ...]] = (
    ("memory_bytes", 1, validation.BYTES_MAX),
    ("slowdown_ewma_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
)
_JOB: Final[tuple[Range, ...]] = (
    ("gpus", 0, validation.GPUS_MAX),
    ("global_batch_size", 0, validation.BATCH_MAX),
    ("steps_total", 0, validation.STEPS_MAX),
    ("max_slowdown_ratio", 0, validation.MAX_SLOWDOWN_RATIO_MAX),
    ("cpu_cores", 0, _CORES_MAX),
    ("host_memory_bytes", 0, validation.BYTES_MAX),
    ("memory_floor_bytes", 0, validation.BYTES_MAX),
    ("migration_cost_ms", 0, _TIME_MS_MAX),
    ("stated_memory_bytes", 0, validation.BYTES_MAX),
    ("stated_utilization_ratio", 0, 1),
    ("stated_slowdown_ratio", 0, _SLOWDOWN_MAX),
    ("stated_step_ms", 0, _STEP_MS_MAX),
    ("priority", -PRIORITY_MAX, PRIORITY_MAX),
    ("time_limit_ms", 0, _TIME_MS_MAX),
    ("array_index", 0, INDEX_MAX),
    ("array_running_max", 0, TASKS_MAX),
)
_TENANT: Final[tuple[Range, ...]] = (
    ("gpus_max", 0, GPUS_MAX),
    ("weight", 0, WEIGHT_MAX),
    ("used_gpu_ms", 0, _TIME_MS_MAX),
)
_DEMAND: Final[tuple[Range, ...]] = (
    ("cpu_cores", 0, _CORES_MAX),
    ("host_memory_bytes", 0, validation.BYTES_MAX),
    ("gpus", 0, validation.GPUS_MAX),
    ("network_bytes_per_s", 0, _BYTES_PER_S_MAX),
)
_PROGRESS: Final[tuple[Range, ...]] = (
    ("submitted_at_ms", 0, _TIME_MS_MAX),
    ("steps_done", 0, validation.STEPS_MAX),
    ("attained_gpu_ms", 0, _TIME_MS_MAX),
    ("preemptions", 0, _COUNT_MAX),
)
_PENDING: Final[tuple[Range, ...]] = (*_PROGRESS, ("not_before_ms", 0, _TIME_MS_MAX))
_RUNNING: Final[tuple[Range, ...]] = (
    *_PROGRESS,
    ("attempt", 0, _COUNT_MAX),
    ("micro_batch_size", 0, validation.BATCH_MAX),
    ("started_at_ms", 0, _TIME_MS_MAX),
    ("observed_slowdown_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
)
_JOB_PREDICTION: Final[tuple[Range, ...]] = (("utilization_ratio", 0, 1), ("sm_activity_ratio", 0, 1))
_MEMORY_POINT: Final[tuple[Range, ...]] = (
    ("micro_batch_size", 1, validation.BATCH_MAX),
    ("memory_bytes", 0, validation.BYTES_MAX),
    ("memory_bytes_upper_99", 0, validation.BYTES_MAX),
)
_STEP_POINT: Final[tuple[Range, ...]] = (
    ("gpus", 0, validation.GPUS_MAX),
    ("micro_batch_size", 0, validation.BATCH_MAX),
    ("workers", 0, validation.GPUS_MAX),
    ("servers", 0, validation.GPUS_MAX),
    ("step_ms", _STEP_MS_MIN, _STEP_MS_MAX),
)
_MEMORY_STATES: Final[tuple[Range, ...]] = (("gamma_ratio", 0, 1), ("delta_ratio", 0, 1), ("high_state_ratio", 0, 1))
PAIR_PREDICTION: Final[tuple[Range, ...]] = (
    ("micro_batch_size", 0, validation.BATCH_MAX),
    ("other_micro_batch_size", 0, validation.BATCH_MAX),
    ("slowdown_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
    ("slowdown_upper_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
)
"""Of what is predicted of a pair."""

_SHARES: Final = frozenset(resources_pb2.ShareMode.values())
_LEVELS: Final = frozenset(resources_pb2.EstimateLevel.values())


class _Ranges:
    """Whether all numbers of messages lie in their ranges, without a word about those that do not: nearly all do.

    Columns are compared, since their least and most are found in C, row by row only what must be told.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = [*ranges]

    def hold(self, rows: RowColumns) -> bool:
        """Say so."""
        looked_at = (one for one in self._ranges if rows.may_state(one[0]) or not one[1] <= 0 <= one[2])
        return all(_is_within(rows[name], least, most) for name, least, most in looked_at)


def _is_within(column: Sequence[float], least: float, most: float) -> bool:
    if not any(column):
        return least <= 0 <= most or not column
    # One that is not a number hides from the least and the most, not from the sum.
    total = sum(column)
    return least <= min(column) and max(column) <= most and total == total  # noqa: PLR0124


_NODE_RANGES, _GPU_RANGES, _JOB_RANGES = _Ranges(_NODE), _Ranges(_GPU), _Ranges(_JOB)
_MEMORY_POINT_RANGES, _STEP_POINT_RANGES = _Ranges(_MEMORY_POINT), _Ranges(_STEP_POINT)
_JOB_PREDICTION_RANGES = _Ranges(_JOB_PREDICTION)
_PENDING_RANGES, _RUNNING_RANGES = _Ranges(_PENDING), _Ranges(_RUNNING)
LISTS_OF_JOBS: Final = ("allowed_gpus", "allowed_devices")
PARTS_OF_JOBS: Final = ("settings", "worker_demand", "server_demand")
"""Where a job has one of these, it is looked at by itself."""
_HAS_TRIPLE: Final = methodcaller("HasField", "memory_triple")


def nodes_are_valid(nodes: RowColumns) -> bool:
    """Say whether no node breaks a rule or has the name of another one, at a tenth of the cost of naming those."""
    gpus = nodes.parts("gpus")
    return (
        not repeats(nodes["node_id"])
        and not repeats(gpus["gpu_id"])
        and _NODE_RANGES.hold(nodes)
        and _GPU_RANGES.hold(gpus)
    )


def job_predictions_are_valid(rows: RowColumns) -> bool:
    """Say the same of predictions of jobs, which may be repeated."""
    return (
        _LEVELS.issuperset(rows["level"])
        and _JOB_PREDICTION_RANGES.hold(rows)
        and _MEMORY_POINT_RANGES.hold(rows.parts("micro_batches"))
        and _STEP_POINT_RANGES.hold(rows.parts("step_times"))
        and not any(any(job_prediction_violations(row)) for row in filter(_HAS_TRIPLE, rows.rows))
    )


def running_and_pending_are_valid(
    snapshot: scheduling_pb2.Snapshot, running: RowColumns, pending: RowColumns, gpu_ids: AbstractSet[str]
) -> bool:
    """Say the same of where jobs run, of the rules for tenants and its own fields; not of what its jobs ask for.

    Args:
        snapshot: The snapshot.
        running: Its running jobs.
        pending: Its waiting jobs.
        gpu_ids: All its GPUs.
    """
    return (
        not any(own_violations(snapshot))
        and len({tenant.tenant for tenant in snapshot.tenants}) == len(snapshot.tenants)
        and not any(one for tenant in snapshot.tenants for one in tenant_violations(tenant))
        and _RUNNING_RANGES.hold(running)
        and _PENDING_RANGES.hold(pending)
        and gpu_ids >= set(running.parts("assignments")["gpu_id"])
        and all(map(_holds_once, running["assignments"]))
    )


def _holds_once(assignments: Sequence[scheduling_pb2.Assignment]) -> bool:
    # Most jobs hold one GPU.
    return len(assignments) == 1 or len({part.gpu_id for part in assignments}) == len(assignments) > 0


def rows_of_jobs_are_valid(jobs: RowColumns) -> bool:
    """Say the same of what jobs ask for."""
    return (
        _JOB_RANGES.hold(jobs)
        and _SHARES.issuperset(jobs["share"])
        and not any(any(_job(job)) for job in compress(jobs.rows, jobs.stating_any(LISTS_OF_JOBS, PARTS_OF_JOBS)))
    )


def own_violations(snapshot: scheduling_pb2.Snapshot) -> Iterator[FieldViolation]:
    """Check what belongs to no row of a snapshot."""
    yield from _outside("snapshot", "the snapshot", snapshot, (("now_ms", 0, _TIME_MS_MAX),))


def tenant_violations(tenant: scheduling_pb2.SnapshotTenant) -> Iterator[FieldViolation]:
    """Check the rule of a tenant."""
    yield from _outside("snapshot.tenants", tenant.tenant, tenant, _TENANT)
    if 0 < tenant.weight < WEIGHT_MIN:
        description = f"of {tenant.tenant[:_NAME_CHARACTERS_MAX]} must be 0 (= 1) or at least {WEIGHT_MIN:g}"
        yield FieldViolation(field="snapshot.tenants.weight", description=description)


def node_violations(node: scheduling_pb2.SnapshotNode) -> Iterator[FieldViolation]:
    """Check a node without its GPUs."""
    yield from _outside("snapshot.nodes", node.node_id, node, _NODE)


def gpu_violations(gpu: scheduling_pb2.SnapshotGpu) -> Iterator[FieldViolation]:
    """Check a GPU."""
    yield from _outside("snapshot.nodes.gpus", gpu.gpu_id, gpu, _GPU)


def running_violations(running: scheduling_pb2.SnapshotRunning, gpu_ids: Container[str]) -> Iterator[FieldViolation]:
    """Check a running job.

    Args:
        running: The job.
        gpu_ids: All GPUs of the snapshot.
    """
    job_id, field = running.job.job_id, "snapshot.running.assignments"
    held = [assignment.gpu_id for assignment in running.assignments]
    unknown = sorted({gpu_id for gpu_id in held if gpu_id not in gpu_ids})
    if unknown or not held:
        shown = ", ".join(gpu_id[:_NAME_CHARACTERS_MAX] for gpu_id in unknown[:_NAMED_MAX]) or "none"
        yield FieldViolation(field=field, description=f"job {job_id} must hold GPUs of the snapshot, not {shown}")
    if len(set(held)) < len(held):
        yield FieldViolation(field=field, description=f"job {job_id} must hold every one of its GPUs once")
    yield from _outside("snapshot.running", job_id, running, _RUNNING)
    yield from _job(running.job)


def pending_violations(pending: scheduling_pb2.SnapshotPending) -> Iterator[FieldViolation]:
    """Check a waiting job."""
    yield from _outside("snapshot.pending", pending.job.job_id, pending, _PENDING)
    yield from _job(pending.job)


def pair_prediction_violations(pair: scheduling_pb2.SnapshotPairPrediction) -> Iterator[FieldViolation]:
    """Check what is predicted of a pair."""
    named = f"{pair.victim_job_key} co-located with {pair.other_job_key}"
    yield from _outside("snapshot.pair_predictions", named, pair, PAIR_PREDICTION)
    yield from _level("snapshot.pair_predictions", named, pair.level)


def _job(job: scheduling_pb2.SnapshotJob) -> Iterator[FieldViolation]:
    yield from _outside("snapshot.job", job.job_id, job, _JOB)
    if any(not 1 <= count <= validation.GPUS_MAX for count in job.allowed_gpus):
        description = f"of {job.job_id} must be counts from 1 to {validation.GPUS_MAX:,}"
        yield FieldViolation(field="snapshot.job.allowed_gpus", description=description)
    if len(job.allowed_devices) > DEVICES_MAX or not all(map(queue_validation.is_device, job.allowed_devices)):
        description = f"of {job.job_id} must be at most {DEVICES_MAX} types of devices, e.g. a100"
        yield FieldViolation(field="snapshot.job.allowed_devices", description=description)
    if job.share not in _SHARES:
        yield FieldViolation(field="snapshot.job.share", description=f"of {job.job_id} is no ShareMode")
    for name in ("worker_demand", "server_demand"):
        if job.HasField(name):
            yield from _outside(f"snapshot.job.{name}", job.job_id, getattr(job, name), _DEMAND)
    if job.HasField("settings"):
        yield from _settings(job)


def _settings(job: scheduling_pb2.SnapshotJob) -> Iterator[FieldViolation]:
    """Check settings as those of a submitted job; a batch may be given next to them instead."""
    for one in validation.settings_violations(job.settings, field="snapshot.job.settings"):
        if job.settings.global_batch_size or not one.field.endswith("batch_size"):
            yield FieldViolation(field=one.field, description=f"of {job.job_id} {one.description}")


def job_prediction_violations(prediction: scheduling_pb2.SnapshotJobPrediction) -> Iterator[FieldViolation]:
    """Check what is predicted of a job."""
    field, named = "snapshot.job_predictions", f"{prediction.job_key} on {prediction.device}"
    yield from _outside(field, named, prediction, _JOB_PREDICTION)
    yield from _level(field, named, prediction.level)
    for point in prediction.micro_batches:
        yield from _outside(f"{field}.micro_batches", named, point, _MEMORY_POINT)
    for step in prediction.step_times:
        yield from _outside(f"{field}.step_times", named, step, _STEP_POINT)
    if prediction.HasField("memory_triple"):
        yield from _outside(f"{field}.memory_triple", named, prediction.memory_triple, _MEMORY_STATES)


def _level(field: str, named: str, level: int) -> Iterator[FieldViolation]:
    if level not in _LEVELS:
        yield FieldViolation(field=f"{field}.level", description=f"of {named} is no EstimateLevel")


def _outside(field: str, named: str, message: Any, ranges: Iterable[Range]) -> Iterator[FieldViolation]:  # noqa: ANN401
    for name, least, most in ranges:
        value = getattr(message, name)
        # A number that is not a number fails both comparisons.
        if not least <= value <= most:
            named = named[:_NAME_CHARACTERS_MAX]
            description = f"of {named} must be from {least:,} to {most:,}, not {value:,}"
            yield FieldViolation(field=f"{field}.{name}", description=description)
