"""Properties of how measured pairs correct predictions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor_service.inference.observed_pairs import Observation
from predictor_service.inference.pair_correction import correct_pairs

_VALUES = st.floats(-0.3, 2.0)
_VARIANCES = st.floats(1e-3, 0.5)


@given(prior=_VALUES, measured=_VALUES, variance=_VARIANCES, count=st.floats(1.0, 20.0))
def test_a_corrected_pair_lies_between_its_prediction_and_what_was_measured(
    prior: float, measured: float, variance: float, count: float
) -> None:
    predicted = np.full((2, 2), prior)
    shift = correct_pairs(predicted, variance, {(0, 1): Observation(count=count, mean=measured)}).shift[0, 1]
    low, high = sorted((prior, measured))
    assert low - 1e-9 <= prior + shift <= high + 1e-9


@given(measured=_VALUES, variance=_VARIANCES, counts=st.tuples(st.floats(1.0, 20.0), st.floats(1.0, 20.0)))
def test_more_windows_bring_a_pair_closer_to_what_was_measured(
    measured: float, variance: float, counts: tuple[float, float]
) -> None:
    shifts = [
        abs(correct_pairs(np.zeros((2, 2)), variance, {(0, 1): Observation(count=count, mean=measured)}).shift[0, 1])
        for count in sorted(counts)
    ]
    assert shifts[0] <= shifts[1] + 1e-12


@settings(max_examples=40)
@given(data=st.data(), jobs=st.integers(2, 5), variance=_VARIANCES)
def test_a_measured_pair_is_at_least_as_certain_as_its_measurements(
    data: st.DataObject, jobs: int, variance: float
) -> None:
    cells = [(victim, other) for victim in range(jobs) for other in range(jobs)]
    chosen = data.draw(st.lists(st.sampled_from(cells), min_size=1, unique=True))
    observed = {cell: Observation(count=data.draw(st.floats(1.0, 20.0)), mean=data.draw(_VALUES)) for cell in chosen}
    correction = correct_pairs(np.zeros((jobs, jobs)), variance, observed)
    assert np.isfinite(correction.shift).all()
    noise = np.array([np.sqrt(observed[cell].mean_variance) for cell in sorted(chosen)])
    assert (correction.deviation <= noise + 1e-9).all()
