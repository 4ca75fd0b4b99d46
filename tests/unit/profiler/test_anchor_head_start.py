"""What a wait is worth, from the windows of a calibration in which an anchor was alone."""

from __future__ import annotations

import pytest
from cotenant_profiler.anchor_pairs import PairFindings, WindowAlone

from cotenant.device_calibration import Anchor
from predictor_service.features.head_start import NO_HEAD_START, HeadStart


def anchor(network: str, step_ms: float, share: float = 1.0) -> Anchor:
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


THIRD = [anchor("resnet", 30.0, 0.32), anchor("mlp", 30.0, 1 / 3), anchor("lstm", 30.0, 0.34)]


def test_a_head_start_is_the_middle_of_what_windows_with_a_wait_computed_beyond_the_share_without_one() -> None:
    without = [window(0.0, 30.0, processor_ms) for processor_ms in (10.0, 10.4, 19.0, 19.0)]
    waiting = [window(40.0, 24.0, processor_ms) for processor_ms in (9.0, 10.0, 17.0)]
    found = PairFindings(alone=[*without, *waiting]).head_start(THIRD)
    assert found == HeadStart(device_ms=pytest.approx(2.0), share=1 / 3)
    assert PairFindings(alone=[*without, *waiting[:2]]).head_start(THIRD) == NO_HEAD_START, "two windows say nothing"


def test_a_wait_that_costs_time_of_the_device_is_worth_nothing_and_never_less() -> None:
    waiting = [window(40.0, 12.0, processor_ms) for processor_ms in (10.0, 10.5, 11.0)]
    assert PairFindings(alone=waiting).head_start([anchor("resnet", 10.0)]).device_ms == 0.0


def test_a_window_with_a_wait_tells_the_speed_of_a_device_only_with_its_head_start_added_back() -> None:
    findings = PairFindings(alone=[window(40.0, 24.0, 10.0)] * 3)
    head_start = findings.head_start(THIRD)
    assert findings.with_windows_alone(THIRD[0], 1_000, head_start).step_ms == pytest.approx(30.0)
    assert findings.with_windows_alone(THIRD[0], 1_000, NO_HEAD_START).step_ms == pytest.approx(30.0 * 0.8**0.75)
