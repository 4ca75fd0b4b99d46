"""Best fit: the fullest GPU that still holds the job, by compute and memory.

What it does:
    Takes the largest jobs first and puts each worker on the GPU in use whose compute and memory would then be used up
    most; a new GPU is opened only when a worker fits none. Running jobs are never touched.

Why:
    The fewest GPUs by the oldest rule of bin packing. What packing blindly costs in speed is what the other packing
    policies are measured against.

Source:
    The baseline Best-fit of Li et al., "Interference-aware opportunistic job placement for shared distributed deep
    learning clusters" (OJPP), section 5.2, with Eq. 1 and 2.

Where we differ:
    The paper packs whatever fits; here every job's consent is asked as under every policy (share, max_slowdown_ratio),
    and the reserved 99 % bounds have to fit together. Jobs with share: any and a large max_slowdown_ratio get
    the paper's policy. Compute (the paper's undefined alpha) is SM activity where known, else utilization. The leftover
    is the sum of what is left of both. A job's workers are on different GPUs.

Cost:
    One look at every GPU in use per different shape of job, O(workers x GPUs) per placed job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policies.packing.ojpp_packing import pack
from scheduler_service.policies.packing.packing_orders import by_resources
from scheduler_service.policies.packing.packing_rules import PackingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFit(PackingParameters):
    """Two-dimensional best fit decreasing."""

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        return pack(view, self.rules(), by_resources)
