"""What a job has ahead after a wait: nothing on a device that nothing holds up, and never more than the wait."""

from __future__ import annotations

import itertools

import pytest

from predictor_service.features.head_start import NO_HEAD_START, HeadStart
from tests.support.cases import for_each

SHARES = (0.05, 1 / 3, 2 / 3, 0.98, 1.0)
THIRD = HeadStart(device_ms=2.0, share=1 / 3)


def test_a_wait_saves_the_head_start_at_the_speed_of_the_device() -> None:
    assert THIRD.computing_ms(30.0, 40.0) == pytest.approx(24.0)


def test_a_short_wait_saves_no_more_than_itself() -> None:
    assert THIRD.computing_ms(30.0, 4.0) == pytest.approx(26.0), "the step as a whole takes as long as without a wait"


def test_no_work_is_done_faster_than_the_device_does_it_when_nothing_holds_it_up() -> None:
    assert THIRD.computing_ms(3.0, 40.0) == pytest.approx(1.0)


@for_each("share", SHARES)
@for_each("device_ms", [0.0, 0.5, 2.0, 1e3])
def test_computing_never_falls_as_the_work_grows_and_a_step_never_falls_as_the_wait_grows(
    share: float, device_ms: float
) -> None:
    head_start = HeadStart(device_ms=device_ms, share=share)
    sizes = (0.0, 0.1, 1.0, 3.0, 6.0, 30.0, 1e4)
    for wait_ms in sizes:
        found = [head_start.computing_ms(busy_ms, wait_ms) for busy_ms in sizes]
        assert all(less <= more for less, more in itertools.pairwise(found))
    for busy_ms in sizes:
        steps = [wait_ms + head_start.computing_ms(busy_ms, wait_ms) for wait_ms in sizes]
        assert all(less <= more + 1e-9 for less, more in itertools.pairwise(steps))
        assert steps[0] == busy_ms


@for_each("share", SHARES)
@for_each("wait_ms", [0.0, 1.0, 40.0])
@for_each("busy_ms", [0.0, 1.0, 5.0, 30.0])
def test_what_a_step_takes_without_its_wait_is_found_again(share: float, wait_ms: float, busy_ms: float) -> None:
    head_start = HeadStart(device_ms=2.0, share=share)
    computing_ms = head_start.computing_ms(busy_ms, wait_ms)
    assert head_start.busy_step_ms(computing_ms, wait_ms) == pytest.approx(busy_ms)


@for_each("head_start", [NO_HEAD_START, HeadStart(device_ms=0.0, share=0.3), HeadStart(device_ms=2.0, share=0.0)])
def test_where_a_wait_is_worth_nothing_a_step_computes_as_long_as_without_one(head_start: HeadStart) -> None:
    assert head_start.computing_ms(30.0, 40.0) == head_start.busy_step_ms(30.0, 40.0) == 30.0


def test_a_device_that_nothing_holds_up_gives_no_head_start() -> None:
    assert HeadStart(device_ms=2.0, share=1.0).computing_ms(30.0, 40.0) == 30.0
