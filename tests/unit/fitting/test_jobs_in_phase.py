"""Pairs that a campaign began at one instant: equal steps stay in phase there, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from predictor_service.features.pair_features import (
    SoloFigures,
    build_pair_features,
    fair_share_slowdowns,
    lockstep_slowdowns,
)
from predictor_service.fitting.fit import fit_rows
from predictor_service.fitting.known_rows import read_known_rows
from predictor_service.learning.learning_task import JobFacts, LearningTask
from predictor_service.learning.learning_task import SoloFigures as MeasuredAlone
from predictor_service.selection.targets import SLOWDOWN
from tests.support.few_candidates import few_candidates

DEVICE = "cpu-standin"
MEMORY_BYTES = 100 << 20


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    with few_candidates():
        yield


def figures_of(utilization_ratio: tuple[float, float], step_ms: tuple[float, float]) -> SoloFigures:
    return SoloFigures(
        utilization_ratio=np.array(utilization_ratio),
        step_ms=np.array(step_ms),
        memory_bytes=np.full(2, float(MEMORY_BYTES)),
        input_wait_ratio=1.0 - np.array(utilization_ratio),
    )


def slow_in_phase(utilization_ratio: tuple[float, float], step_ms: tuple[float, float]) -> float:
    jobs = figures_of(utilization_ratio, step_ms)
    return float(lockstep_slowdowns(jobs, np.array([0]), np.array([1]))[0])


def job_of(number: int, campaign: str) -> JobFacts:
    utilization_ratio = 0.25 + 0.02 * number
    return JobFacts(
        job_key=f"{number:064x}",
        architecture=f"network_{number}",
        family=f"family_{number}",
        batch=8,
        micro_batch_size=8,
        device=DEVICE,
        optimizer="adam",
        precision="fp32",
        input_wait_ratio=1.0 - utilization_ratio,
        gpus=1,
        labels={"campaign": campaign},
        solo=MeasuredAlone(
            step_ms=10.0 * 1.3**number, utilization_ratio=utilization_ratio, memory_bytes=float(MEMORY_BYTES)
        ),
    )


def measured_pairs(campaign: str) -> LearningTask:
    """Every pair of eight jobs that wait: copies wanted the device at the same times, all others by chance."""
    jobs = [job_of(number, campaign) for number in range(8)]
    pairs = [(victim, other) for victim in jobs for other in jobs]
    shares = np.array([[job.solo.utilization_ratio or 0.0 for job in pair] for pair in pairs])
    is_copy = np.array([victim is other for victim, other in pairs])
    return LearningTask(
        target=SLOWDOWN,
        device=DEVICE,
        campaign=campaign,
        measured=np.where(is_copy, shares.min(axis=1), shares.prod(axis=1)),
        row_ids=tuple(f"run-{row}" for row in range(len(pairs))),
        jobs=tuple(victim for victim, _ in pairs),
        others=tuple((other,) for _, other in pairs),
    )


def test_jobs_of_equal_steps_that_begin_together_want_the_device_at_the_same_times() -> None:
    assert slow_in_phase((0.4, 0.4), (30.0, 30.0)) == pytest.approx(0.4)
    assert slow_in_phase((0.4, 0.3), (30.0, 30.3)) == pytest.approx(0.3)


def test_jobs_of_other_steps_and_jobs_that_never_wait_take_fair_turns_however_they_begin() -> None:
    assert slow_in_phase((0.4, 0.4), (30.0, 33.0)) == pytest.approx(0.16)
    assert slow_in_phase((1.0, 0.4), (30.0, 30.0)) == pytest.approx(0.4)
    assert slow_in_phase((1.0, 1.0), (30.0, 30.0)) == pytest.approx(1.0)


def test_only_rows_of_campaigns_are_read_as_begun_at_one_instant() -> None:
    copies = [place for place in range(64) if place % 9 == 0]
    shares = np.array([0.25 + 0.02 * number for number in range(8)])
    begun_together = read_known_rows(measured_pairs("cpu_standin_large").subset(copies))
    begun_apart = read_known_rows(measured_pairs("collected_0123abcd").subset(copies))
    assert begun_together.analytical_estimate == pytest.approx(shares)
    assert begun_apart.analytical_estimate == pytest.approx(shares**2)


def test_copies_measured_in_phase_do_not_teach_that_other_jobs_of_the_same_needs_cost_more() -> None:
    served = fit_rows(measured_pairs("cpu_standin_large"), "family", 0).served
    asked = figures_of((0.31, 0.33), (17.0, 19.5))
    victim, other = np.array([0, 1]), np.array([1, 0])
    turns = fair_share_slowdowns(asked, victim, other)
    answer = served.predict(build_pair_features(asked, victim, other, 2 << 30), turns)
    assert answer == pytest.approx(turns, abs=0.01)
