"""Jobs that wait together tell how much of a stated length is error."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from random import Random
from statistics import fmean

import pytest

from cotenant_simulator.run.pooled_lengths import StatedLength, corrections_of

QUEUES, DRAWS, JOBS = 60, 19, 21
SIGMA = 0.5
GPUS = (1, 1, 2, 8)


def queue_of(random: Random, *, spread: float, jobs: int = JOBS) -> tuple[dict[str, StatedLength], list[float]]:
    """What is stated of some jobs, and how long they run; wider ones run longer."""
    widths = [random.choice(GPUS) for _ in range(jobs)]
    true_ms = [3_600_000 * gpus**0.5 * exp(random.gauss(0.0, spread)) for gpus in widths]
    stated = {
        f"job-{number}": StatedLength(length_ms=length_ms * exp(random.gauss(0.0, SIGMA)), sigma=SIGMA, gpus=gpus)
        for number, (length_ms, gpus) in enumerate(zip(true_ms, widths, strict=True))
    }
    return stated, true_ms


def drawn_sum_ms(stated: dict[str, StatedLength], random: Random, *, is_corrected: bool) -> float:
    found = corrections_of(stated, random) if is_corrected else {}
    return sum(
        one.length_ms * exp(random.gauss(found[name].shift, found[name].sigma) if found else random.gauss(0.0, SIGMA))
        for name, one in stated.items()
    )


def held_ratio(*, spread: float, is_corrected: bool) -> float:
    """In how many queues the sum of all lengths lies within the middle 80 % of the drawn ones."""
    random, held = Random("queues"), 0
    for _ in range(QUEUES):
        stated, true_ms = queue_of(random, spread=spread)
        sums = sorted(drawn_sum_ms(stated, random, is_corrected=is_corrected) for _ in range(DRAWS))
        held += sums[1] <= sum(true_ms) <= sums[-2]
    return held / QUEUES


@pytest.mark.parametrize("spread", [0.1, 0.5, 2.0])
def test_a_queue_takes_what_is_drawn_for_it_as_often_as_is_said(spread: float) -> None:
    standard_error = (0.8 * 0.2 / QUEUES) ** 0.5
    assert held_ratio(spread=spread, is_corrected=True) == pytest.approx(0.8, abs=2 * standard_error)


def test_without_corrections_the_queues_of_alike_jobs_are_drawn_too_long() -> None:
    assert held_ratio(spread=0.1, is_corrected=False) < 0.5


def test_lengths_that_differ_far_more_than_their_errors_stay_as_they_are_stated() -> None:
    stated, _ = queue_of(Random("wide"), spread=4.0, jobs=200)
    found = corrections_of(stated, None).values()
    assert fmean(abs(one.shift) for one in found) < 0.1
    assert all(one.sigma == pytest.approx(SIGMA, rel=0.02) for one in found)


def test_sure_lengths_are_not_corrected() -> None:
    stated = {f"job-{ms}": StatedLength(length_ms=ms, sigma=0.0, gpus=1) for ms in (5, 50, 70, 100, 200)}
    found = corrections_of(stated, Random("sure")).values()
    assert all(abs(one.shift) < 1e-3 and one.sigma <= 1e-3 for one in found)


def test_a_length_that_is_known_well_stays_among_others_that_are_hardly_known() -> None:
    """What the vague ones say of the spread between true lengths does not make the sure ones alike."""
    random = Random("mixed")
    vague, _ = queue_of(random, spread=1.0, jobs=40)
    stated = {name: replace(one, sigma=2.0) for name, one in vague.items()}
    stated |= {f"sure-{ms}": StatedLength(length_ms=ms * 1e5, sigma=0.05, gpus=1) for ms in (5, 20, 36, 90, 300)}
    for draw in (None, random, random, random):
        found = corrections_of(stated, draw)
        assert all(abs(one.shift) < 0.05 for name, one in found.items() if name.startswith("sure"))
        assert any(abs(one.shift) > 0.5 for name, one in found.items() if name.startswith("job"))


@pytest.mark.parametrize(("jobs", "gpus"), [(0, 1), (1, 1), (2, 1), (3, 4)])
def test_too_few_jobs_tell_nothing_of_each_other(jobs: int, gpus: int) -> None:
    widths = [gpus] * (jobs - 1) + [1]
    stated = {
        f"job-{number}": StatedLength(length_ms=1_000.0 * (number + 1), sigma=SIGMA, gpus=widths[number])
        for number in range(jobs)
    }
    assert corrections_of(stated, Random("few")) == {}
