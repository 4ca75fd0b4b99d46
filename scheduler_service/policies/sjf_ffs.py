"""Shortest job first with first-fit sharing: a job that finds no free GPU joins the first one that lets it.

What it does:
    Takes pending jobs in the order of their predicted remaining time. With enough free GPUs a job starts alone; else on
    the first GPUs, by node and index, that hold exactly one job, where memory and every job's consent allow it, and on
    free GPUs for the rest. Running jobs are never touched, unless `unshare` moves them apart.

Why:
    The shortest queue that sharing can give. Compared with sjf_bsbf it shows what weighing each pair is worth.

Source:
    The baseline SJF-FFS of the SJF-BSBF paper, section VI-A4; the order and the free GPUs are those of Algorithm 1.

Where we differ:
    The paper shares with any job; here share and max_slowdown_ratio of both jobs bind. The full batch is used, since
    the baseline searches no sharing configuration; where that does not fit, the next GPU is tried. Optional aging.

Cost:
    Sorting the queue; each different job that finds too few free GPUs costs one look at every GPU with one job, for at
    most `weighed_jobs_max` jobs per round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.capacity import samples_per_gpu
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.planning.policy_parameters import (
    AGING_DESCRIPTION,
    UNSHARE_DESCRIPTION,
    WEIGHED_JOBS_DESCRIPTION,
    require_not_negative,
    require_positive,
)
from scheduler_service.core.records import Reason
from scheduler_service.policies.ordering.shortest_first import decide_shortest_first
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu
from scheduler_service.policies.pairing.offers import Offer
from scheduler_service.policies.pairing.pair_arrays import PairArrays
from scheduler_service.policies.pairing.sjf_sharing import SjfSharing
from scheduler_service.policies.placement.sharing_round import SharingRound
from scheduler_service.policies.placement.unsharing import with_jobs_apart


@dataclass(frozen=True, slots=True, kw_only=True)
class SjfFfs:
    """Shortest remaining time first; first fit with one running job where free GPUs do not suffice."""

    aging_ms: int = field(default=0, metadata={"description": AGING_DESCRIPTION})
    weighed_jobs_max: int = field(default=100, metadata={"description": WEIGHED_JOBS_DESCRIPTION})
    unshare: bool = field(default=False, metadata={"description": UNSHARE_DESCRIPTION})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(aging_ms=self.aging_ms)
        require_positive(weighed_jobs_max=self.weighed_jobs_max)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job, and moves of running jobs apart where that is wanted."""
        placement = SjfSharing(view, _FirstFit(), weighed_jobs_max=self.weighed_jobs_max)
        round_ = SharingRound(view, placement)
        decisions = decide_shortest_first(
            view,
            self.aging_ms,
            round_.decide,
            placement.free.is_impossible,
            placement.candidates,
            closed=placement.closed,
        )
        return with_jobs_apart(view, decisions) if self.unshare else decisions


class _FirstFit:
    """Any GPU where the full batch may join is as good as any other."""

    weighs_pairs = False
    recheck_gang = False

    def length(self, job: PendingJob) -> int:
        return 0

    def offer(self, job: PendingJob, occupied_gpu: OccupiedGpu, pairs: PairArrays | None) -> Offer | Reason:
        micro_batch_size = samples_per_gpu(job.request, job.request.gpus)
        admitted = occupied_gpu.admit(job.request, micro_batch_size)
        if isinstance(admitted, Reason):
            return admitted
        return Offer(entry=occupied_gpu.entry, micro_batch_size=micro_batch_size, occupied_gpu=occupied_gpu)

    def objection(self, job: PendingJob, occupied_gpus: Sequence[OccupiedGpu], micro_batch_size: int) -> Reason | None:
        return None
