"""A curve over the batch that never falls, except where less is known of a small batch than of a large one."""

from __future__ import annotations

import numpy as np

from predictor_service.inference.bounded_curve import BoundedCurve
from predictor_service.registry.served_version import Bounded

DIPPING = Bounded(
    value=np.array([2.0, 1.0, 4.0, 3.0]),
    lower=np.array([1.5, 0.5, 3.5, 0.5]),
    upper=np.array([9.0, 1.5, 5.0, 30.0]),
    upper_99=np.array([10.0, 2.0, 6.0, 40.0]),
)


def test_values_and_bounds_never_fall() -> None:
    value, lower, upper, upper_99 = np.array([BoundedCurve(DIPPING).at(batch) for batch in range(1, 9)]).T
    assert min(np.diff(each).min() for each in (value, lower, upper_99)) >= 0.0
    assert (lower <= value).all()
    assert (value <= upper).all()


def test_a_wide_interval_of_a_small_batch_does_not_widen_that_of_a_larger_one() -> None:
    curve = BoundedCurve(DIPPING)
    assert curve.at(1) == (2.0, 1.5, 9.0, 10.0)
    assert curve.at(2) == (2.0, 1.5, 2.0, 10.0)
    assert curve.at(4) == (4.0, 3.5, 5.0, 10.0)
    assert curve.at(3)[2] == 3.5
