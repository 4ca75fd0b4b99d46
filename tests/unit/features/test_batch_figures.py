"""Figures of a graph at a batch."""

from __future__ import annotations

import pytest

from predictor_service.features.graphs.batch_figures import figures_at
from tests.support.cases import for_each


def test_a_line_has_a_part_per_sample_and_a_constant_one() -> None:
    figures = figures_at({"saved_bytes_per_sample": 10.0, "saved_bytes_constant": 3.0, "nodes": 7.0}, 4)
    assert figures["saved_bytes"] == 43.0
    assert figures["nodes"] == 7.0


@for_each(("batch", "expected"), [(8, 80.0), (12, 120.0), (1, 10.0), (64, 800.0), (16, 160.0)])
def test_a_curve_is_read_between_its_points_and_beyond_them(batch: int, expected: float) -> None:
    curve = {"peak_at_batch_8": 80.0, "peak_at_batch_16": 160.0, "peak_at_batch_32": 373.3333333333333}
    assert figures_at(curve, batch)["peak"] == pytest.approx(expected, rel=1e-9)


def test_one_point_is_all_that_is_known_of_a_curve() -> None:
    assert figures_at({"peak_at_batch_8": 80.0}, 512) == {"peak": 80.0}
