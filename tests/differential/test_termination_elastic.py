"""Elasticity by termination against every next step written out."""

from __future__ import annotations

import random

from scheduler_service.core.decisions import Reshape, Start, unfolded
from scheduler_service.policies.termination_elastic import TerminationElastic
from tests.support.cases import for_each
from tests.support.elastic import elastic_view

POLICY = TerminationElastic(restart_cost_ms=20_000)


@for_each("seed", range(200))
def test_the_best_of_all_next_steps_is_taken_if_it_is_better_than_none(seed: int) -> None:
    generator = random.Random(seed)
    held = {
        name: ({one: float(generator.randrange(30, 300)) for one in {1, *generator.sample(range(2, 6), k=2)}}, (index,))
        for index, name in enumerate("abc")
    }
    idle = generator.randint(0, 5)
    ends = {name: remaining_times[1] for name, (remaining_times, _) in held.items()}
    best: tuple[tuple[float, float], int, str] | None = None
    for name, (remaining_times, _) in held.items():
        step = min(count for count in remaining_times if count > 1)
        after = {**ends, name: remaining_times[step] + 20.0}
        found = (max(after.values()), sum(after.values())), step, name
        if step <= 1 + idle and found[0] < (max(ends.values()), sum(ends.values())) and (best is None or found < best):
            best = found
    decisions = POLICY.decide(elastic_view(gpus=3 + idle, held=held, waiting={}))
    grown = [(one.job_id, len(one.assignments)) for one in decisions if isinstance(one, Reshape)]
    assert grown == ([(best[2], best[1])] if best else [])


@for_each("seed", range(50))
def test_jobs_start_in_order_at_their_smallest_number_until_one_does_not_fit(seed: int) -> None:
    generator = random.Random(seed)
    waiting = {f"j{index}": dict.fromkeys(generator.sample(range(1, 5), k=2), 100.0) for index in range(6)}
    free = gpus = generator.randint(4, 9)
    expected = {}
    for name, remaining_times in waiting.items():
        if min(remaining_times) > free:
            break
        expected[name] = min(remaining_times)
        free -= min(remaining_times)
    decisions = unfolded(POLICY.decide(elastic_view(gpus=gpus, held={}, waiting=waiting)))
    assert {one.job_id: len(one.assignments) for one in decisions if isinstance(one, Start)} == expected
