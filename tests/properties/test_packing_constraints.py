"""Whatever is running and waiting, packing policies keep their constraints on every GPU that they touch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.ojpp import Ojpp
from tests.support.packing import Instance, Limits, Packed, placement_of, random_instance, violations

ratios = st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.4, 0.6, 0.9])
packed_jobs = st.lists(
    st.builds(
        Packed,
        name=st.uuids().map(str),
        workers=st.integers(1, 3),
        alpha=ratios,
        gamma=ratios,
        delta=ratios,
        p=ratios,
    ),
    min_size=1,
    max_size=7,
)


def instance_of(jobs: list[Packed], gpus: int, seed: int) -> Instance:
    """Some of the jobs run already, at random places, be it against the constraints."""
    generator = random.Random(seed)
    every = [f"g{index}" for index in range(gpus)]
    narrow = [replace(one, workers=min(one.workers, gpus)) for one in jobs]
    held = {one.name: generator.sample(every, one.workers) for one in narrow if generator.random() < 0.4}
    names = [one.name for one in narrow]
    slowdowns = {(one, two): generator.choice((0.0, 0.02, 0.06, 0.15, 0.4)) for one in names for two in names}
    return Instance(jobs=tuple(narrow), gpus=gpus, slowdowns=slowdowns, held=held)


@given(
    jobs=packed_jobs,
    gpus=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    policy=st.builds(
        Ojpp,
        tau_max=ratios,
        theta_max=ratios,
        theta_diff=ratios,
        listing_order=st.booleans(),
        looks_max=st.sampled_from([0, 1, 2_000]),
    ),
)
def test_ojpp_keeps_every_constraint_on_every_gpu_and_job_it_touches(
    jobs: list[Packed], gpus: int, seed: int, policy: Ojpp
) -> None:
    instance = instance_of(jobs, gpus, seed)
    decisions = list(unfolded(policy.decide(instance.view())))
    placement = placement_of(instance, decisions)
    started = [one.job_id for one in decisions if isinstance(one, Start)]
    touched_gpus = {gpu for name in started for gpu in placement[name]}
    touched_jobs = {name for name, mine in placement.items() if touched_gpus & set(mine)}
    forbidden = {f"Eq. {number} on {gpu}" for number in (1, 3, 5, 7) for gpu in touched_gpus}
    forbidden |= {f"Eq. 8 for {name}" for name in touched_jobs}
    limits = Limits(tau_max=policy.tau_max, theta_max=policy.theta_max, theta_diff=policy.theta_diff)
    assert forbidden.isdisjoint(violations(instance, placement, limits))
    assert all(len(set(placement[name])) == instance.named(name).workers for name in started)


@pytest.mark.endurance
@pytest.mark.timeout(1_800)
def test_ojpp_keeps_every_constraint_in_100_000_random_placements() -> None:
    limits, placed, seed = Limits(tau_max=0.1, theta_max=0.2, theta_diff=0.1), 0, 0
    while placed < 100_000:
        instance = random_instance(seed, jobs_max=12, workers_max=3, gpus=12)
        placement = placement_of(instance, Ojpp().decide(instance.view()))
        assert violations(instance, placement, limits) == [], f"instance {seed}"
        placed += sum(map(len, placement.values()))
        seed += 1
