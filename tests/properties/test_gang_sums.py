"""Gangs weighed all at once against the plain rule, one gang after the other, in plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from scheduler_service.policies.pairing.pair_sharing import (
    CoLocatedJob,
    is_worth_sharing,
    shared_pair_sum_ms,
    shared_sum_ms,
    waiting_sum_ms,
)
from scheduler_service.policies.pairing.pair_sums import Gangs, RunningJobs, gang_option, may_pay_as_gangs

LEFTS = (0, 1, 7, 40, 100, 101, 250, 1_000)
WIDTHS = (2, 4, 9)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Running jobs, of which some admit no other, and gangs of three widths that would meet them."""

    remaining_times_ms: list[float]
    gpus: list[int]
    slowdowns: list[list[tuple[float, float]]]
    is_closed: list[bool]
    step_ms: float
    free_count: int

    @classmethod
    def drawn(cls, seed: int, *, is_gang_slowed_alike: bool) -> Moment:
        """Draw one; a few remaining times and slowdowns are equal."""
        generator = random.Random(seed)
        jobs = generator.randrange(0, 15)
        alike = generator.choice((0.0, 0.25, 0.5))

        def pair() -> tuple[float, float]:
            own = alike if is_gang_slowed_alike else generator.choice((0.0, 0.5, generator.uniform(0, 2)))
            return own, generator.choice((0.0, 0.5, generator.uniform(0, 1.5)))

        return cls(
            remaining_times_ms=[generator.choice((0.0, 50_000.0, generator.uniform(0, 300_000))) for _ in range(jobs)],
            gpus=[generator.choice((1, 1, 2, 8)) for _ in range(jobs)],
            slowdowns=[[pair() for _ in range(jobs)] for _ in WIDTHS],
            is_closed=[generator.random() < 0.1 for _ in range(jobs)],
            step_ms=generator.choice((1_000.0, 333.3)),
            free_count=generator.choice((0, 0, 1, 3)),
        )

    def answers(self) -> list[bool]:
        """Ask the columns about every length of every width."""
        options = [
            [
                gang_option(None if closed else self.step_ms, own, other)
                for (own, other), closed in zip(row, self.is_closed, strict=True)
            ]
            for row in self.slowdowns
        ]
        jobs = len(self.remaining_times_ms)
        gangs = Gangs(
            options=np.moveaxis(np.array(options, dtype=np.float64).reshape(len(WIDTHS), jobs, 7), 2, 0),
            shapes=np.repeat(np.arange(len(WIDTHS)), len(LEFTS)),
            left=np.array(LEFTS * len(WIDTHS), dtype=np.float64),
            gpus=np.array(WIDTHS),
        )
        running = RunningJobs(
            remaining_times_ms=np.array(self.remaining_times_ms, dtype=np.float64),
            classes=np.zeros(jobs, dtype=np.intp),
            gpus=np.array(self.gpus, dtype=np.intp),
        )
        return [bool(one) for one in may_pay_as_gangs(gangs, running, self.free_count)]

    def plain(self, shape: int, left: int) -> tuple[bool, bool]:
        """Return whether a gang would start, and whether equal sums leave open which jobs it meets."""
        remaining_ms, width, places = left * self.step_ms, WIDTHS[shape], list[tuple[float, int]]()
        for number, (own, other) in enumerate(self.slowdowns[shape]):
            sum_ms = shared_pair_sum_ms(remaining_ms, self.remaining_times_ms[number], own, other)
            is_worth = is_worth_sharing(sum_ms, remaining_ms + 2 * self.remaining_times_ms[number])
            if is_worth and not self.is_closed[number]:
                places += [(sum_ms, number)] * self.gpus[number]
        places.sort()
        if len(places) + self.free_count < width:
            return False, False
        met = dict.fromkeys(number for _, number in places[:width])
        partners = [
            CoLocatedJob(
                remaining_ms=self.remaining_times_ms[number], slowdown_ratio=other, incoming_slowdown_ratio=own
            )
            for number, (own, other) in ((number, self.slowdowns[shape][number]) for number in met)
        ]
        others = [sum_ms for sum_ms, number in places if number not in met]
        sums = sorted({number: sum_ms for sum_ms, number in places[:width]}.values()) + others[:1]
        has_tie = any(later - sooner <= 1e-9 * later for sooner, later in pairwise(sums))
        is_worth = is_worth_sharing(shared_sum_ms(remaining_ms, partners), waiting_sum_ms(remaining_ms, partners))
        return not met or is_worth, has_tie


@pytest.mark.parametrize("is_gang_slowed_alike", [True, False])
def test_a_gang_that_would_start_is_never_passed_over(is_gang_slowed_alike: bool) -> None:
    passed_over = 0
    for seed in range(150):
        moment = Moment.drawn(seed, is_gang_slowed_alike=is_gang_slowed_alike)
        cases = [(shape, left) for shape in range(len(WIDTHS)) for left in LEFTS]
        for (shape, left), may_pay in zip(cases, moment.answers(), strict=True):
            would_start, has_tie = moment.plain(shape, left)
            assert may_pay or not would_start, (seed, shape, left)
            if is_gang_slowed_alike and not has_tie:
                assert may_pay == would_start, (seed, shape, left)
            passed_over += not may_pay
    assert passed_over > 150
