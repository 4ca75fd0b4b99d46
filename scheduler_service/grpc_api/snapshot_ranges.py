"""Which numbers a snapshot may hold: nothing that is no number, no size below zero, nothing that no cluster has.

A policy reckons with whatever it is given; what it must not be given is refused here, for all policies alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api import validation

_TIME_MS_MAX: Final = 2**53
_COUNT_MAX: Final = 2**31 - 1
_CORES_MAX: Final = 100_000
_BYTES_PER_S_MAX: Final = 10**15
_STEP_MS_MIN, _STEP_MS_MAX = 1e-6, 1e12
_SLOWDOWN_MIN, _SLOWDOWN_MAX = -1, 10**6
_NAMED_MAX: Final = 20

Range = tuple[str, float, float]
"""Field, least and most."""

_NODE: Final[tuple[Range, ...]] = (("cpu_cores", 0, _CORES_MAX), ("host_memory_bytes", 0, validation.BYTES_MAX))
_GPU: Final[tuple[Range, ...]] = (
    ("memory_bytes", 1, validation.BYTES_MAX),
    ("slowdown_ewma_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
)
_JOB: Final[tuple[Range, ...]] = (
    ("gpus", 0, validation.GPUS_MAX),
    ("batch", 0, validation.BATCH_MAX),
    ("steps_total", 0, validation.STEPS_MAX),
    ("max_slowdown_ratio", 0, validation.MAX_SLOWDOWN_RATIO_MAX),
    ("cpu_cores", 0, _CORES_MAX),
    ("host_memory_bytes", 0, validation.BYTES_MAX),
    ("memory_floor_bytes", 0, validation.BYTES_MAX),
    ("migration_cost_ms", 0, _TIME_MS_MAX),
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
    ("sub_batch", 0, validation.BATCH_MAX),
    ("started_at_ms", 0, _TIME_MS_MAX),
    ("observed_slowdown_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
)
_JOB_PREDICTION: Final[tuple[Range, ...]] = (("utilization_ratio", 0, 1), ("sm_activity_ratio", 0, 1))
_MEMORY_POINT: Final[tuple[Range, ...]] = (
    ("sub_batch", 1, validation.BATCH_MAX),
    ("memory_bytes", 0, validation.BYTES_MAX),
    ("memory_bytes_upper_99", 0, validation.BYTES_MAX),
)
_STEP_POINT: Final[tuple[Range, ...]] = (
    ("gpus", 0, validation.GPUS_MAX),
    ("sub_batch", 0, validation.BATCH_MAX),
    ("workers", 0, validation.GPUS_MAX),
    ("servers", 0, validation.GPUS_MAX),
    ("step_ms", _STEP_MS_MIN, _STEP_MS_MAX),
)
_MEMORY_STATES: Final[tuple[Range, ...]] = (("gamma_ratio", 0, 1), ("delta_ratio", 0, 1), ("high_state_ratio", 0, 1))
_PAIR_PREDICTION: Final[tuple[Range, ...]] = (
    ("sub_batch", 0, validation.BATCH_MAX),
    ("slowdown_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
    ("upper_ratio", _SLOWDOWN_MIN, _SLOWDOWN_MAX),
)


def range_violations(snapshot: scheduling_pb2.Snapshot) -> Iterator[FieldViolation]:
    """Yield the first violations of a snapshot, at most twenty: one mistake in a program makes thousands."""
    yield from islice(_all(snapshot), _NAMED_MAX)


def _all(snapshot: scheduling_pb2.Snapshot) -> Iterator[FieldViolation]:
    yield from _outside("snapshot", "the snapshot", snapshot, (("now_ms", 0, _TIME_MS_MAX),))
    for node in snapshot.nodes:
        yield from _outside("snapshot.nodes", node.node_id, node, _NODE)
        for gpu in node.gpus:
            yield from _outside("snapshot.nodes.gpus", gpu.gpu_id, gpu, _GPU)
    for running in snapshot.running:
        yield from _outside("snapshot.running", running.job.job_id, running, _RUNNING)
        yield from _job(running.job)
    for pending in snapshot.pending:
        yield from _outside("snapshot.pending", pending.job.job_id, pending, _PENDING)
        yield from _job(pending.job)
    for prediction in snapshot.job_predictions:
        yield from _job_prediction(prediction)
    for pair in snapshot.pair_predictions:
        named = f"{pair.victim_key} beside {pair.other_key}"
        yield from _outside("snapshot.pair_predictions", named, pair, _PAIR_PREDICTION)
        yield from _level("snapshot.pair_predictions", named, pair.level)


def _job(job: scheduling_pb2.SnapshotJob) -> Iterator[FieldViolation]:
    yield from _outside("snapshot.job", job.job_id, job, _JOB)
    if any(not 1 <= count <= validation.GPUS_MAX for count in job.allowed_gpus):
        description = f"of {job.job_id} must be counts from 1 to {validation.GPUS_MAX:,}"
        yield FieldViolation(field="snapshot.job.allowed_gpus", description=description)
    if job.share not in resources_pb2.ShareMode.values():
        yield FieldViolation(field="snapshot.job.share", description=f"of {job.job_id} is no ShareMode")
    for name in ("worker_demand", "server_demand"):
        if job.HasField(name):
            yield from _outside(f"snapshot.job.{name}", job.job_id, getattr(job, name), _DEMAND)


def _job_prediction(prediction: scheduling_pb2.SnapshotJobPrediction) -> Iterator[FieldViolation]:
    field, named = "snapshot.job_predictions", f"{prediction.key} on {prediction.device}"
    yield from _outside(field, named, prediction, _JOB_PREDICTION)
    yield from _level(field, named, prediction.level)
    for point in prediction.sub_batches:
        yield from _outside(f"{field}.sub_batches", named, point, _MEMORY_POINT)
    for step in prediction.steps:
        yield from _outside(f"{field}.steps", named, step, _STEP_POINT)
    if prediction.HasField("memory_triple"):
        yield from _outside(f"{field}.memory_triple", named, prediction.memory_triple, _MEMORY_STATES)


def _level(field: str, named: str, level: int) -> Iterator[FieldViolation]:
    if level not in resources_pb2.EstimateLevel.values():
        yield FieldViolation(field=f"{field}.level", description=f"of {named} is no EstimateLevel")


def _outside(field: str, named: str, message: Any, ranges: Iterable[Range]) -> Iterator[FieldViolation]:  # noqa: ANN401
    for name, least, most in ranges:
        value = getattr(message, name)
        # A number that is not a number fails both comparisons.
        if not least <= value <= most:
            description = f"of {named} must be from {least:,} to {most:,}, not {value:,}"
            yield FieldViolation(field=f"{field}.{name}", description=description)
