"""A job that was measured here is answered by what it did."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.inference.observed_jobs import ObservedJob, ObservedJobs, weigh_observed
from predictor_service.inference.records import Contribution, Estimate, Level, PairJob
from predictor_service.outcome_journal import PredictionEntry
from tests.support.cases import for_each

_ENTRY = PredictionEntry(
    prediction_id="p", at_ms=0, kind="job", device="CPU-standin", model_version="v", content={"job_key": "key"}
)
_OUTCOME: dict[str, object] = {
    "step_ms_mean": 20.0,
    "utilization_ratio": 0.5,
    "memory_peak_bytes": 2_000,
    "window_ms": 30_000,
}


def _estimate(value: float, lower: float, upper: float, upper_99: float | None = None) -> Estimate:
    return Estimate(
        value=value, lower=lower, upper=upper, confidence=0.9, level=Level.GRAPH, in_domain=False, upper_99=upper_99,
        explanation=(Contribution(feature="f", feature_value=1.0, contribution=1.0),),
    )  # fmt: skip


_SHARE = _estimate(0.9, 0.6, 1.0)
_MEMORY = _estimate(1_000.0, 800.0, 1_200.0, upper_99=1_500.0)
_STEP = _estimate(10.0, 5.0, 20.0)


def _table(*outcomes: Mapping[str, object]) -> ObservedJobs:
    table = ObservedJobs()
    table.learn([(_ENTRY, outcome) for outcome in outcomes])
    return table


def test_a_measured_job_is_answered_between_its_prediction_and_what_was_measured() -> None:
    seen = _table(_OUTCOME).find("cpu-standin", "key")
    assert seen is not None
    utilization, memory, step = weigh_observed(seen, utilization=_SHARE, memory=_MEMORY, step=_STEP)
    assert 0.5 < utilization.value < 0.9
    assert 10.0 < step.value < 20.0
    assert memory.value == 2_000
    assert {each.level for each in (utilization, memory, step)} == {Level.OBSERVED}
    assert not any(each.explanation for each in (utilization, memory, step))


def test_one_outcome_is_weighed_by_variances_and_its_bounds_are_those_of_the_next_window() -> None:
    """Promised within 0.1 / 1.645 of 0.6, or off by more: the larger one against the noise of 0.08 of one window."""
    near, far = (
        weigh_observed(seen, utilization=_estimate(0.6, 0.5, 0.7), memory=_MEMORY, step=_STEP)[0]
        for share in (0.62, 1.0)
        if (seen := _table({"utilization_ratio": share, "window_ms": 30_000}).find("cpu-standin", "key"))
    )
    promised, noise = (0.1 / 1.6449) ** 2, 0.08**2
    trust = promised / (promised + noise)
    assert near.value == pytest.approx(0.6 + trust * 0.02, abs=1e-5)
    assert near.upper - near.value == pytest.approx(1.6449 * math.sqrt(trust * noise + noise), abs=1e-5)
    trust = 0.4**2 / (0.4**2 + noise)
    assert far.value == pytest.approx(0.6 + trust * 0.4, abs=1e-5)
    assert far.upper == 1.0


def test_measured_memory_is_promised_with_a_margin() -> None:
    seen = _table(_OUTCOME).find("cpu-standin", "key")
    assert seen is not None
    _, memory, _ = weigh_observed(seen, utilization=_SHARE, memory=_MEMORY, step=_STEP)
    assert (memory.lower, memory.upper, memory.upper_99) == (800.0, 2_000.0, 2_040.0)


def test_many_outcomes_settle_the_answer() -> None:
    seen = _table(*[_OUTCOME] * 20).find("cpu-standin", "key")
    assert seen is not None
    utilization, _, step = weigh_observed(seen, utilization=_SHARE, memory=_MEMORY, step=_STEP)
    assert step.value == pytest.approx(20.0, rel=0.02)
    assert step.lower < 20.0 < step.upper < _STEP.upper * 1.2
    assert utilization.value == pytest.approx(0.5, abs=0.02)


def test_measured_memory_never_lowers_what_is_promised() -> None:
    seen = _table({"memory_peak_bytes": 100, "window_ms": 30_000}).find("cpu-standin", "key")
    assert seen is not None
    _, memory, step = weigh_observed(seen, utilization=_SHARE, memory=_MEMORY, step=_STEP)
    assert memory.upper_99 == _MEMORY.upper_99
    assert step is _STEP


_DOUBTS: list[dict[str, object]] = [
    {"quality_flags": ["foreign_load"]},
    {"quality_flags": ["unsteady"]},
    {"quality_flags": ["incomplete_run"]},
    {"quality_flags": ["a reason that this program does not know"]},
    {"window_ms": 10},
]


def _weighed(seen: ObservedJob | None) -> tuple[Estimate, Estimate, Estimate]:
    known = seen or ObservedJob()
    return weigh_observed(known, utilization=_SHARE, memory=_MEMORY, step=_STEP)


@for_each("doubt", _DOUBTS)
def test_a_doubtful_outcome_teaches_no_time_and_no_utilization(doubt: dict[str, object]) -> None:
    utilization, _, step = _weighed(_table({**_OUTCOME, **doubt}).find("cpu-standin", "key"))
    assert (utilization, step) == (_SHARE, _STEP)


@for_each("doubt", _DOUBTS)
def test_the_peak_of_a_doubtful_outcome_raises_the_bound_that_it_broke(doubt: dict[str, object]) -> None:
    _, memory, _ = _weighed(_table({**_OUTCOME, **doubt}).find("cpu-standin", "key"))
    assert (memory.value, memory.lower, memory.upper, memory.upper_99) == (2_000.0, 800.0, 2_040.0, 2_040.0)
    assert (memory.level, memory.in_domain) == (_MEMORY.level, _MEMORY.in_domain)


@for_each("doubt", _DOUBTS)
def test_the_peak_of_a_doubtful_outcome_lowers_nothing(doubt: dict[str, object]) -> None:
    small = {**_OUTCOME, "memory_peak_bytes": 100, **doubt}
    assert _weighed(_table(small).find("cpu-standin", "key"))[1] == _MEMORY
    sound, doubted = _table(_OUTCOME), _table(_OUTCOME, small)
    assert _weighed(doubted.find("cpu-standin", "key")) == _weighed(sound.find("cpu-standin", "key"))


def test_the_peak_of_a_doubtful_outcome_raises_what_a_sound_one_promised() -> None:
    seen = _table(_OUTCOME, {"memory_peak_bytes": 3_000, "quality_flags": ["incomplete_run"]})
    _, memory, _ = _weighed(seen.find("cpu-standin", "key"))
    assert (memory.value, memory.upper_99, memory.level) == (3_000.0, 3_060.0, Level.OBSERVED)


def test_a_doubtful_peak_that_no_job_can_have_is_left_out() -> None:
    for peak in (1 << 62, -1, math.nan, "much"):
        assert _table({"memory_peak_bytes": peak, "quality_flags": ["x"]}).find("cpu-standin", "key") is None


def test_values_outside_their_range_are_left_out_and_the_others_kept() -> None:
    outcome = {"step_ms_mean": math.nan, "utilization_ratio": 1.5, "memory_peak_bytes": 7, "window_ms": 30_000}
    seen = _table(outcome).find("cpu-standin", "key")
    assert seen is not None
    assert (seen.log_step_ms, seen.utilization_ratio, seen.memory_peak_bytes) == (None, None, 7)


@pytest.mark.parametrize(
    "outcome",
    [{"step_ms_mean": 1.79e308}, {"step_ms_mean": 5e-324}, {"memory_peak_bytes": 1 << 62}, {"utilization_ratio": -0.1}],
)
def test_what_no_job_can_be_is_never_promised(outcome: dict[str, object]) -> None:
    seen = _table({**outcome, "window_ms": 30_000}).find("cpu-standin", "key")
    assert seen is not None
    assert weigh_observed(seen, utilization=_SHARE, memory=_MEMORY, step=_STEP) == (_SHARE, _MEMORY, _STEP)


def test_a_job_of_a_pair_question_is_completed_by_what_was_measured_of_it() -> None:
    job = PairJob(job_id="key", settings=JobSettings(global_batch_size=8), known_step_ms=11.0)
    completed = _table(_OUTCOME).complete("cpu-standin", job)
    assert completed.is_known
    assert (completed.known_step_ms, completed.known_utilization_ratio) == (11.0, 0.5)
    assert _table().complete("cpu-standin", job) == job
    assert _table(_OUTCOME).complete("cpu-standin", dataclasses.replace(job, job_id="another")).is_known is False
