"""Whether jobs consent to share a GPU. The same answers for policies and plan check."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.core.cluster_view.capacity import Resident, too_large_alone
from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.records import Gpu, JobRequest, Reason, Share
from scheduler_service.core.sharing.colocation_slowdown import (
    ExpectedSlowdown,
    PairSlowdowns,
    expected_slowdowns,
    ways_of_sharing,
)

DOUBTS = frozenset({"PAIR_UNKNOWN", "OUT_OF_DOMAIN", "JOB_UNKNOWN", "RANGE_NOT_CALIBRATED"})
"""Why jobs do not share that might once more is known of them."""


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
    refusal = find_refusal(everyone, gpu)
    if refusal is not None:
        return refusal
    found = []
    for victim, slowdown in expected_slowdowns(everyone, gpu, predictions):
        obstacle = _victim_obstacle(victim, slowdown, everyone, gpu, predictions)
        if obstacle is not None:
            return _too_large_or(obstacle, incoming_job.request, incoming_job.micro_batch_size, gpu, predictions)
        found.append((victim, slowdown))
    return found


class PairConsent:
    """`consented_slowdowns` of two jobs at many micro-batches of the incoming one: as `PairSlowdowns`.

    Args:
        incoming_job: The job that would come; its own micro-batch does not matter.
        resident: The one job that is there.
        gpu: Where they share.
        predictions: What is predicted.
    """

    __slots__ = ("_everyone", "_gpu", "_limits", "_predictions", "_refusal", "_slowdowns")

    def __init__(self, incoming_job: Resident, resident: Resident, gpu: Gpu, predictions: Predictions) -> None:
        self._everyone = everyone = (incoming_job, resident)
        self._gpu, self._predictions = gpu, predictions
        self._limits = incoming_job.request.max_slowdown_ratio, resident.request.max_slowdown_ratio
        self._refusal = find_refusal(everyone, gpu)
        self._slowdowns = PairSlowdowns(incoming_job, resident, gpu, predictions)

    def at(self, micro_batch_size: int) -> tuple[ExpectedSlowdown, ExpectedSlowdown] | Reason:
        """Return the slowdowns that both consent to, the incoming job taking so many samples per pass, or why not."""
        if self._refusal is not None:
            return self._refusal
        found = own, other = self._slowdowns.at(micro_batch_size)
        if (
            own.doubt is None
            and other.doubt is None
            and own.ratio <= self._limits[0]
            and other.ratio <= self._limits[1]
        ):
            return found
        for victim, slowdown in zip(self._everyone, found, strict=True):
            obstacle = _victim_obstacle(victim, slowdown, self._everyone, self._gpu, self._predictions)
            if obstacle is not None:
                request = self._everyone[0].request
                return _too_large_or(obstacle, request, micro_batch_size, self._gpu, self._predictions)
        return found


def find_refusal(everyone: Sequence[Resident], gpu: Gpu) -> Reason | None:
    """Return why jobs, the incoming one first, share nothing whatever it costs: one never shares, or is on trial."""
    for one in everyone:
        if one.request.share is Share.NEVER:
            refusing = tuple(each.request.job_id for each in everyone if each.request.share is Share.NEVER)
            return Reason(code="SHARE_NOT_ALLOWED", job_ids=refusing, gpu_ids=(gpu.gpu_id,))
    on_trial = [resident.request.job_id for resident in everyone[1:] if resident.is_on_trial]
    return Reason(code="TRIAL_GOES_ON", job_ids=tuple(on_trial), gpu_ids=(gpu.gpu_id,)) if on_trial else None


def _too_large_or(
    obstacle: Reason, request: JobRequest, micro_batch_size: int, gpu: Gpu, predictions: Predictions
) -> Reason:
    """Return the obstacle, unless it is a doubt about a job that the GPU is too small for anyway."""
    too_large = too_large_alone(request, micro_batch_size, gpu, predictions) if obstacle.code in DOUBTS else None
    return too_large or obstacle


def _victim_obstacle(
    victim: Resident,
    slowdown: ExpectedSlowdown,
    everyone: Sequence[Resident],
    gpu: Gpu,
    predictions: Predictions,
) -> Reason | None:
    if slowdown.doubt is not None and victim.request.share is Share.SAFE and not slowdown.may_try:
        return slowdown.doubt
    if slowdown.ratio <= victim.request.max_slowdown_ratio:
        return None
    others = (other.request.job_id for other in everyone if other is not victim)
    return Reason(
        code="SLOWDOWN_TOO_HIGH",
        numbers={
            "slowdown_ratio": slowdown.ratio,
            "max_slowdown_ratio": victim.request.max_slowdown_ratio,
            **ways_of_sharing([gpu], predictions),
        },
        job_ids=(victim.request.job_id, *others),
        gpu_ids=(gpu.gpu_id,),
    )
