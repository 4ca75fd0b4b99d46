"""OJPP-Greedy: packs the largest jobs first and keeps every limit on interference, collisions and balance.

What it does:
    Takes the largest jobs first and puts each worker on the GPU in use on which the worst slowdown would then be
    lowest, if compute, low memory with one peak, collision probability, slowdown and the balance between the workers of
    every job touched stay within their limits. If a worker fits none, the job may use new GPUs too. All workers or
    none. Running jobs are never touched.

Why:
    Fewer GPUs with bounded loss of speed, at the price of one sort.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    Algorithms 1 and 2, Eq. 1-8.

Where we differ:
    As ojpp does: consent, reservations, jobs without a memory triple, the undefined alpha, sums of slowdowns, ties, and
    workers too large for an empty GPU. The order and the one plan are the paper's.

Cost:
    One sort; one look at every GPU in use per different shape of job, and one at the workers of every job touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policies.packing.ojpp_packing import pack
from scheduler_service.policies.packing.packing_orders import by_resources
from scheduler_service.policies.packing.packing_rules import OjppParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class OjppGreedy(OjppParameters):
    """All constraints of OJPP, largest jobs first."""

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        return pack(view, self.rules(), by_resources)
