"""Intervals of slowdowns: as wide as the uncertainty of the row, the fewness of the groups and the worst part say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from predictor_service.learning.learning_task import FloatArray, LearningTask
from predictor_service.learning.slowdown_bounds import learn_pair_bounds
from predictor_service.selection.few_groups_factor import few_groups_factor
from tests.support.time_slicing_jobs import turn_taking_problem

_PAIRS = turn_taking_problem(jobs=3)


@dataclass(frozen=True)
class _Unsure:
    """Twice as uncertain of every second row."""

    def spread(self, learning_task: LearningTask) -> FloatArray:
        return np.resize([0.1, 0.2], len(learning_task))


def test_rows_of_which_a_process_is_unsure_get_wider_intervals() -> None:
    random = np.random.default_rng(0)
    spread = np.tile([0.1, 0.2], 200)
    bounds = learn_pair_bounds(spread * random.standard_normal(400), [400], 100, _Unsure(), spread)
    widths = bounds.half_width(_PAIRS, 0.9)
    assert widths[1::2] == pytest.approx(2.0 * widths[0])
    assert widths[0] == pytest.approx(0.1645 * few_groups_factor(100, 0.9), rel=0.15)


def test_the_worst_part_sets_the_least_width() -> None:
    residuals = np.concatenate([np.full(50, 0.01), np.full(50, -0.5), np.full(50, 0.02)])
    bounds = learn_pair_bounds(residuals, [50, 50, 50], 1_000)
    assert (bounds.half_width(_PAIRS, 0.9) >= 0.5).all()


def test_few_groups_widen_what_rows_alone_would_promise() -> None:
    residuals = np.linspace(-1.0, 1.0, 99)
    few, many = (learn_pair_bounds(residuals, [99], groups).half_width(_PAIRS, 0.9)[0] for groups in (3, 1_000))
    assert few == pytest.approx(many * few_groups_factor(3, 0.9) / few_groups_factor(1_000, 0.9))


def test_without_parts_the_rows_alone_set_the_width() -> None:
    bounds = learn_pair_bounds(np.array([-0.3, 0.3]), (), 1)
    assert np.isfinite(bounds.half_width(_PAIRS, 0.9)).all()
    assert np.isfinite(bounds.upper_offset(_PAIRS, 0.99)).all()
