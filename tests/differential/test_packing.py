"""Packing policies against an implementation of a few lines on plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.policies.b_greedy import BGreedy
from scheduler_service.policies.best_fit import BestFit
from scheduler_service.policies.c_greedy import CGreedy
from scheduler_service.policies.i_greedy import IGreedy
from scheduler_service.policies.obp import OpportunisticBinPacking
from scheduler_service.policies.ojpp import Ojpp
from scheduler_service.policies.ojpp_greedy import OjppGreedy
from tests.support.cases import for_each
from tests.support.packing import Instance, Limits, Packed, placement_of, random_instance, violations
from tests.support.scheduling import GIB

SEEDS = range(150)
OJPP = Limits(tau_max=0.1, theta_max=0.2, theta_diff=0.1)
LIMITS = {
    "best_fit": Limits(one_surge=False),
    "i_greedy": Limits(one_surge=False, theta_max=0.2),
    "b_greedy": Limits(one_surge=False, theta_diff=0.1),
    "c_greedy": Limits(tau_max=0.1),
    "ojpp_greedy": OJPP,
    "ojpp": OJPP,
}
POLICIES: dict[str, Policy] = {
    "best_fit": BestFit(),
    "i_greedy": IGreedy(theta_max=0.2),
    "b_greedy": BGreedy(theta_diff=0.1),
    "c_greedy": CGreedy(tau_max=0.1),
    "ojpp_greedy": OjppGreedy(tau_max=0.1, theta_max=0.2, theta_diff=0.1),
    "ojpp": Ojpp(looks_max=0, tau_max=0.1, theta_max=0.2, theta_diff=0.1),
}


def leftover(instance: Instance, placement: Mapping[str, Sequence[str]], gpu: str, *, one_surge: bool) -> float:
    there = [instance.named(name) for name, gpus in placement.items() if gpu in gpus]
    surges = [one.delta for one in there]
    memory = sum(one.gamma for one in there) + (max(surges) if one_surge else sum(surges))
    return round(2 - sum(one.alpha for one in there) - memory, 9)


def worst_slowdown(instance: Instance, placement: Mapping[str, Sequence[str]], gpu: str) -> float:
    there = [name for name, gpus in placement.items() if gpu in gpus]
    return round(max(instance.slowdown(name, [other for other in there if other != name]) for name in there), 9)


def sorted_in_every_round(instance: Instance) -> list[Packed]:
    """Algorithm 3 with the sort in its loop: the most easygoing of those that remain comes next."""
    left = sorted(instance.jobs, key=lambda one: (-one.alpha, -one.beta))
    order = []
    while left:

        def gregariousness(one: Packed, queue: Sequence[Packed] = tuple(left)) -> float:
            partners = [other.p for other in queue if other is not one or one.workers > 1]
            return one.p * max(partners, default=0.0)

        order.append(min(left, key=gregariousness))
        left.remove(order[-1])
    return order


def spread(
    one: Packed, placement: Mapping[str, list[str]], gpus: Sequence[str], is_fine: Callable[..., bool], key: Any
) -> list[str] | None:
    """Give worker after worker the best device that keeps every limit; None = some worker finds none."""
    mine: list[str] = []
    while len(mine) < one.workers:
        options = [gpu for gpu in gpus if gpu not in mine and is_fine({**placement, one.name: [*mine, gpu]})]
        if not options:
            return None
        mine.append(min(options, key=lambda gpu: (key({**placement, one.name: [gpu]}, gpu), gpu)))
    return mine


def packed_in_a_few_lines(instance: Instance, name: str) -> dict[str, list[str]]:
    limits = LIMITS[name]
    placement: dict[str, list[str]] = {}
    largest_first = sorted(instance.jobs, key=lambda one: (-one.alpha, -one.beta))
    order = sorted_in_every_round(instance) if name == "ojpp" else largest_first
    for one in order:
        in_use = sorted({gpu for gpus in placement.values() for gpu in gpus})
        every = [f"g{index}" for index in range(instance.gpus)]

        def is_fine(tried: Mapping[str, list[str]]) -> bool:
            return not violations(instance, tried, limits)

        def is_fine_with_new(tried: Mapping[str, list[str]], job: str = one.name) -> bool:
            """Line 11: one worker more, on a device of its own, is slowed down by no other."""
            return not violations(instance, {**tried, job: [*tried[job], "elsewhere"]}, limits)

        def worth(tried: Mapping[str, list[str]], gpu: str, used: Sequence[str] = tuple(in_use)) -> tuple[float, ...]:
            first = worst_slowdown(instance, tried, gpu) if name in ("ojpp", "ojpp_greedy") else 0.0
            return gpu not in used, first, leftover(instance, tried, gpu, one_surge=limits.one_surge)

        found = spread(one, placement, in_use, is_fine, worth)
        found = found or spread(one, placement, every, is_fine_with_new, worth)
        if found is not None:
            placement[one.name] = found
    return placement


@for_each("seed", SEEDS)
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_packing_policies_pack_what_a_few_lines_pack(name: str, seed: int) -> None:
    instance = random_instance(seed)
    expected = packed_in_a_few_lines(instance, name)
    assert placement_of(instance, POLICIES[name].decide(instance.view())) == expected
    assert violations(instance, expected, LIMITS[name]) == []


def most_free_first(instance: Instance, slots: int) -> dict[str, list[str]]:
    """Every job takes one slot of a GPU's memory; jobs in order of arrival."""
    used = {f"g{index}": 0 for index in range(instance.gpus)}
    placement: dict[str, list[str]] = {}
    for one in instance.jobs:
        emptiest = sorted((gpu for gpu in used if used[gpu] < slots), key=lambda gpu: (used[gpu], gpu))
        if len(emptiest) >= one.workers:
            placement[one.name] = emptiest[: one.workers]
            for gpu in placement[one.name]:
                used[gpu] += 1
    return placement


@for_each("seed", SEEDS)
def test_obp_takes_the_gpus_with_most_free_memory(seed: int) -> None:
    instance = replace(random_instance(seed, jobs_max=9, gpus=4), request_bytes=4 * GIB)
    decisions = OpportunisticBinPacking().decide(instance.view())
    assert placement_of(instance, decisions) == most_free_first(instance, slots=2)
