"""What is expected of pairs on a device type without a model, before any window."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.interference_online import LIGHT_SHARE, World, choose_start, expect_share, lighten, read_known_world
from predictor_service.inference.untrained_pairs import START_SHARE


@pytest.fixture(scope="module")
def own() -> World:
    return read_known_world(Path(__file__).parents[3] / "datasets" / "cpu_standin")


def test_the_start_is_what_our_own_set_and_its_fifth_choose(own: World) -> None:
    assert choose_start(own) == START_SHARE


@pytest.mark.parametrize("share", [1.0, LIGHT_SHARE])
def test_the_start_errs_less_than_no_slowdown_under_heavy_and_light_interference(own: World, share: float) -> None:
    world = lighten(own, share)
    assert expect_share(world, START_SHARE) < expect_share(world, 0.0)
