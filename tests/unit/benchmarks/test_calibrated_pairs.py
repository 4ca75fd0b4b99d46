"""What pairs of a calibration are worth is judged on pairs of jobs that were not in it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibrated_pairs import FIGURES, ask, judge, list_choices
from benchmarks.interference_online import DEVICE, World
from cotenant.job_settings import JobSettings
from predictor_service.inference.records import PairJob

DEMANDS = (1.0, 1.0, 1.0, 0.6, 0.5, 0.4, 0.3)


def world(factor: float) -> World:
    """Jobs that lose `factor` times what fair turns cost; the last one was measured with the first one only."""
    jobs = [
        PairJob(
            job_id=f"job{place}",
            settings=JobSettings(global_batch_size=8),
            known_step_ms=10.0,
            known_utilization_ratio=demand,
            known_memory_bytes=1e9,
        )
        for place, demand in enumerate(DEMANDS)
    ]
    truth = factor * np.outer(DEMANDS, DEMANDS)
    truth[-1, 1:] = truth[1:, -1] = np.nan
    return World(jobs=jobs, truth=truth, graphs={})


def test_pairs_that_were_not_measured_both_ways_are_no_choice() -> None:
    choices = list_choices(world(1.0))
    assert choices["busy"] == [[(0, 1)], [(0, 2)], [(1, 2)]]
    assert choices["waiting"] == [[(3, 4)], [(3, 5)], [(4, 5)]]
    assert all(choice[1:] == [(3, 4), (3, 5), (4, 5)] for choice in choices["calibration"])


def test_a_machine_on_which_jobs_lose_more_than_expected_is_told_better_after_any_of_its_pairs() -> None:
    figures = judge(world(1.5), None, DEVICE)
    assert figures["pairs"] == 6 * 5 + 2
    for way in ("busy", "three busy", "waiting"):
        before, after = (figures[way][side] for side in ("before", "after"))  # type: ignore[index]
        assert set(before) == set(FIGURES)
        assert after["mae"] < before["mae"], way


def test_what_was_handed_in_is_answered_as_measured() -> None:
    known = world(1.5)
    answer = ask(known, None, DEVICE, [(0, 1)])
    assert answer.times_measured[:2, :2].tolist() == [[0, 1], [1, 0]]
    assert float(answer.slowdown_ratio[0, 1]) == pytest.approx(1.5, rel=0.15)
