"""What holds for predictions whatever the job."""

import dataclasses
import math
from functools import cache

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor_service.inference.batch_curve import largest_within
from predictor_service.inference.measured_graph import GRID
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobQuestion
from predictor_service.selection.conformal import calibrate
from tests.support.measured_dataset import DEVICE, FAMILIES, graphs, job_settings
from tests.support.predictor_service import open_predictor

patient = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

families = st.sampled_from(FAMILIES)
batches = st.integers(1, 1_000_000)


@cache
def known_graphs() -> dict[str, bytes]:
    return graphs()


@cache
def predictor() -> Predictor:
    """Trained at the first question: at an import every process that collects would train one."""
    return open_predictor()


def ask(family: str, batch: int) -> JobQuestion:
    return JobQuestion(
        settings=job_settings(family, batch),
        device=DEVICE,
        onnx_graph=known_graphs()[family],
        find_largest_batch=True,
    )


@patient
@given(families, batches, batches)
def test_a_larger_batch_never_needs_less_memory_or_time(family: str, first: int, second: int) -> None:
    small, large = (predictor().predict_job(ask(family, batch)) for batch in sorted((first, second)))
    assert small.memory_bytes.value <= large.memory_bytes.value
    assert (small.memory_bytes.upper_99 or 0) <= (large.memory_bytes.upper_99 or 0)
    assert small.step_ms.value <= large.step_ms.value


@patient
@given(families, batches)
def test_a_batch_fits_exactly_when_it_is_not_above_the_largest(family: str, batch: int) -> None:
    answer = predictor().predict_job(ask(family, batch))
    assert answer.fits == (batch <= (answer.largest_batch_that_fits or 0))


@patient
@given(families, batches)
def test_a_batch_that_does_not_fit_is_answered_with_its_risk(family: str, batch: int) -> None:
    answer = predictor().predict_job(ask(family, batch))
    assert answer.fits == ("MEMORY_RISK" not in [notice.code for notice in answer.warnings])


@patient
@given(families, st.integers(1, 64), st.integers(1, 64))
def test_several_passes_never_take_longer_than_as_many_steps(family: str, size: int, passes: int) -> None:
    question = dataclasses.replace(ask(family, size * passes), micro_batch_sizes=(size,))
    whole = predictor().predict_job(ask(family, size)).step_ms
    step = predictor().predict_job(question).micro_batches[0].step_ms
    assert whole.value <= step.value * (1 + 1e-9)
    assert step.value <= step.upper
    assert step.value <= passes * whole.value * (1 + 1e-9)


@patient
@given(families, batches, st.floats(0.5, 0.999))
def test_intervals_are_ordered_and_utilization_is_a_share(family: str, batch: int, confidence: float) -> None:
    answer = predictor().predict_job(dataclasses.replace(ask(family, batch), confidence=confidence))
    for estimate in (answer.memory_bytes, answer.step_ms, answer.utilization_ratio):
        assert estimate.lower <= estimate.value <= estimate.upper
        assert math.isfinite(estimate.upper)
    assert 0 <= answer.utilization_ratio.lower <= answer.utilization_ratio.upper <= 1


@patient
@given(st.lists(st.floats(1.0, 1e9), min_size=len(GRID), max_size=len(GRID)), st.floats(0.5, 2e9))
def test_the_largest_batch_is_the_last_one_within_the_limit(values: list[float], limit: float) -> None:
    rising = np.maximum.accumulate(values)
    found = largest_within(GRID, np.array(values), limit)
    assert found == 0 or np.interp(found, GRID, rising) <= limit
    assert found == 1_000_000 or np.interp(found + 1, GRID, rising) > limit


@patient
@given(st.lists(st.floats(-3, 3), min_size=200, max_size=400), st.floats(0.6, 0.95))
def test_a_supported_bound_covers_the_residuals_it_came_from(residuals: list[float], confidence: float) -> None:
    array = np.array(residuals)
    bounds = calibrate(array, groups=10)
    assert np.mean(np.abs(array) <= bounds.half_width(confidence) + 1e-6) >= confidence


@patient
@given(st.lists(st.floats(0.01, 3), min_size=5, max_size=50))
def test_too_few_groups_for_99_percent_take_the_largest_residual_with_a_margin(residuals: list[float]) -> None:
    bounds = calibrate(np.array(residuals), groups=8)
    assert not bounds.is_supported(0.99)
    assert bounds.upper_offset(0.99) >= max(residuals)
