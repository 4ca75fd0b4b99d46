"""Elastic reshaping against every plan written out: all counts, all victims, all their smaller counts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from scheduler_service.core.decisions import Reshape, Start, unfolded
from scheduler_service.policies.elastic import Elastic
from tests.support.cases import for_each
from tests.support.elastic import RemainingTimes, elastic_view

COST_S, START_S = 7.0, 3.0
POLICY = Elastic(reshape_cost_ms=7_000, restart_cost_ms=7_000, start_cost_ms=3_000)
Held = dict[str, tuple[RemainingTimes, tuple[int, ...]]]
Plan = tuple[float, float, int, str, int, int]
"""End of the last job, sum of ends, GPUs taken, victim, the new job's GPUs, what the victim keeps."""


def drawn(seed: int) -> tuple[int, Held, RemainingTimes]:
    generator = random.Random(seed)
    held: Held = {}
    gpus, position = generator.randint(2, 7), 0
    for name in "abc":
        count = generator.randint(1, 3)
        if position + count <= gpus:
            counts = {count, *generator.sample(range(1, 6), k=2)}
            held[name] = (
                {one: float(generator.randrange(50, 500)) for one in counts},
                tuple(range(position, position + count)),
            )
            position += count
    return gpus, held, {one: float(generator.randrange(50, 500)) for one in generator.sample(range(1, 6), k=2)}


def plans(gpus: int, held: Held, new: RemainingTimes) -> Iterator[Plan]:
    idle = gpus - sum(len(where) for _, where in held.values())
    ends = {name: remaining_times[len(where)] for name, (remaining_times, where) in held.items()}

    def plan(changes: dict[str, float], taken: int, victim: str, count: int, kept: int) -> Plan:
        after = {**ends, **changes}
        return max(after.values()), sum(after.values()), taken, victim, count, kept

    for count, seconds in new.items():
        if count <= idle:
            yield plan({"new": seconds + START_S}, 0, "", count, 0)
            continue
        for name, (remaining_times, where) in held.items():
            for less in remaining_times:
                if less < len(where) and count <= idle + len(where) - less:
                    changes = {"new": seconds + START_S + COST_S, name: remaining_times[less] + COST_S}
                    yield plan(changes, len(where) - less, name, count, less)


@for_each("seed", range(300), always=75)
def test_the_best_of_all_plans_is_taken(seed: int) -> None:
    gpus, held, new = drawn(seed)
    decisions = list(unfolded(POLICY.decide(elastic_view(gpus=gpus, held=held, waiting={"new": new}))))
    reshapes = [(one.job_id, len(one.assignments)) for one in decisions if isinstance(one, Reshape)]
    starts = [len(one.assignments) for one in decisions if isinstance(one, Start)]
    best = min(plans(gpus, held, new), default=None)
    if best is None:
        assert (reshapes, starts) == ([], [])
    elif best[3]:
        assert (reshapes, starts) == ([(best[3], best[5])], [])
    else:
        assert starts == [best[4]]


@for_each("seed", range(300), always=75)
def test_the_best_of_all_growths_is_taken_if_it_is_better_than_none(seed: int) -> None:
    gpus, held, _ = drawn(seed)
    idle = gpus - sum(len(where) for _, where in held.values())
    ends = {name: remaining_times[len(where)] for name, (remaining_times, where) in held.items()}
    best = (max(ends.values(), default=0.0), sum(ends.values()), 0, "")
    for name, (remaining_times, where) in held.items():
        for more in remaining_times:
            if len(where) < more <= len(where) + idle:
                after = {**ends, name: remaining_times[more] + COST_S}
                schedule_objective = max(after.values()), sum(after.values())
                best = (
                    min(best, (*schedule_objective, more, name)) if schedule_objective < best[:2] or best[3] else best
                )
    found = [
        (one.job_id, len(one.assignments))
        for one in POLICY.decide(elastic_view(gpus=gpus, held=held, waiting={}))
        if isinstance(one, Reshape)
    ]
    assert found == ([(best[3], best[2])] if best[3] else [])
