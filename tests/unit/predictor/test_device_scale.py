"""What anchors hold beyond the models' memory: taken whole where they agree, a wider range where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor_service.features.device_scale import AnchorFigures, DeviceScale, scale_of
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
