"""OJPAP's plans against OJPP's constraints written down a second time, and its first move against all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Migrate
from scheduler_service.policies.ojpap import Ojpap
from tests.support.cases import for_each
from tests.support.packing import Instance, Limits, Packed, violations

LIMIT_RATIO = 0.2
LIMITS = Limits(tau_max=0.1, theta_max=LIMIT_RATIO, theta_diff=0.1)
Placement = dict[str, list[str]]


def drawn(seed: int) -> tuple[Instance, SchedulingView]:
    """Running jobs of one or two workers, each device within everything but the limits of slowdown."""
    generator = random.Random(seed)
    gpus = generator.randint(3, 5)
    jobs = tuple(
        Packed(
            name=f"j{index}",
            workers=generator.choice((1, 1, 2)),
            alpha=0.2,
            gamma=generator.choice((0.1, 0.3)),
            delta=generator.choice((0.0, 0.2)),
            p=generator.choice((0.0, 0.1, 0.2)),
        )
        for index in range(generator.randint(3, 6))
    )
    names = [one.name for one in jobs]
    slowdowns = {(one, two): generator.choice((0.0, 0.0, 0.05, 0.4)) for one in names for two in names if one != two}
    held = {one.name: generator.sample([f"g{index}" for index in range(gpus)], k=one.workers) for one in jobs}
    instance = Instance(jobs=jobs, gpus=gpus, slowdowns=slowdowns, held=held)
    seen = instance.view()
    measured = {gpu_id: expected(instance, held, f"g{entry.gpu.index}") for gpu_id, entry in seen.gpus.items()}
    return instance, replace(seen, slowdown_ewma_ratios=measured)


def expected(instance: Instance, placement: Placement, gpu: str) -> float:
    there = [name for name, gpus in placement.items() if gpu in gpus]
    return max((instance.slowdown(one, [two for two in there if two != one]) for one in there), default=0.0)


def moves_of(seen: SchedulingView, cost_max_ms: int) -> list[tuple[str, list[str]]]:
    policy = Ojpap(settle_ms=0, cost_max_ms=cost_max_ms, migration_cost_ms=1_000, unshare=False)
    decisions = [one for one in policy.decide(seen) if isinstance(one, Migrate)]
    return [(one.job_id, [part.gpu_id.replace("n0.", "g") for part in one.assignments]) for one in decisions]


def broken_by(instance: Instance, before: Placement, after: Placement, mover: str) -> list[str]:
    """Return what a move breaks on the mover's new devices, for the mover, or for any job that it slows down there."""
    targets = set(after[mover]) - set(before[mover])
    there = {name for name, gpus in after.items() if targets & set(gpus)} | {mover}
    return [
        one
        for one in violations(instance, after, LIMITS)
        if one.split()[-1] in targets or ("Eq. 8" in one and one.split()[-1] in there)
    ]


def is_lower(instance: Instance, before: Placement, after: Placement, mover: str, source: str) -> bool:
    """Whether the mover's new devices and the one that it leaves first suffer less than that one did."""
    targets = set(after[mover]) - set(before[mover])
    return max(expected(instance, after, gpu) for gpu in (source, *targets)) < expected(instance, before, source)


def stages(instance: Instance, placement: Placement) -> list[tuple[str, str]]:
    """Return (device, job) in the order in which a plan's first move is looked for; all jobs cost the same."""
    in_use = sorted({gpu for gpus in placement.values() for gpu in gpus})
    worst = sorted(in_use, key=lambda gpu: -round(expected(instance, placement, gpu), 9))[: -(-len(in_use) // 2)]
    return [
        (gpu, name)
        for gpu in worst
        if expected(instance, placement, gpu) > LIMIT_RATIO
        for name in sorted(placement, key=lambda name: (len(placement[name]), name))
        if gpu in placement[name]
    ]


def placements_of(instance: Instance, placement: Placement, mover: str, source: str) -> Iterator[Placement]:
    """Yield every placement in which the mover has left a device, with any of its other workers or none."""
    others = [gpu for gpu in (f"g{index}" for index in range(instance.gpus)) if gpu != source]
    for gpus in permutations(others, len(placement[mover])):
        yield {**placement, mover: list(gpus)}


def single_moves(instance: Instance, placement: Placement, mover: str, source: str) -> list[tuple[bool, float, str]]:
    """Return (unused, worst slowdown there, device) of every valid move of one worker."""
    found = []
    for target in (f"g{index}" for index in range(instance.gpus)):
        if target in placement[mover]:
            continue
        after = {**placement, mover: [target if gpu == source else gpu for gpu in placement[mover]]}
        there = [gpus for gpus in placement.values() if target in gpus]
        if len(there) > 1 and expected(instance, placement, target) > LIMIT_RATIO:
            continue
        if is_lower(instance, placement, after, mover, source) and not broken_by(instance, placement, after, mover):
            found.append((not there, round(expected(instance, after, target), 9), target))
    return sorted(found)


@for_each("seed", range(300), always=75)
def test_every_move_breaks_nothing_and_lowers_what_its_device_suffers(seed: int) -> None:
    instance, seen = drawn(seed)
    placement = {name: list(gpus) for name, gpus in instance.held.items()}
    moves = moves_of(seen, 2_000)
    assert len(moves) <= 2
    for name, gpus in moves:
        after = {**placement, name: gpus}
        sources = set(placement[name]) - set(gpus)
        assert not broken_by(instance, placement, after, name)
        assert any(
            is_lower(instance, placement, after, name, one) and expected(instance, placement, one) > LIMIT_RATIO
            for one in sources
        )
        placement = after


@for_each("seed", range(300), always=75)
def test_the_first_move_is_the_best_of_all_valid_ones_of_one_worker_or_one_of_several_before_it(seed: int) -> None:
    instance, seen = drawn(seed)
    placement = {name: list(gpus) for name, gpus in instance.held.items()}
    moves = moves_of(seen, 1_000)
    for source, name in stages(instance, placement):
        singles = single_moves(instance, placement, name, source)
        if moves and moves[0][0] == name and source not in moves[0][1]:
            targets = set(moves[0][1]) - set(placement[name])
            if singles:
                assert len(targets) == 1
                assert next(one[:2] for one in singles if one[2] in targets) == singles[0][:2]
            else:
                assert len(targets) > 1
            return
        assert not singles, f"{name} could leave {source}"
    assert not moves


def test_no_job_stays_on_the_device_that_suffers_most_if_one_could_leave_it() -> None:
    """The ruler tries all devices for all workers of every job there."""
    possible = 0
    for seed in range(1_000, 1_400):
        instance, seen = drawn(seed)
        placement = {name: list(gpus) for name, gpus in instance.held.items()}
        order = stages(instance, placement)
        if not order:
            continue
        worst = order[0][0]
        could_leave = any(
            is_lower(instance, placement, after, name, worst) and not broken_by(instance, placement, after, name)
            for source, name in order
            if source == worst
            for after in placements_of(instance, placement, name, worst)
        )
        has_left = any(worst not in gpus for name, gpus in moves_of(seen, 1_000) if worst in placement[name])
        assert could_leave == has_left
        possible += could_leave
    assert possible == 225
