"""What was measured with a reason for doubt makes no interval narrower and no bound lower, whatever it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.device_calibration import DeviceCalibration
from cotenant.job_settings import JobSettings
from predictor_service.features.devices import find_device_type
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.observed_jobs import ObservedJob, ObservedJobs, weigh_observed
from predictor_service.inference.observed_pairs import ObservedPairs
from predictor_service.inference.pair_estimator import estimate_pairs
from predictor_service.inference.records import Estimate, Level, PairJob, PairsAnswer, PairsQuestion
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.registry.served_version import Bounded, ServedTarget
from tests.support.calibrations import calibration
from tests.support.contradictions import CONTRADICTIONS

_DEVICE = "cpu-standin"
_ENTRY = PredictionEntry(
    prediction_id="p", at_ms=0, kind="job", device=_DEVICE, model_version="v", content={"job_key": "key"}
)
_FLAGS = st.lists(st.sampled_from(["unsteady", "foreign_load", "incomplete_run", "another"]), min_size=1, max_size=3)
_FIGURES: dict[str, st.SearchStrategy[object]] = {
    "step_ms_mean": st.floats(1e-2, 1e5),
    "utilization_ratio": st.floats(0.0, 1.0),
    "memory_peak_bytes": st.integers(0, 1 << 34),
    "window_ms": st.integers(0, 100_000),
}
_SOUND = st.lists(st.fixed_dictionaries({}, optional=_FIGURES), max_size=4)
_DOUBTFUL = st.lists(st.fixed_dictionaries({"quality_flags": _FLAGS}, optional=_FIGURES), max_size=6)


@st.composite
def _estimates(draw: st.DrawFn, most: float) -> Estimate:
    ends = sorted(draw(st.floats(1e-3, most)) for _ in range(4))
    lower, value, upper, upper_99 = ends
    return Estimate(
        value=value, lower=lower, upper=upper, confidence=0.9, level=Level.GRAPH, in_domain=True, upper_99=upper_99
    )


def _table(outcomes: Sequence[Mapping[str, object]]) -> ObservedJob:
    table = ObservedJobs()
    table.learn([(_ENTRY, outcome) for outcome in outcomes])
    return table.find(_DEVICE, "key") or ObservedJob()


@given(
    sound=_SOUND,
    doubtful=_DOUBTFUL,
    share=_estimates(most=1.0),
    memory=_estimates(most=float(1 << 34)),
    step=_estimates(most=1e5),
)
def test_no_sequence_of_doubtful_outcomes_makes_an_interval_of_a_job_narrower(
    sound: list[dict[str, object]], doubtful: list[dict[str, object]], share: Estimate, memory: Estimate, step: Estimate
) -> None:
    before, after = (
        weigh_observed(_table(outcomes), utilization=share, memory=memory, step=step)
        for outcomes in (sound, [*sound, *doubtful])
    )
    assert after[0] == before[0]
    assert after[2] == before[2]
    assert after[1].lower <= before[1].lower
    assert after[1].upper >= before[1].upper
    assert (after[1].upper_99 or 0.0) >= (before[1].upper_99 or 0.0)
    assert after[1].lower <= after[1].value <= after[1].upper


@given(
    doubtful=st.lists(st.integers(0, 1 << 33), min_size=1, max_size=8),
    sound=_SOUND,
    memory=_estimates(most=float(1 << 34)),
)
def test_the_peak_of_a_run_that_failed_never_lowers_the_99_percent_bound(
    doubtful: list[int], sound: list[dict[str, object]], memory: Estimate
) -> None:
    bounds = []
    for count in range(len(doubtful) + 1):
        failed = [{"memory_peak_bytes": peak, "quality_flags": ["incomplete_run"]} for peak in doubtful[:count]]
        _, weighed, _ = weigh_observed(_table([*sound, *failed]), utilization=memory, memory=memory, step=memory)
        bounds.append(weighed.upper_99 or weighed.upper)
    assert bounds == sorted(bounds)
    assert bounds[-1] >= max(doubtful)


class Measured(NamedTuple):
    """One slowdown of a pair, by the numbers of its jobs."""

    victim: int
    other: int
    slowdown_ratio: float
    is_doubtful: bool


_JOBS = tuple(
    PairJob(
        job_id=f"j{number}",
        settings=JobSettings(global_batch_size=1),
        known_step_ms=10.0 * (number + 1),
        known_utilization_ratio=0.3 * (number + 1),
        known_memory_bytes=1e6,
    )
    for number in range(3)
)
_PLACES = st.integers(0, 2)
_MEASURED = st.lists(st.builds(Measured, _PLACES, _PLACES, st.floats(-0.3, 5.0), st.booleans()), max_size=12)


class _SureModel:
    """Predicts of every pair that it loses a tenth, with little doubt."""

    graph_bounds = None
    share_mode = ""

    @property
    def record(self) -> Any:
        return self

    @property
    def bounds(self) -> Any:
        return self

    def half_width(self, confidence: float) -> float:
        return 0.05

    def contains(self, columns: np.ndarray) -> np.ndarray:
        return np.ones(len(columns), dtype=bool)

    def predict_bounded(self, columns: np.ndarray, *_: object) -> Bounded:
        value = np.full(len(columns), 0.1)
        return Bounded(value=value, lower=value - 0.05, upper=value + 0.05, upper_99=value + 0.1)


def _never(job: PairJob) -> JobEstimator:
    raise AssertionError(f"everything is known of {job.job_id}")


_SURE = cast(ServedTarget, _SureModel())


def _answer(
    measured: Sequence[Measured],
    doubted: Mapping[tuple[str, str], float],
    model: ServedTarget | None = None,
    calibrated: DeviceCalibration | None = None,
) -> PairsAnswer:
    table = ObservedPairs()
    for each in measured:
        table.observe(_DEVICE, f"j{each.victim}", f"j{each.other}", each.slowdown_ratio, is_doubtful=each.is_doubtful)
    device = find_device_type(_DEVICE)
    assert device is not None
    question = PairsQuestion(
        device=_DEVICE, jobs=_JOBS, observed=doubted, doubted=frozenset(doubted), calibration=calibrated
    )
    return estimate_pairs(question, device, model, _never, table.among(_DEVICE, [job.key for job in _JOBS]))


@settings(deadline=None)
@given(
    measured=_MEASURED,
    stated=st.dictionaries(st.tuples(_PLACES, _PLACES), st.floats(-0.3, 5.0), max_size=3),
    model=st.sampled_from([None, _SURE]),
    wander=st.sampled_from([0.0, 0.2]),
)
def test_no_sequence_of_doubtful_windows_makes_an_interval_of_a_pair_narrower(
    measured: list[Measured], stated: dict[tuple[int, int], float], model: ServedTarget | None, wander: float
) -> None:
    device = replace(calibration(), speed_wander_ratio=wander)
    sound = _answer([each for each in measured if not each.is_doubtful], {}, model, device)
    doubted = {(f"j{victim}", f"j{other}"): ratio for (victim, other), ratio in stated.items()}
    after = _answer(measured, doubted, model, device)
    assert (after.lower <= sound.lower).all()
    assert (after.upper >= sound.upper).all()
    assert (after.lower <= after.slowdown_ratio).all()
    assert (after.slowdown_ratio <= after.upper).all()
    assert (after.in_domain <= sound.in_domain).all()
    kept = after.in_domain == sound.in_domain
    assert np.array_equal(after.level[kept], sound.level[kept])


def test_a_doubtful_pair_still_moves_the_value() -> None:
    plain, after = _answer([], {}), _answer([Measured(0, 1, 4.0, is_doubtful=True)], {})
    assert after.slowdown_ratio[0, 1] > 1.5 * plain.slowdown_ratio[0, 1]
    assert after.times_measured[0, 1] == 1
    stated = _answer([], {("j0", "j1"): 4.0})
    assert stated.slowdown_ratio[0, 1] > 1.5 * plain.slowdown_ratio[0, 1]


def test_a_sure_prediction_that_doubtful_windows_contradict_by_a_factor_is_sure_no_more() -> None:
    windows = [Measured(0, 1, 2.0, is_doubtful=True)] * 5
    for after in (_answer(windows, {}, _SURE), _answer([], {("j0", "j1"): 2.0}, _SURE)):
        assert not after.in_domain[0, 1]
        assert after.level[0, 1] == Level.OBSERVED  # it outranks what utilizations let expect
        assert after.in_domain.sum() == 8
        assert after.upper[0, 1] > 1.0


def test_a_sure_prediction_that_doubtful_windows_agree_with_or_that_was_measured_soundly_stays_sure() -> None:
    agreed = _answer([Measured(0, 1, 0.12, is_doubtful=True)] * 5, {}, _SURE)
    assert agreed.in_domain.all()
    assert (agreed.level == Level.SOLO_KNOWN).all()
    measured = [Measured(0, 1, 0.1, is_doubtful=False), Measured(0, 1, 2.0, is_doubtful=True)]
    assert _answer(measured, {}, _SURE).in_domain.all()


@pytest.mark.parametrize("wander", [0.0, 0.2])
@pytest.mark.parametrize(("above_stated", "is_contradicted"), CONTRADICTIONS)
def test_a_sure_prediction_is_contradicted_by_what_lies_above_the_range_that_the_answer_states(
    above_stated: float, is_contradicted: bool, wander: float
) -> None:
    device = replace(calibration(), speed_wander_ratio=wander)
    stated = _answer([], {}, _SURE, device).upper[0, 1]
    after = _answer([Measured(0, 1, stated + above_stated, is_doubtful=True)], {}, _SURE, device)
    assert (not after.in_domain[0, 1], after.level[0, 1] == Level.OBSERVED) == (is_contradicted, is_contradicted)
