"""How far ranges with anchors would have to reach, as the benchmark learns it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.cross_device_ranges import Anchored, learn_reach


def test_a_range_joins_its_reach_and_the_anchors_disagreement() -> None:
    one = Anchored(off=np.array([-0.6, -0.4, 0.0, 0.9, 1.1]), disagreement=0.3)
    assert one.held(below=0.4, above=0.95).tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert one.held(below=0.0, above=0.0).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_every_type_weighs_the_same_however_many_rows_it_has() -> None:
    many, few = Anchored(off=np.zeros(1000), disagreement=0.3), Anchored(off=np.full(4, 1.0), disagreement=0.0)
    devices = [many] * 3 + [few]
    assert learn_reach([each.off for each in devices], devices) == pytest.approx(1.0)
    assert learn_reach([-each.off for each in devices], devices) == 0.0


def test_a_row_within_the_anchors_disagreement_needs_no_reach_and_one_beyond_what_is_missing() -> None:
    device = Anchored(off=np.array([0.2, 0.5]), disagreement=0.3)
    assert learn_reach([device.off], [device]) == pytest.approx(math.sqrt(0.5**2 - 0.3**2))
