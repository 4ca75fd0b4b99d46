"""Several plans for one round, of which the one is kept that places most workers on fewest new GPUs.

No order of jobs is always good: the first takes partners that others would have needed more. Each plan packs
all jobs anew under the same constraints. How many plans there are is bounded by what they look at, so that a long queue
on a large cluster gets one plan, which costs no more than the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice

from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Start
from scheduler_service.policies.packing.ojpp_packing import Order, pack
from scheduler_service.policies.packing.packing_orders import DemandOf, by_least_gregariousness, by_width
from scheduler_service.policies.packing.packing_rules import Best, PackingRules

Attempt = tuple[PackingRules, Order]
PLANS_MAX = 16
"""Plans beyond which little was gained on the instances of benchmarks/exact_gaps.py and the workloads of the paper."""


def search_plan(view: SchedulingView, rules: PackingRules, order: Order, looks_max: int) -> Sequence[Decision]:
    """Return the best of several plans; of equally good ones the first.

    Args:
        view: The cluster.
        rules: The paper's constraints and criterion.
        order: The paper's.
        looks_max: Jobs and GPUs that all plans may look at together; there is one plan in any case. 0 = the paper's.
    """
    if looks_max == 0:
        return pack(view, rules, order)
    affordable = looks_max // max(len(view.pending) + len(view.gpus), 1)
    plans_max = min(max(affordable, 1), PLANS_MAX)
    unexplained = replace(view, explain=False) if view.explain else view
    found: list[tuple[Sequence[Decision], Attempt]] = []
    for attempt in islice(_attempts(rules, order, view.seed), plans_max):
        found.append((pack(unexplained, *attempt), attempt))
        if _is_final(view, found[-1][0]):
            break
    best, attempt = min(found, key=lambda one: _worth(view, one[0]))
    return pack(view, *attempt) if view.explain else best


def _attempts(rules: PackingRules, order: Order, seed: int) -> Iterator[Attempt]:
    """Yield ways of packing, the most promising first, then orders drawn by lot."""
    joining = replace(rules, joins_groups=True)
    yield joining, by_width
    filling = replace(joining, best=Best.LEAST_LEFTOVER)
    yield filling, by_width
    yield rules, order
    yield filling, by_least_gregariousness
    number = 0
    while True:
        yield (joining, filling)[number % 2], _by_lot(f"{seed}:{number}")
        number += 1


def _by_lot(ticket: str) -> Order:
    """Return an order that depends on the ticket and the jobs' ids only."""

    def order(jobs: Sequence[PendingJob], _: DemandOf) -> list[PendingJob]:
        return sorted(jobs, key=lambda job: sha256(f"{ticket}:{job.request.job_id}".encode()).digest())

    return order


def _worth(view: SchedulingView, plan: Sequence[Decision]) -> tuple[int, int]:
    """Return how good a plan is, lower being better: most workers placed, then fewest GPUs that were free."""
    taken = [part.gpu_id for one in plan if isinstance(one, Start) for part in one.assignments]
    return -len(taken), len(view.index.free_gpu_ids & set(taken))


def _is_final(view: SchedulingView, plan: Sequence[Decision]) -> bool:
    """Return whether other orders can gain nothing: no jobs compete, or every job found a place with others."""
    starts = [one for one in plan if isinstance(one, Start)]
    return len(starts) < 2 or (len(starts) == len(view.pending) and _worth(view, plan)[1] == 0)
