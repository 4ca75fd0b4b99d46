"""Whether jobs consent to share a GPU. The same answers for policies and plan check."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.core.capacity import Resident, too_large_alone
from scheduler_service.core.colocation_slowdown import ExpectedSlowdown, expected_slowdowns
from scheduler_service.core.records import Gpu, Reason, Share
from scheduler_service.core.view import Predictions

_DOUBTS = frozenset({"PAIR_UNKNOWN", "OUT_OF_DOMAIN", "JOB_UNKNOWN", "RANGE_NOT_CALIBRATED"})


def sharing_obstacle(
    incoming_job: Resident, residents: Sequence[Resident], gpu: Gpu, predictions: Predictions
) -> Reason | None:
    """Return why these jobs must not share this GPU, or None when every one of them consents."""
    found = consented_slowdowns(incoming_job, residents, gpu, predictions)
    return found if isinstance(found, Reason) else None


def consented_slowdowns(
    incoming_job: Resident, residents: Sequence[Resident], gpu: Gpu, predictions: Predictions
) -> Sequence[tuple[Resident, ExpectedSlowdown]] | Reason:
    """Return each of these jobs with the slowdown that it consents to, or why they must not share this GPU.

    Each job judges its own slowdown by all others together: SAFE needs a reliable prediction for every pair, or that
    two jobs may share on trial; ANY also accepts the unknown; a known slowdown above its limit is refused by both.
    """
    everyone = (incoming_job, *residents)
    refusing = [resident.request.job_id for resident in everyone if resident.request.share is Share.NEVER]
    if refusing:
        return Reason(code="SHARE_NOT_ALLOWED", job_ids=tuple(refusing), gpu_ids=(gpu.gpu_id,))
    on_trial = tuple(resident.request.job_id for resident in residents if resident.is_on_trial)
    if on_trial:
        return Reason(code="TRIAL_GOES_ON", job_ids=on_trial, gpu_ids=(gpu.gpu_id,))
    found = []
    for victim, slowdown in expected_slowdowns(everyone, gpu, predictions):
        obstacle = _victim_obstacle(victim, slowdown, everyone, gpu)
        if obstacle is not None:
            is_doubt = obstacle.code in _DOUBTS
            too_large = (
                too_large_alone(incoming_job.request, incoming_job.micro_batch_size, gpu, predictions)
                if is_doubt
                else None
            )
            return too_large or obstacle
        found.append((victim, slowdown))
    return found


def _victim_obstacle(
    victim: Resident, slowdown: ExpectedSlowdown, everyone: Sequence[Resident], gpu: Gpu
) -> Reason | None:
    if slowdown.doubt is not None and victim.request.share is Share.SAFE and not slowdown.may_try:
        return slowdown.doubt
    if slowdown.ratio <= victim.request.max_slowdown_ratio:
        return None
    others = (other.request.job_id for other in everyone if other is not victim)
    return Reason(
        code="SLOWDOWN_TOO_HIGH",
        numbers={"slowdown_ratio": slowdown.ratio, "max_slowdown_ratio": victim.request.max_slowdown_ratio},
        job_ids=(victim.request.job_id, *others),
        gpu_ids=(gpu.gpu_id,),
    )
