"""The windows of a calibration in which an anchor was alone: how fast the device is, and what a wait is worth there."""

from __future__ import annotations

import math

import pytest
from cotenant_profiler import bench
from cotenant_profiler.anchor_pairs import PairFindings, WindowAlone, windows_alone
from cotenant_profiler.job_spec import JobSpec

from cotenant.device_calibration import Anchor
from predictor_service.features.head_start import NO_HEAD_START


def measured(network: str, step_ms: float, share: float = 1.0) -> Anchor:
    return Anchor(
        network=network,
        graph_sha256="0" * 64,
        batch_size=8,
        step_ms=step_ms,
        memory_peak_bytes=1,
        utilization_ratio=share,
    )


def window(wait_ms: float, computing_ms: float, processor_ms: float) -> WindowAlone:
    return WindowAlone(
        network="resnet", computing_ms=computing_ms, wait_ms=wait_ms, processor_ms=processor_ms, length_ms=1_000
    )


def test_an_anchors_step_is_that_of_all_its_windows_alone_without_what_it_was_made_to_wait() -> None:
    loads = [
        bench.Load(job=JobSpec(architecture="resnet", batch=8), wait_ms=12.0),
        bench.Load(job=JobSpec(architecture="mlp", batch=8)),
    ]
    found = bench.Measurement(
        figures=(), references_ms=((20.0, 28.0), (12.1, 7.0)), references_processor_ms=((8.0, 16.0), (12.0, 7.0))
    )
    alone = windows_alone(loads, found, 500)
    assert [(each.network, each.computing_ms, each.wait_ms, each.processor_ms, each.length_ms) for each in alone] == [
        ("resnet", 8.0, 12.0, 8.0, 500),
        ("resnet", 16.0, 12.0, 16.0, 500),
        ("mlp", 12.1, 0.0, 12.0, 500),
        ("mlp", 7.0, 0.0, 7.0, 500),
    ]
    reference = measured("resnet", step_ms=16.0)
    # Half of the time at 16, a quarter at 8, a quarter at 16.
    found_ms = PairFindings(alone=alone).with_windows_alone(reference, 1_000, NO_HEAD_START).step_ms
    assert found_ms == pytest.approx(16.0 / 2.0**0.25)
    assert PairFindings().with_windows_alone(reference, 1_000, NO_HEAD_START) == reference


@pytest.mark.parametrize(("foreign_ratio", "step_ms"), [(0.2, 20.0), (0.0, 13.0)])
def test_a_window_alone_with_others_on_the_device_or_with_hardly_a_step_in_it_says_nothing(
    foreign_ratio: float, step_ms: float
) -> None:
    loads = [bench.Load(job=JobSpec(architecture="resnet", batch=8), wait_ms=12.0)]
    found = bench.Measurement(
        figures=(),
        references_ms=((step_ms, step_ms),),
        references_processor_ms=((1.0, 1.0),),
        foreign_ratio=foreign_ratio,
    )
    assert windows_alone(loads, found, 500) == []


THIRD = [measured("resnet", 30.0, 0.32), measured("mlp", 30.0, 1 / 3), measured("lstm", 30.0, 0.34)]


def test_a_head_start_is_the_middle_of_what_windows_with_a_wait_computed_beyond_the_share_without_one() -> None:
    without = [window(0.0, 30.0, processor_ms) for processor_ms in (10.0, 10.4, 19.0, 19.0)]
    waiting = [window(40.0, 24.0, processor_ms) for processor_ms in (9.0, 10.0, 17.0)]
    found = PairFindings(alone=[*without, *waiting]).head_start(THIRD)
    assert found.device_ms == pytest.approx(2.0)
    assert found.share == 1 / 3
    assert PairFindings(alone=[*without, *waiting[:2]]).head_start(THIRD) == NO_HEAD_START, "two windows say nothing"


def test_a_device_whose_memory_held_no_anchor_has_no_head_start() -> None:
    assert PairFindings().head_start([]) == NO_HEAD_START


def test_how_far_the_speed_wanders_is_what_windows_of_one_anchor_that_waits_or_not_are_apart() -> None:
    steady = [window(wait_ms, computing_ms, 1.0) for wait_ms, computing_ms in ((0.0, 20.0), (9.0, 30.0)) * 3]
    assert PairFindings(alone=steady).speed_wander_ratio == 0.0, "cold caches after a wait are no change of speed"
    apart = [window(wait_ms, 20.0 * math.exp(off), 1.0) for wait_ms in (0.0, 9.0) for off in (-0.1, 0.0, 0.1)]
    assert PairFindings(alone=apart).speed_wander_ratio == pytest.approx(0.1)
    assert PairFindings(alone=apart[:5]).speed_wander_ratio == 0.0, "three degrees of freedom say little"
    assert PairFindings().speed_wander_ratio == 0.0


def test_a_wait_that_costs_time_of_the_device_is_worth_nothing_and_never_less() -> None:
    waiting = [window(40.0, 12.0, processor_ms) for processor_ms in (10.0, 10.5, 11.0)]
    assert PairFindings(alone=waiting).head_start([measured("resnet", 10.0)]).device_ms == 0.0


def test_a_window_with_a_wait_tells_the_speed_of_a_device_only_with_its_head_start_added_back() -> None:
    findings = PairFindings(alone=[window(40.0, 24.0, 10.0)] * 3)
    head_start = findings.head_start(THIRD)
    assert findings.with_windows_alone(THIRD[0], 1_000, head_start).step_ms == pytest.approx(30.0)
    assert findings.with_windows_alone(THIRD[0], 1_000, NO_HEAD_START).step_ms == pytest.approx(30.0 * 0.8**0.75)
