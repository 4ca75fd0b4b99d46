"""OJPP against the fewest GPUs of all placements, found by trying everything."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.policies.ojpp import Ojpp
from scheduler_service.policies.ojpp_greedy import OjppGreedy
from tests.support.cases import for_each
from tests.support.packing import Instance, Limits, placement_of, random_instance, violations

LIMITS = Limits(tau_max=0.1, theta_max=0.2, theta_diff=0.1)
POLICIES: tuple[Policy, ...] = (
    Ojpp(),
    Ojpp(looks_max=1),
    Ojpp(looks_max=0),
    Ojpp(looks_max=0, listing_order=True),
    OjppGreedy(),
)


def fewest_gpus(instance: Instance) -> int | None:
    """Return the GPUs of the best placement of all jobs, or None when there is no placement of all of them."""
    gpus = [f"g{index}" for index in range(instance.gpus)]
    first, *others = instance.jobs
    # GPUs are alike, so the first job may take the first ones.
    choices = [[tuple(gpus[: first.workers])], *(list(combinations(gpus, one.workers)) for one in others)]
    best: int | None = None
    for chosen in product(*choices):
        placement = dict(zip((one.name for one in instance.jobs), chosen, strict=True))
        used = len({gpu for mine in chosen for gpu in mine})
        if (best is None or used < best) and not violations(instance, placement, LIMITS):
            best = used
    return best


@for_each("seed", range(120), always=30)
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_ojpp_never_uses_fewer_gpus_than_the_exact_minimum(policy: Policy, seed: int) -> None:
    instance = random_instance(seed, jobs_max=4, workers_max=2, gpus=4)
    placement = placement_of(instance, policy.decide(instance.view()))
    assert violations(instance, placement, LIMITS) == []
    if len(placement) == len(instance.jobs):
        exact = fewest_gpus(instance)
        assert exact is not None, f"placed all of {instance}, which no placement does"
        used = len({gpu for gpus in placement.values() for gpu in gpus})
        assert used >= exact, f"{used} GPUs, {used - exact} more than the minimum {exact}, for {instance}"


@for_each("seed", range(60), always=15)
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_with_a_gpu_for_every_worker_every_job_is_placed(policy: Policy, seed: int) -> None:
    instance = random_instance(seed, jobs_max=4, workers_max=2, gpus=8)
    placement = placement_of(instance, policy.decide(instance.view()))
    assert {name: len(gpus) for name, gpus in placement.items()} == {one.name: one.workers for one in instance.jobs}
