"""OJPAP's plans against OJPP's constraints written down a second time, and its first move against all of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler_service.core.decisions import Migrate
from scheduler_service.core.view import SchedulingView
from scheduler_service.policies.ojpap import Ojpap
from tests.support.packing import Instance, Limits, Packed, violations

LIMITS = Limits(tau_max=0.1, theta_max=0.2, theta_diff=0.1)
Placement = dict[str, list[str]]


def drawn(seed: int) -> tuple[Instance, SchedulingView]:
    """Running jobs of one or two workers, each device within everything but the limits of slowdown."""
    luck = random.Random(seed)
    gpus = luck.randint(3, 5)
    jobs = tuple(
        Packed(
            name=f"j{index}",
            workers=luck.choice((1, 1, 2)),
            alpha=0.2,
            gamma=luck.choice((0.1, 0.3)),
            delta=luck.choice((0.0, 0.2)),
            p=luck.choice((0.0, 0.1, 0.2)),
        )
        for index in range(luck.randint(3, 6))
    )
    names = [one.name for one in jobs]
    slowdowns = {(one, two): luck.choice((0.0, 0.0, 0.05, 0.4)) for one in names for two in names if one != two}
    held = {one.name: luck.sample([f"g{index}" for index in range(gpus)], k=one.workers) for one in jobs}
    instance = Instance(jobs=jobs, gpus=gpus, slowdowns=slowdowns, held=held)
    seen = instance.view()
    measured = {
        gpu_id: replace(
            entry, gpu=replace(entry.gpu, slowdown_ewma_ratio=expected(instance, held, f"g{entry.gpu.index}"))
        )
        for gpu_id, entry in seen.gpus.items()
    }
    return instance, replace(seen, gpus=measured)


def expected(instance: Instance, placement: Placement, gpu: str) -> float:
    there = [name for name, gpus in placement.items() if gpu in gpus]
    return max((instance.slowdown(one, [two for two in there if two != one]) for one in there), default=0.0)


def moves_of(seen: SchedulingView, cost_max_ms: int) -> list[tuple[str, list[str]]]:
    policy = Ojpap(settle_ms=0, cost_max_ms=cost_max_ms, migration_cost_ms=1_000)
    decisions = [one for one in policy.decide(seen) if isinstance(one, Migrate)]
    return [(one.job_id, [part.gpu_id.replace("n0.", "g") for part in one.assignments]) for one in decisions]


@pytest.mark.parametrize("seed", range(300))
def test_every_move_breaks_nothing_new_and_lowers_what_its_device_suffers(seed: int) -> None:
    instance, seen = drawn(seed)
    placement = {name: list(gpus) for name, gpus in instance.held.items()}
    for name, gpus in moves_of(seen, 2_000):
        (source,) = set(placement[name]) - set(gpus)
        (target,) = set(gpus) - set(placement[name])
        before = max(expected(instance, placement, gpu) for gpu in (source, target))
        was_broken = set(violations(instance, placement, LIMITS))
        placement[name] = gpus
        broken = set(violations(instance, placement, LIMITS))
        assert not {one for one in broken - was_broken if target in one or "Eq. 8" in one}
        assert max(expected(instance, placement, gpu) for gpu in (source, target)) < before
    assert len(moves_of(seen, 2_000)) <= 2


@pytest.mark.parametrize("seed", range(300))
def test_the_first_move_goes_to_the_best_of_all_valid_devices(seed: int) -> None:
    instance, seen = drawn(seed)
    moves = moves_of(seen, 1_000)
    if not moves:
        return
    (name, gpus) = moves[0]
    (source,) = set(instance.held[name]) - set(gpus)
    (target,) = set(gpus) - set(instance.held[name])
    found = []
    for other in (f"g{index}" for index in range(instance.gpus)):
        if other in instance.held[name]:
            continue
        placement = {one: list(where) for one, where in instance.held.items()}
        before = max(expected(instance, placement, gpu) for gpu in (source, other))
        is_new = not any(other in where for where in placement.values())
        placement[name] = [other if gpu == source else gpu for gpu in placement[name]]
        after = [expected(instance, placement, gpu) for gpu in (source, other)]
        touched = {one for one, where in placement.items() if {source, other} & set(where)}
        broken = [
            one
            for one in violations(instance, placement, LIMITS)
            if one.endswith(other) or ("Eq. 8" in one and one.split()[-1] in touched)
        ]
        measured = seen.gpus[f"n0.{other[1:]}"].gpu.slowdown_ewma_ratio
        if not broken and max(after) < before and (is_new or measured <= 0.2):
            found.append((is_new, round(after[1], 9), other))
    assert (min(found)[:2]) == next(one[:2] for one in found if one[2] == target)
