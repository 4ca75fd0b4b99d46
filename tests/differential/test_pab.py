"""PAB against obp, and its stops against the rule written down a second time."""

from __future__ import annotations

import random

from scheduler_service.core.decisions import Stop
from scheduler_service.policies.obp import OpportunisticBinPacking
from scheduler_service.policies.pab import PerformanceAwareBinPacking
from tests.support.cases import for_each
from tests.support.crowds import dense_view
from tests.support.scheduling import job, node, running, view


@for_each("seed", range(40), always=15)
def test_without_measurements_pab_decides_as_obp(seed: int) -> None:
    seen = dense_view(seed)
    assert PerformanceAwareBinPacking().decide(seen) == list(OpportunisticBinPacking().decide(seen))


@for_each("seed", range(60), always=20)
def test_the_stopped_job_is_the_newest_next_to_one_that_lost_half(seed: int) -> None:
    generator = random.Random(seed)
    holding = [
        running(
            job(f"r{index}", memory_request_bytes=2**30),
            [f"n0.{gpu}" for gpu in generator.sample(range(3), k=generator.choice((1, 1, 2)))],
            started_at_ms=generator.randrange(200_000),
            step_ms=generator.choice((0.0, 100.0, 150.0, 250.0)),
            solo_step_ms=generator.choice((0.0, 100.0)),
        )
        for index in range(5)
    ]
    seen = view(nodes=[node("n0", 3)], holding=holding, now_ms=200_000)
    expected = set()
    for victim in holding:
        co_located = [
            other
            for other in holding
            if {part.gpu_id for part in other.assignments} & {part.gpu_id for part in victim.assignments}
        ]
        newest = max(co_located, key=lambda one: (one.started_at_ms, one.request.job_id))
        has_lost = victim.solo_step_ms > 0 and victim.step_ms >= 2 * victim.solo_step_ms
        if has_lost and len(co_located) > 1 and newest.started_at_ms <= 140_000:
            expected.add(newest.request.job_id)
    stops = [one.job_id for one in PerformanceAwareBinPacking().decide(seen) if isinstance(one, Stop)]
    assert sorted(stops) == sorted(expected)
