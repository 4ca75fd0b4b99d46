"""The exact rulers against brute force, and the heuristics against the rulers: never better, and never infeasible."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from benchmarks.exact_rulers.best_sharing import share_best
from benchmarks.exact_rulers.fewest_gpus import fewest_gpus
from benchmarks.exact_rulers.least_cost_placement import place_exactly
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.horus import Horus
from scheduler_service.policies.ojpp import Ojpp
from tests.support.cases import for_each
from tests.support.packing import Instance, Limits, placement_of, random_instance, violations
from tests.support.ruler_instances import HORUS_COSTS, OJPP_RULES, HorusInstance, SharingInstance, packed_jobs

LIMITS = Limits(tau_max=0.1, theta_max=0.2, theta_diff=0.1)


def fewest_by_trying(instance: Instance) -> int | None:
    """Return the GPUs of the best of all placements on the instance's GPUs."""
    gpus = [f"g{index}" for index in range(instance.gpus)]
    best: int | None = None
    for chosen in product(*(combinations(gpus, one.workers) for one in instance.jobs)):
        used = len({gpu for mine in chosen for gpu in mine})
        placement = dict(zip((one.name for one in instance.jobs), chosen, strict=True))
        if (best is None or used < best) and not violations(instance, placement, LIMITS):
            best = used
    return best


@for_each("seed", range(80), always=15)
def test_the_fewest_gpus_are_those_that_trying_everything_finds(seed: int) -> None:
    instance = random_instance(seed, jobs_max=4, workers_max=2, gpus=4)
    exact = fewest_gpus(packed_jobs(instance), instance.slowdowns, OJPP_RULES)
    tried = fewest_by_trying(instance)
    assert exact is not None
    assert tried == exact if exact <= instance.gpus else tried is None


@for_each("seed", range(60), always=15)
def test_ojpp_never_needs_fewer_gpus_than_the_ruler(seed: int) -> None:
    instance = random_instance(1_000 + seed, jobs_max=6, workers_max=3, gpus=18)
    exact = fewest_gpus(packed_jobs(instance), instance.slowdowns, OJPP_RULES)
    placement = placement_of(instance, Ojpp().decide(instance.view()))
    assert len(placement) == len(instance.jobs)
    assert exact is not None
    assert len({gpu for gpus in placement.values() for gpu in gpus}) >= exact


@for_each("seed", range(60), always=15)
def test_horus_places_no_more_and_no_cheaper_than_the_ruler(seed: int) -> None:
    instance = HorusInstance.drawn(seed)
    exact = place_exactly(instance.jobs, instance.gpus, HORUS_COSTS)
    starts = [one for one in unfolded(Horus().decide(instance.view())) if isinstance(one, Start)]
    found = instance.worth({one.job_id: [part.gpu_id for part in one.assignments] for one in starts})
    assert instance.worth(exact.placed).cost == pytest.approx(exact.cost)
    assert (-exact.gpus_placed, exact.cost) <= (-found.gpus_placed, found.cost + 1e-9)


@for_each("seed", range(40), always=15)
def test_the_cheapest_placement_is_the_one_that_trying_everything_finds(seed: int) -> None:
    instance = HorusInstance.drawn(seed)
    gpu_ids = [gpu.gpu_id for gpu in instance.gpus]
    best = (0, 0.0)
    for chosen in product(*([(), *combinations(gpu_ids, one.gpus)] for one in instance.jobs[:4])):
        placed = {one.name: gpus for one, gpus in zip(instance.jobs, chosen, strict=False) if gpus}
        if _fits(instance, placed):
            worth = instance.worth(placed)
            best = min(best, (-worth.gpus_placed, worth.cost))
    exact = place_exactly(instance.jobs[:4], instance.gpus, HORUS_COSTS)
    assert (-exact.gpus_placed, exact.cost) == pytest.approx(best)


def _fits(instance: HorusInstance, placed: dict[str, tuple[str, ...]]) -> bool:
    for gpu in instance.gpus:
        here = [one for one in instance.jobs if gpu.gpu_id in placed.get(one.name, ())]
        used = gpu.memory_used_bytes + sum(one.memory_bytes for one in here)
        busy = gpu.utilization_ratio + sum(one.utilization_ratio for one in here)
        if gpu.jobs + len(here) > 2 or used > gpu.memory_bytes or (gpu.jobs + len(here) > 1 and busy > 2.0):
            return False
    return True


@for_each("seed", range(60), always=15)
def test_sjf_bsbf_gains_no_more_than_the_best_sharing(seed: int) -> None:
    instance = SharingInstance.drawn(seed)
    exact = share_best(instance.sharing_jobs())
    assert instance.gain_ms({name: gpu_ids for name, (gpu_ids, _) in exact.shares.items()}) == pytest.approx(
        exact.gain_ms
    )
    found = instance.gain_ms(instance.heuristic())
    assert 0.0 <= found <= exact.gain_ms + 1e-6


@for_each("seed", range(40), always=15)
def test_the_best_sharing_is_the_one_that_trying_everything_finds(seed: int) -> None:
    instance = SharingInstance.drawn(seed)
    gpu_ids = [f"n0.{index}" for index in range(len(instance.remaining_times))]
    best = 0.0
    for chosen in product(*([(), *combinations(gpu_ids, gpus)] for _, gpus in instance.jobs)):
        taken = [gpu_id for mine in chosen for gpu_id in mine]
        if len(taken) == len(set(taken)):
            best = max(best, instance.gain_ms({f"j{index}": mine for index, mine in enumerate(chosen) if mine}))
    assert share_best(instance.sharing_jobs()).gain_ms == pytest.approx(best)
