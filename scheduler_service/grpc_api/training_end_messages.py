"""When a job reaches its target loss, for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.training_end_records import TrainingEnd
from scheduler_service.core.training_ends import LOSSES_MIN

_REASONS: Final[Mapping[str, str]] = {
    "NOT_FORESEEABLE": "most curves through the losses never reach the target, or too few losses are known",
    "NO_PREDICTOR": "no predictor is configured",
}


def training_end_message(job: JobRecord) -> scheduling_pb2.TrainingEnd | None:
    """Return when a job reaches its target loss; None = it has no target."""
    if not job.request.target_loss:
        return None
    end = job.training_end or TrainingEnd()
    return scheduling_pb2.TrainingEnd(
        steps_total=end.steps_total,
        steps_lower=end.steps_lower,
        steps_upper=end.steps_upper,
        confidence=end.confidence,
        reliable=end.is_reliable,
        reached=end.is_reached,
        losses=end.losses_fitted,
        unknown_reason="" if end.steps_total else _unknown_reason(end),
    )


def _unknown_reason(end: TrainingEnd) -> str:
    if end.code:
        return _REASONS.get(end.code, f"the predictor did not say ({end.code})")
    if len(end.losses) < LOSSES_MIN:
        return f"{len(end.losses)} of at least {LOSSES_MIN} losses were reported"
    return "the predictor has not answered yet"
