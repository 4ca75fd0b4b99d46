"""Pairs that a campaign began at one instant: copies stay in phase there, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from predictor_service.features.pair_features import SoloFigures, build_pair_features, fair_share_slowdowns
from predictor_service.fitting.fit import fit_rows
from predictor_service.fitting.known_rows import read_known_rows
from predictor_service.learning.learning_task import JobFacts, LearningTask
from predictor_service.learning.learning_task import SoloFigures as MeasuredAlone
from predictor_service.selection.targets import SLOWDOWN
from tests.support.few_candidates import few_candidates

DEVICE = "cpu-standin"
MEMORY_BYTES = 100 << 20
JOBS = 8
SHARES = np.array([0.25 + 0.02 * number for number in range(JOBS)])


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    with few_candidates():
        yield


def job_of(number: int, campaign: str) -> JobFacts:
    share = float(SHARES[number])
    return JobFacts(
        job_key=f"{number:064x}",
        architecture=f"network_{number}",
        family=f"family_{number}",
        batch=8,
        micro_batch_size=8,
        device=DEVICE,
        optimizer="adam",
        precision="fp32",
        input_wait_ratio=1.0 - share,
        gpus=1,
        labels={"campaign": campaign},
        solo=MeasuredAlone(step_ms=10.0 * 1.3**number, utilization_ratio=share, memory_bytes=float(MEMORY_BYTES)),
    )


def measured_pairs(campaign: str) -> LearningTask:
    """Every pair of eight jobs that wait: copies wanted the device at the same times, all others by chance."""
    jobs = [job_of(number, campaign) for number in range(JOBS)]
    return LearningTask(
        target=SLOWDOWN,
        device=DEVICE,
        campaign=campaign,
        measured=np.where(np.eye(JOBS, dtype=bool), SHARES, np.outer(SHARES, SHARES)).reshape(-1),
        row_ids=tuple(f"run-{row}" for row in range(JOBS**2)),
        jobs=tuple(victim for victim in jobs for _ in jobs),
        others=tuple((other,) for _ in jobs for other in jobs),
    )


def estimates_of(campaign: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return read_known_rows(measured_pairs(campaign)).analytical_estimate.reshape(JOBS, JOBS)


def test_copies_that_a_campaign_began_at_one_instant_want_the_device_at_the_same_times() -> None:
    assert np.diag(estimates_of("cpu_standin_large")) == pytest.approx(SHARES)


@pytest.mark.parametrize("campaign", ["collected_0123abcd", "outcomes"])
def test_copies_that_a_scheduler_placed_take_turns(campaign: str) -> None:
    assert estimates_of(campaign) == pytest.approx(np.outer(SHARES, SHARES))


def test_all_other_jobs_take_turns_however_they_began() -> None:
    others = ~np.eye(JOBS, dtype=bool)
    assert estimates_of("cpu_standin_large")[others] == pytest.approx(np.outer(SHARES, SHARES)[others])


def test_copies_measured_in_phase_do_not_teach_that_other_jobs_of_the_same_needs_cost_more() -> None:
    served = fit_rows(measured_pairs("cpu_standin_large"), "family", 0).served
    asked = SoloFigures(
        utilization_ratio=np.array([0.31, 0.33]),
        step_ms=np.array([17.0, 19.5]),
        memory_bytes=np.full(2, float(MEMORY_BYTES)),
        input_wait_ratio=np.array([0.69, 0.67]),
    )
    victim, other = np.array([0, 1]), np.array([1, 0])
    turns = fair_share_slowdowns(asked, victim, other)
    answer = served.predict(build_pair_features(asked, victim, other, 2 << 30), turns)
    assert answer == pytest.approx(turns, abs=0.01)
