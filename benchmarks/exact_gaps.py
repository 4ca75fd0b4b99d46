"""How far the heuristics are from the exact optimum of small instances: `python -m benchmarks.exact_gaps` prints JSON.

Gaps are relative to the optimum of the same 200 seeded instances: GPUs in use for OJPP and OJPP-Greedy, cost of the
final loads for Horus where both place as much, and gain lost against the best sharing for SJF-BSBF.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import mean

from benchmarks.exact_rulers.best_sharing import share_best
from benchmarks.exact_rulers.fewest_gpus import fewest_gpus
from benchmarks.exact_rulers.least_cost_placement import place_exactly
from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.horus import Horus
from scheduler_service.policies.ojpp import Ojpp
from scheduler_service.policies.ojpp_greedy import OjppGreedy
from tests.support.packing import placement_of, random_instance
from tests.support.ruler_instances import HORUS_COSTS, OJPP_RULES, HorusInstance, SharingInstance, packed_jobs

INSTANCES = 200
OJPP_GAP_MAX_RATIO = 0.05


def main() -> dict[str, object]:
    """Solve every instance both ways."""
    ojpp = figures([ojpp_gap(Ojpp(), seed) for seed in range(INSTANCES)])
    # The plans of ojpp were chosen on other seeds (1000 to 1199); neither these nor those above were looked at before.
    fresh = figures([ojpp_gap(Ojpp(), seed) for seed in range(INSTANCES, 2 * INSTANCES)])
    return {
        "instances": INSTANCES,
        "ojpp": ojpp,
        "ojpp_fresh_instances": fresh,
        "ojpp_one_plan": figures([ojpp_gap(Ojpp(looks_max=1), seed) for seed in range(INSTANCES)]),
        "ojpp_as_printed": figures([ojpp_gap(Ojpp(looks_max=0), seed) for seed in range(INSTANCES)]),
        "ojpp_greedy": figures([ojpp_gap(OjppGreedy(), seed) for seed in range(INSTANCES)]),
        "horus": horus_figures(),
        "sjf_bsbf": figures([sharing_gap(seed) for seed in range(INSTANCES)]),
        "bars": {"ojpp_mean_gap_ratio_max": OJPP_GAP_MAX_RATIO},
        "met": {
            name: float(str(found["mean_gap_ratio"])) <= OJPP_GAP_MAX_RATIO
            for name, found in (("ojpp", ojpp), ("ojpp_fresh_instances", fresh))
        },
    }


def ojpp_gap(policy: Policy, seed: int) -> float:
    """GPUs in use beyond the fewest possible, relative to those; a device for every worker is there."""
    instance = random_instance(seed, jobs_max=7, workers_max=3, gpus=21)
    exact = fewest_gpus(packed_jobs(instance), instance.slowdowns, OJPP_RULES)
    placement = placement_of(instance, policy.decide(instance.view()))
    if exact is None or len(placement) < len(instance.jobs):
        raise AssertionError(f"instance {seed} leaves jobs out")
    return len({gpu for gpus in placement.values() for gpu in gpus}) / exact - 1.0


def horus_figures() -> dict[str, object]:
    """Cost beyond the least where both place as many GPUs' worth; elsewhere the GPUs that the heuristic misses."""
    gaps, missed = [], 0
    for seed in range(INSTANCES):
        instance = HorusInstance.drawn(seed)
        exact = place_exactly(instance.jobs, instance.gpus, HORUS_COSTS)
        starts = [one for one in unfolded(Horus().decide(instance.view())) if isinstance(one, Start)]
        found = instance.worth({one.job_id: [part.gpu_id for part in one.assignments] for one in starts})
        missed += exact.gpus_placed - found.gpus_placed
        if found.gpus_placed == exact.gpus_placed and exact.cost > 0:
            gaps.append(found.cost / exact.cost - 1.0)
    return {**figures(gaps), "instances_compared": len(gaps), "gpus_of_jobs_not_placed": missed}


def sharing_gap(seed: int) -> float:
    """Share of the best gain that SJF-BSBF leaves on the table."""
    instance = SharingInstance.drawn(seed)
    best_ms = share_best(instance.sharing_jobs()).gain_ms
    return 1.0 - instance.gain_ms(instance.heuristic()) / best_ms if best_ms > 0 else 0.0


def figures(gaps: Sequence[float]) -> dict[str, object]:
    """Describe a list of gaps."""
    optimal = sum(gap < 1e-9 for gap in gaps) / len(gaps)
    return {
        "mean_gap_ratio": round(mean(gaps), 4),
        "max_gap_ratio": round(max(gaps), 4),
        "optimal_ratio": round(optimal, 4),
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
