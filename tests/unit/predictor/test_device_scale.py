"""What anchors take, and hold, beyond what models say: believed where they agree, a wider range where they do not."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from predictor_service.features.device_scale import (
    DEVIATION_SEEN,
    PRECISION_DEVIATION,
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


def scale_of_precisions(*anchors: tuple[str, float], surpluses_mib: tuple[int, ...] = ()) -> DeviceScale:
    """The scale by anchors, each with its precision and how many times as long it took as models say."""
    found = calibration()
    surpluses = surpluses_mib or (0,) * len(anchors)
    chosen = tuple(
        replace(
            found.anchors[place % 3],
            precision=precision,
            step_ms=ratio,
            step_spread_ratio=0.04 if precision == "fp32" else 0.8,
            memory_peak_bytes=SAID_BYTES + surplus * MIB,
        )
        for place, ((precision, ratio), surplus) in enumerate(zip(anchors, surpluses, strict=True))
    )
    scale = scale_of(replace(found, anchors=chosen), lambda _: AnchorFigures(step_ms=1.0, memory_bytes=SAID_BYTES))
    assert scale is not None
    return scale


FP32 = (("fp32", 1.8), ("fp32", 2.0), ("fp32", 2.3))


def test_in_a_precision_in_which_no_anchor_ran_the_ratio_stays_and_the_deviation_grows() -> None:
    scale = scale_of_precisions(*FP32)
    other = scale.at("bf16")
    assert scale.at("fp32") is scale
    assert (other.precision, other.is_precision_measured, other.step_ratio) == ("bf16", False, scale.step_ratio)
    assert other.step_deviation == pytest.approx(math.hypot(scale.step_deviation, PRECISION_DEVIATION))
    assert (other.memory_shift_bytes, other.busy_ratio) == (scale.memory_shift_bytes, scale.busy_ratio)


@pytest.mark.parametrize("halves", [(("bf16", 4.0),), (("bf16", 4.0), ("bf16", 9.0), ("fp16", 1.0))])
def test_anchors_of_other_precisions_change_nothing_of_the_usual_one(halves: tuple[tuple[str, float], ...]) -> None:
    alone, joined = scale_of_precisions(*FP32), scale_of_precisions(*halves[:1], *FP32, *halves[1:])
    assert replace(joined.at("fp32"), others=()) == alone


def test_anchors_of_a_precision_move_its_ratio_towards_theirs_the_more_of_them_there_are() -> None:
    scales = [scale_of_precisions(*FP32, *[("bf16", 4.0)] * count).at("bf16") for count in (1, 2, 3)]
    ratios, deviations = [each.step_ratio for each in scales], [each.step_deviation for each in scales]
    usual = scale_of_precisions(*FP32)

    assert [usual.step_ratio, *ratios, 4.0] == sorted([usual.step_ratio, *ratios, 4.0])
    assert 0.2 < math.log(ratios[0] / usual.step_ratio) / math.log(4.0 / usual.step_ratio) < 0.8
    assert [usual.at("bf16").step_deviation, *deviations] == sorted(
        [usual.at("bf16").step_deviation, *deviations], reverse=True
    )
    assert deviations[-1] > usual.step_deviation
    assert all(each.is_precision_measured for each in scales)


def test_memory_of_a_precision_is_shifted_only_where_anchors_of_both_agree() -> None:
    agreed = scale_of_precisions(*FP32, ("bf16", 2.0), surpluses_mib=(40, 40, 40, 40)).at("bf16")
    torn = scale_of_precisions(*FP32, ("bf16", 2.0), surpluses_mib=(40, 40, 40, 400)).at("bf16")
    assert agreed.memory_shift_bytes == 40 * MIB
    assert torn.memory_shift_bytes == 0
    assert torn.memory_deviation_bytes >= 360 * MIB


def test_other_precisions_of_a_device_that_others_used_are_made_no_slower_for_pairs_either() -> None:
    scale = scale_of_precisions(*FP32, ("bf16", 2.0))
    loud = replace(scale, foreign_load=True, others=tuple(replace(each, foreign_load=True) for each in scale.others))
    assert loud.for_pairs().at("bf16").step_ratio == 1.0
    assert scale.for_pairs().at("bf16").step_ratio > 1.0
