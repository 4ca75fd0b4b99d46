"""The packing of Pollux under its own rules against every allocation of small clusters."""

from __future__ import annotations

import random
from itertools import product

from cotenant_simulator.pollux_rules.cluster import ClusterShape
from cotenant_simulator.pollux_rules.pollux_packing import Claim, Packing
from cotenant_simulator.pollux_rules.training_job import Allocation
from scheduler_service.policies.elasticity.count_choice import cheapest_counts

CLUSTER = ClusterShape(3, 2)
JOBS = 3
INSTANCES = 60
MEAN_GAP_MAX_RATIO = 0.01


def every_place() -> list[Allocation]:
    counts = product(range(CLUSTER.gpus_per_node + 1), repeat=CLUSTER.nodes)
    return [tuple((node, gpus) for node, gpus in enumerate(one) if gpus) for one in counts]


def is_allowed(places: tuple[Allocation, ...]) -> bool:
    for node in range(CLUSTER.nodes):
        here = [(gpus, len(place) > 1) for place in places for one, gpus in place if one == node]
        if sum(gpus for gpus, _ in here) > CLUSTER.gpus_per_node or sum(spans for _, spans in here) > 1:
            return False
    return True


def claims_of(generator: random.Random, places: list[Allocation]) -> list[Claim]:
    """Jobs that scale more or less, some of them running; a restart costs a tenth to a half of the speed."""
    while True:
        held = tuple(generator.choice([(), generator.choice(places)]) for _ in range(JOBS))
        if is_allowed(held):
            break
    claims = []
    for place in held:
        power, kept_ratio, far_ratio = (
            generator.uniform(0.3, 1.0),
            generator.uniform(0.5, 0.9),
            generator.uniform(0.6, 1.0),
        )
        near = [gpus**power for gpus in range(CLUSTER.gpus + 1)]
        speed = near[sum(gpus for _, gpus in place)] * (far_ratio if len(place) > 1 else 1.0)
        claims.append(
            Claim(
                allocation=place,
                near_costs=[1 / (one * kept_ratio + 1e-3) for one in near],
                far_costs=[1 / (one * kept_ratio * far_ratio + 1e-3) for one in near],
                keep_cost=1 / (speed + 1e-3),
            )
        )
    return claims


def total(claims: list[Claim], places: tuple[Allocation, ...] | list[Allocation]) -> float:
    return sum(claim.cost(place) for claim, place in zip(claims, places, strict=True))


def test_the_packing_is_near_the_best_of_all_allocations() -> None:
    generator, places = random.Random(5), every_place()
    allowed = [one for one in product(places, repeat=JOBS) if is_allowed(one)]
    gaps = []
    for _ in range(INSTANCES):
        claims = claims_of(generator, places)
        counts = cheapest_counts([claim.costs(CLUSTER.gpus_per_node) for claim in claims], CLUSTER.gpus)
        found = Packing(CLUSTER, claims).place(counts)
        assert is_allowed(tuple(found))
        best = min(total(claims, one) for one in allowed)
        gaps.append(total(claims, found) / best - 1)
        assert gaps[-1] >= -1e-9
    assert sum(gaps) / len(gaps) <= MEAN_GAP_MAX_RATIO, sorted(gaps)[-5:]


def test_a_cluster_without_conflicts_is_packed_as_the_knapsack_says() -> None:
    """Alone on the cluster a job gets exactly the cheapest count."""
    costs = [100.0, 9.0, 5.0, 4.0, 3.0, 2.0, 2.5]
    claim = Claim(allocation=(), near_costs=costs, far_costs=costs, keep_cost=costs[0])
    (place,) = Packing(CLUSTER, [claim]).place(cheapest_counts([claim.costs(2)], CLUSTER.gpus))
    assert sum(gpus for _, gpus in place) == 5
    assert place == ((0, 2), (1, 2), (2, 1))
