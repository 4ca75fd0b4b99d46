"""What is expected of pairs on a device type without a model, before any window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.interference_online import LIGHT_SHARE, World, choose_start, expect_share, lighten, read_known_world
from cotenant.device_sharing import DeviceSharing
from predictor_service.features.pair_features import SoloFigures
from predictor_service.inference.untrained_pairs import START_SHARE, start_pairs


@pytest.fixture(scope="module")
def own() -> World:
    return read_known_world(Path(__file__).parents[3] / "datasets" / "cpu_standin")


def test_the_start_is_what_our_own_set_and_its_fifth_choose(own: World) -> None:
    assert choose_start(own) == START_SHARE


@pytest.mark.parametrize("share", [1.0, LIGHT_SHARE])
def test_the_start_errs_less_than_no_slowdown_under_heavy_and_light_interference(own: World, share: float) -> None:
    world = lighten(own, share)
    assert expect_share(world, START_SHARE) < expect_share(world, 0.0)


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        (DeviceSharing.TIME_SLICING, 0.9 * 0.6),
        (DeviceSharing.MPS, START_SHARE * 0.5),
        (DeviceSharing.UNSTATED, START_SHARE * 0.5),
    ],
)
def test_jobs_that_are_known_to_take_turns_are_expected_to(sharing: DeviceSharing, expected: float) -> None:
    """On an H200 two that keep it busy lost 1.2 each in turns, and 0.4 was said."""
    nothing = np.zeros(2)
    jobs = SoloFigures(
        utilization_ratio=np.array([0.9, 0.6]), step_ms=nothing, memory_bytes=nothing, input_wait_ratio=nothing
    )
    victim, other = np.array([0, 1]), np.array([1, 0])
    assert start_pairs(jobs, victim, other, sharing) == pytest.approx([expected] * 2)
