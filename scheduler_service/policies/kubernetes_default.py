"""The default scheduler of Kubernetes: a job runs with the GPU count that it asked for, first fit.

What it does:
    Draws one number of GPUs from each job's list, by the seed, and keeps to it. Jobs start in the order of submission,
    each alone on free GPUs; one that does not fit now lets later ones pass. Running jobs are never touched.

Why:
    The baseline without elasticity: what choosing and changing the number of GPUs adds is measured against it.

Source:
    The baseline "default" of Wang et al., "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep Learning
    Training Systems", sections V-B (the count is randomly chosen) and VI-A (a smaller job that came later overtakes).

Where we differ:
    The draw depends on the seed and the job's id only, so that a job keeps its count for as long as it waits. Of
    several kinds of GPU the one with the shortest predicted step is taken; of nodes, the fullest that suffices.

Cost:
    Sorting the queue and the free GPUs; one look at every node with free GPUs per different shape of job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.ordering.waiting_list import decide_in_order
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound
from scheduler_service.policies.placement.free_gpus import sized


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesDefault:
    """First fit at a drawn count; nothing can be set."""

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        round_ = ExclusiveRound(view)

        def decide_one(job: PendingJob) -> Decision:
            return round_.decide(replace(job, request=sized(job.request, drawn_gpus(job.request, view.seed))))

        return decide_in_order(view.pending, decide_one)


def drawn_gpus(request: JobRequest, seed: int) -> int:
    """Return one of the counts that a job allows, each as likely; the same job and seed give the same."""
    counts = sorted(set(request.allowed_gpus)) or [request.gpus]
    return counts[int.from_bytes(sha256(f"{seed}:{request.job_id}".encode()).digest()[:8]) % len(counts)]
