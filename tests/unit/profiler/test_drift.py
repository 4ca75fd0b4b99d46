from __future__ import annotations

import pytest
from cotenant_profiler.drift import anchor_median_ms, drift_ratio
from cotenant_profiler.plan import Kind

from tests.support.profiler import LENET, RECOMMENDER, record

USUAL = [record(Kind.SOLO, LENET, alone_ms=time_ms) for time_ms in (9.8, 10.0, 10.0, 10.2, 30.0)]


def test_the_usual_speed_is_the_median_of_the_anchors() -> None:
    assert anchor_median_ms(USUAL) == pytest.approx(10.0)


def test_a_slower_machine_shows_as_drift_of_the_anchor() -> None:
    assert drift_ratio(record(Kind.SOLO, RECOMMENDER, alone_ms=12.0), USUAL) == pytest.approx(0.2)


def test_few_anchors_say_nothing() -> None:
    assert drift_ratio(record(Kind.SOLO, RECOMMENDER, alone_ms=12.0), USUAL[:4]) == 0


def test_groups_have_their_own_references_and_do_not_count() -> None:
    assert drift_ratio(record(Kind.GROUP, LENET, LENET, alone_ms=99.0), USUAL) == 0
    assert anchor_median_ms([record(Kind.GROUP, LENET, LENET)] * 9) is None
