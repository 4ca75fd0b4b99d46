"""Shortest job first with best sharing benefit first: join a running job only where both end sooner for it.

What it does:
    Takes pending jobs in the order of their predicted remaining time. With enough free GPUs a job starts alone. Else
    every GPU that holds exactly one job is weighed: for the batch and its halves (gradient accumulation) the sum of
    both jobs' ends is compared with waiting for the running job, and the pairs with the least sums are taken, free GPUs
    last. Running jobs are never touched, unless `unshare` moves them apart.

Why:
    Sharing shortens the queue, but with the wrong partner both jobs lose more than waiting costs. Knowing both
    remaining times and the pair's slowdowns, that can be weighed before anything starts; no job is ever preempted.

Source:
    The SJF-BSBF paper, Algorithms 1 and 2, Theorem 1, Eq. 5-7 and 9.

Where we differ:
    Section V-B1 speaks of the number of GPUs, the algorithm orders by L_k, and so do we. Algorithm 2 returns inside its
    loop, stops before a batch of 1 and checks no memory; here every half down to 1 is tried and must fit with the
    partner. Algorithm 1 never adds the free GPUs; here they come last, after the shared ones. All workers of a gang use
    one micro-batch, the smallest needed, and the gang's pace is that of its slowest GPU; with `recheck_gang` the sum
    over it and all its partners is compared with waiting once more. share and max_slowdown_ratio of both jobs bind, and
    an unknown slowdown that both accept (share: any) counts as the most that the job accepts. A running job of unknown
    length is taken to run as long again as it has run, a waiting one to be as long as the job that it would join; where
    its step time is unknown, or it is a gang, it does not share. A micro-batch that was not predicted is bounded by the
    next larger one; with no such prediction it is not considered. Optional aging.

Cost:
    Sorting the queue; each different job that finds too few free GPUs costs log2(batch) looks (section V-B4) at every
    load class of GPUs and one expression over all GPUs, for at most `weighed_jobs_max` jobs per round, the shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from scheduler_service.core.cluster_view.capacity import Resident, samples_per_gpu
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.planning.policy_parameters import (
    AGING_DESCRIPTION,
    TRIAL_MOVES_DESCRIPTION,
    TRIAL_PAUSES_DESCRIPTION,
    UNSHARE_DESCRIPTION,
    WEIGHED_JOBS_DESCRIPTION,
    require_not_negative,
    require_positive,
)
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.sharing.sharing_consent import find_refusal
from scheduler_service.policies.ordering.shortest_first import decide_shortest_first
from scheduler_service.policies.pairing import sharing_queue
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu
from scheduler_service.policies.pairing.offers import Offer
from scheduler_service.policies.pairing.pair_answers import KnownAnswers, PairAnswer, known_answers_of
from scheduler_service.policies.pairing.pair_arrays import PairArrays
from scheduler_service.policies.pairing.pair_sharing import (
    CoLocatedJob,
    is_worth_sharing,
    shared_pair_sum_ms,
    shared_sum_ms,
    waiting_sum_ms,
)
from scheduler_service.policies.pairing.sjf_sharing import SjfSharing
from scheduler_service.policies.placement.sharing_round import SharingRound
from scheduler_service.policies.placement.unsharing import with_jobs_apart


@dataclass(frozen=True, slots=True, kw_only=True)
class SjfBsbf:
    """Shortest remaining time first; shares with the running job of the best sharing benefit where it has one."""

    aging_ms: int = field(default=0, metadata={"description": AGING_DESCRIPTION})
    weighed_jobs_max: int = field(default=100, metadata={"description": WEIGHED_JOBS_DESCRIPTION})
    recheck_gang: bool = field(
        default=True,
        metadata={
            "description": "a job on several GPUs shares only if that is better for it and all partners together"
        },
    )

    trial_moves: bool = field(default=True, metadata={"description": TRIAL_MOVES_DESCRIPTION})
    trial_pauses: bool = field(default=True, metadata={"description": TRIAL_PAUSES_DESCRIPTION})
    unshare: bool = field(default=False, metadata={"description": UNSHARE_DESCRIPTION})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(aging_ms=self.aging_ms)
        require_positive(weighed_jobs_max=self.weighed_jobs_max)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job, and moves of running jobs apart where that is wanted."""
        decisions = self._decide_pending(view) if view.pending else []
        return with_jobs_apart(view, decisions) if self.unshare else decisions

    def _decide_pending(self, view: SchedulingView) -> Sequence[Decision]:
        rule = _BestBenefit(known_answers_of(view), recheck_gang=self.recheck_gang, is_explaining=view.explain)
        placement = SjfSharing(view, rule, weighed_jobs_max=self.weighed_jobs_max)
        is_long = placement.is_large or sharing_queue.is_long(len(view.pending), len(view.gpus))
        lengths = view.index.lengths if is_long and not view.explain and not self.aging_ms else None
        if lengths is not None and placement.closed() is None:
            start = placement.start_only_job()
            if start is not None:
                return [start]
            queue = sharing_queue.SharingQueue(view, lengths, placement, weighed_jobs_max=self.weighed_jobs_max)
            return queue.decide()
        round_ = SharingRound(view, placement)
        return decide_shortest_first(
            view,
            self.aging_ms,
            round_.decide,
            placement.free.is_impossible,
            placement.candidates,
            closed=placement.closed,
        )


class _BestBenefit:
    """Weighs a second place by Theorem 1; for one call of decide, since it keeps what spots of one shape share.

    Args:
        answers: What was answered before.
        recheck_gang: As the policy's.
        is_explaining: Every GPU gets the reason with its own numbers; otherwise only the first GPU by name does.
    """

    weighs_pairs = True

    def __init__(self, answers: KnownAnswers, *, recheck_gang: bool, is_explaining: bool) -> None:
        self.recheck_gang = recheck_gang
        self._is_explaining = is_explaining
        self._answers = answers
        self._partner_remaining_times_ms: dict[tuple[str, str], float | None] = {}
        self._worth: dict[object, tuple[int, float]] = {}
        self._not_worth: dict[str, Reason] = {}

    def length(self, job: PendingJob) -> int:
        """Return the steps that are left: jobs of other lengths are weighed anew."""
        return max(job.request.steps_total - job.steps_done, 0)

    def offer(self, job: PendingJob, occupied_gpu: OccupiedGpu, pairs: PairArrays | None) -> Offer | Reason:
        """Return the micro-batch with the least sum of ends, if that is less than waiting gives (Algorithm 2)."""
        request, gpu = job.request, occupied_gpu.entry.gpu
        co_located = (
            request.job_id,
            occupied_gpu.partner_id,
            occupied_gpu.memory_free_bytes,
            gpu.device,
            gpu.memory_bytes,
        )
        if co_located in self._worth:
            micro_batch_size, sum_ms = self._worth[co_located]
            return Offer(
                entry=occupied_gpu.entry, micro_batch_size=micro_batch_size, occupied_gpu=occupied_gpu, cost_ms=sum_ms
            )
        answer, partner_remaining_ms = (
            self._answer(request, occupied_gpu, pairs),
            self._partner_remaining_ms(occupied_gpu),
        )
        if partner_remaining_ms is None or answer.full_step_ms is None:
            incoming = Resident(request=request, micro_batch_size=0, memory_reserved_bytes=0)
            refusal = find_refusal((incoming, occupied_gpu.partner), gpu)
            if refusal is not None:
                return refusal
            unknown = occupied_gpu.partner_id if partner_remaining_ms is None else request.job_id
            return Reason(code="REMAINING_TIME_UNKNOWN", job_ids=(unknown,), gpu_ids=(gpu.gpu_id,))
        if answer.nearest is not None and not answer.options:
            return _about(answer, answer.nearest, request.job_id, occupied_gpu)
        # A job of unknown length is taken for as long as the one that it would join.
        left = self.length(job) if request.steps_total > 0 else partner_remaining_ms / answer.full_step_ms
        best, best_ms = answer.options[0], inf
        for option in answer.options:
            sum_ms = shared_pair_sum_ms(
                left * option.step_ms, partner_remaining_ms, option.slowdown_ratio, option.partner_slowdown_ratio
            )
            if sum_ms < best_ms:
                best, best_ms = option, sum_ms
        waiting_ms = left * answer.full_step_ms + 2 * partner_remaining_ms
        if is_worth_sharing(best_ms, waiting_ms):
            self._worth[co_located] = best.micro_batch_size, best_ms
            return Offer(
                entry=occupied_gpu.entry,
                micro_batch_size=best.micro_batch_size,
                occupied_gpu=occupied_gpu,
                cost_ms=best_ms,
            )
        return self._refusal(request.job_id, best_ms, waiting_ms, occupied_gpu)

    def _partner_remaining_ms(self, occupied_gpu: OccupiedGpu) -> float | None:
        place = (occupied_gpu.entry.gpu.gpu_id, occupied_gpu.partner_id)
        if place not in self._partner_remaining_times_ms:
            self._partner_remaining_times_ms[place] = occupied_gpu.partner_remaining_ms()
        return self._partner_remaining_times_ms[place]

    def _refusal(self, job_id: str, shared_ms: float, waiting_ms: float, occupied_gpu: OccupiedGpu) -> Reason:
        """Return that sharing is not worth it; of many such reasons only that of the first GPU is ever shown."""
        known = self._not_worth.get(job_id)
        if known is not None and known.gpu_ids < (occupied_gpu.entry.gpu.gpu_id,) and not self._is_explaining:
            return known
        self._not_worth[job_id] = reason = _not_worth(shared_ms, waiting_ms, [occupied_gpu])
        return reason

    def _answer(self, request: JobRequest, occupied_gpu: OccupiedGpu, pairs: PairArrays | None) -> PairAnswer:
        if pairs is not None:
            return pairs.answer(request, occupied_gpu.entry.gpu.gpu_id)
        return self._answers.answer(request, occupied_gpu)

    def objection(self, job: PendingJob, occupied_gpus: Sequence[OccupiedGpu], micro_batch_size: int) -> Reason | None:
        """Compare sharing of the whole gang with waiting for all its partners."""
        # Of unknown length a job on one GPU was weighed when that GPU was offered.
        is_weighed = job.request.gpus == 1 and job.request.steps_total <= 0
        if not self.recheck_gang or not occupied_gpus or is_weighed:
            return None
        full_remaining_ms = _remaining_ms(job, occupied_gpus[0], samples_per_gpu(job.request, job.request.gpus))
        remaining_ms = _remaining_ms(job, occupied_gpus[0], micro_batch_size)
        partners = _partners(job, occupied_gpus, micro_batch_size)
        if remaining_ms is None or full_remaining_ms is None:
            return Reason(code="REMAINING_TIME_UNKNOWN", job_ids=(job.request.job_id,))
        shared_ms, waiting_ms = shared_sum_ms(remaining_ms, partners), waiting_sum_ms(full_remaining_ms, partners)
        return None if is_worth_sharing(shared_ms, waiting_ms) else _not_worth(shared_ms, waiting_ms, occupied_gpus)


def _about(answer: PairAnswer, reason: Reason, job_id: str, occupied_gpu: OccupiedGpu) -> Reason:
    """Return the obstacle of a shape as one of this job on this GPU."""
    names = {answer.job_id: job_id, answer.partner_id: occupied_gpu.partner_id}
    job_ids = tuple(names.get(name, name) for name in reason.job_ids)
    return replace(reason, job_ids=job_ids, gpu_ids=(occupied_gpu.entry.gpu.gpu_id,))


def _remaining_ms(job: PendingJob, occupied_gpu: OccupiedGpu, micro_batch_size: int) -> float | None:
    return occupied_gpu.remaining_ms(
        job.request, steps_done=job.steps_done, gpus=job.request.gpus, micro_batch_size=micro_batch_size
    )


def _co_located(occupied_gpu: OccupiedGpu, resident: Resident, remaining_ms: float) -> CoLocatedJob:
    own, partners = occupied_gpu.slowdowns(resident)
    return CoLocatedJob(remaining_ms=remaining_ms, slowdown_ratio=partners, incoming_slowdown_ratio=own)


def _partners(job: PendingJob, occupied_gpus: Sequence[OccupiedGpu], micro_batch_size: int) -> list[CoLocatedJob]:
    """Return every partner of a gang once, however many of its GPUs are shared."""
    found: dict[str, CoLocatedJob] = {}
    resident = Resident(request=job.request, micro_batch_size=micro_batch_size, memory_reserved_bytes=0)
    for occupied_gpu in occupied_gpus:
        if occupied_gpu.partner_id not in found:
            found[occupied_gpu.partner_id] = _co_located(
                occupied_gpu, resident, occupied_gpu.partner_remaining_ms() or 0.0
            )
    return list(found.values())


def _not_worth(shared_ms: float, waiting_ms: float, occupied_gpus: Sequence[OccupiedGpu]) -> Reason:
    return Reason(
        code="SHARING_NOT_WORTH_IT",
        numbers={"shared_sum_ms": shared_ms, "waiting_sum_ms": waiting_ms},
        job_ids=tuple(dict.fromkeys(occupied_gpu.partner_id for occupied_gpu in occupied_gpus)),
        gpu_ids=tuple(occupied_gpu.entry.gpu.gpu_id for occupied_gpu in occupied_gpus),
    )
