"""What anchors take, and hold, beyond what models say: believed where they agree, a wider range where they do not."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from predictor_service.features.device_scale import (
    DEVIATION_SEEN,
    AnchorFigures,
    DeviceScale,
    between_networks,
    scale_of,
)
from tests.support.calibrations import calibration

MIB = 2**20
SAID_BYTES = 100 * MIB


def scale_with(surpluses_mib: tuple[int, ...]) -> DeviceScale:
    """The scale of a device whose anchors hold so much beyond what models say."""
    found = calibration()
    anchors = tuple(
        replace(each, memory_peak_bytes=SAID_BYTES + surplus * MIB)
        for each, surplus in zip(found.anchors, surpluses_mib, strict=True)
    )
    scale = scale_of(
        replace(found, anchors=anchors),
        lambda each: AnchorFigures(step_ms=each.step_ms, memory_bytes=SAID_BYTES),
    )
    assert scale is not None
    return scale


def steps_with(*ratios: float) -> DeviceScale:
    """The scale of a device whose anchors took so many times what models say."""
    found = calibration()
    anchors = tuple(
        replace(each, step_ms=ratio, network=str(place))
        for place, (each, ratio) in enumerate(zip(found.anchors, ratios, strict=False))
    )
    scale = scale_of(replace(found, anchors=anchors), lambda _: AnchorFigures(step_ms=1.0, memory_bytes=SAID_BYTES))
    assert scale is not None
    return scale


@pytest.mark.parametrize(("device", "busy_ratio"), [("cpu-standin", 0.47), ("NVIDIA H200", 1.0)])
def test_anchors_that_wait_for_their_host_hold_a_core_up_and_no_gpu(device: str, busy_ratio: float) -> None:
    found = replace(calibration(), device=device)
    seen = (0.47, 0.9, 0.32)
    anchors = tuple(replace(each, utilization_ratio=ratio) for each, ratio in zip(found.anchors, seen, strict=True))
    scale = scale_of(replace(found, anchors=anchors), lambda _: AnchorFigures(step_ms=1.0, memory_bytes=SAID_BYTES))
    assert scale is not None
    assert scale.busy_ratio == busy_ratio


def ratio_with(*ratios: float) -> float:
    return steps_with(*ratios).step_ratio


@pytest.mark.parametrize("ratios", [(0.55, 1.49, 1.6), (1.11, 0.89, 1.4), (1.2, 0.58, 0.96), (2.0, 0.5, 1.0)])
def test_anchors_that_are_off_in_both_directions_say_nothing_of_the_device(ratios: tuple[float, ...]) -> None:
    assert ratio_with(*ratios) == 1.0


def test_anchors_are_believed_as_far_as_they_agree() -> None:
    agreed, near, torn = (ratio_with(*each) for each in ((3.0, 3.0, 3.0), (2.7, 3.0, 10 / 3), (1.5, 3.0, 6.0)))

    assert agreed == pytest.approx(3.0)
    assert near == pytest.approx(3.0, rel=0.01)
    assert 1.0 < torn < 2.5
    assert ratio_with(1.0, 1.0, 1.0) == 1.0


@pytest.mark.parametrize("ratios", [(1.11, 0.89, 1.4), (1.5, 3.0, 6.0), (1.0, 4.0)])
def test_what_is_not_believed_of_anchors_stays_in_the_range(ratios: tuple[float, ...]) -> None:
    scale, logs = steps_with(*ratios), [math.log(each) for each in ratios]
    not_believed = abs(statistics.fmean(logs) - math.log(scale.step_ratio))
    centred = steps_with(*(each / math.exp(statistics.fmean(logs)) for each in ratios))

    assert not_believed > 0
    assert scale.step_deviation == pytest.approx(math.hypot(centred.step_deviation, not_believed), rel=1e-6)


def test_three_anchors_neither_agree_nor_disagree_as_much_as_they_seem_to() -> None:
    agreed, usual, torn = (steps_with(3 / each, 3.0, 3 * each) for each in (1.0, math.exp(DEVIATION_SEEN), 2.0))
    new_network = math.sqrt(4 / 3)

    assert agreed.step_deviation > 0.5 * DEVIATION_SEEN * new_network
    assert usual.step_deviation == pytest.approx(DEVIATION_SEEN * new_network, rel=0.01)
    assert usual.step_deviation < torn.step_deviation < math.log(2.0) * new_network


def test_the_more_anchors_there_are_the_less_counts_what_other_devices_taught() -> None:
    deviations = [between_networks([0.0, 1.0] * count) for count in (1, 2, 8, 500)]

    assert deviations == sorted(deviations)
    assert deviations[-1] == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("ratios", [(3.0,), (2.0, 3.0), (2.7, 3.0, 10 / 3), (1.5, 3.0, 6.0), (2.0, 0.5, 1.0)])
def test_a_device_that_is_faster_is_believed_as_one_that_is_slower(ratios: tuple[float, ...]) -> None:
    assert ratio_with(*(1 / each for each in ratios)) == pytest.approx(1 / ratio_with(*ratios))


@pytest.mark.parametrize("surpluses_mib", [(5, 6, 8), (-5, -6, -8), (40, 40, 40)])
def test_a_surplus_on_which_anchors_agree_is_added_whole_and_all_of_them_stay_in_range(
    surpluses_mib: tuple[int, ...],
) -> None:
    scale = scale_with(surpluses_mib)
    assert scale.memory_shift_bytes == surpluses_mib[1] * MIB
    assert scale.memory_shift_bytes + scale.memory_deviation_bytes >= max(surpluses_mib) * MIB
    assert scale.memory_shift_bytes - scale.memory_deviation_bytes <= min(surpluses_mib) * MIB


def test_a_surplus_on_which_anchors_disagree_widens_the_range_only() -> None:
    scale = scale_with((-9, 2, 8))
    assert scale.memory_shift_bytes == 0
    assert scale.memory_deviation_bytes >= 9 * MIB


@pytest.mark.parametrize("surpluses_mib", [(3, 4, 5), (4, 4, 4)])
def test_a_network_that_is_no_anchor_may_be_farther_than_the_anchors_are_from_each_other(
    surpluses_mib: tuple[int, int, int],
) -> None:
    scale = scale_with(surpluses_mib)
    spread_bytes = (max(surpluses_mib) - min(surpluses_mib)) / 2 * MIB
    assert scale.memory_deviation_bytes > 1.8 * spread_bytes
    assert 0 < scale.memory_deviation_bytes < 1.95 * spread_bytes + MIB
