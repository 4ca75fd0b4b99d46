"""Speed and host of a device that was made up are found again by three networks, as far as these can tell them."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest

from benchmarks.cross_device_hosts import HOSTS, Parted, most_likely
from predictor_service.inference.records import Estimate, Level
from predictor_service.learning.cross_device_rows import StepRow


class _Step:
    def __init__(self, step_ms: float) -> None:
        self.step_ms = step_ms


def made_up(host_share: float, *, speed: float, host: float) -> Parted:
    """A network of which the host's part is added to the device's, on a device and a host so many times as slow."""
    step = np.log(1 - host_share + host_share * np.exp(HOSTS))
    measured = 100 * speed * (1 - host_share + host_share * host)
    said = Estimate(100.0, 50.0, 200.0, 0.9, Level.FALLBACK, False)
    return Parted(cast(StepRow, _Step(measured)), said, host_share, step)


def test_networks_that_wait_for_their_host_and_one_that_does_not_tell_a_slow_host_from_a_slow_device() -> None:
    anchors = [made_up(share, speed=1.0, host=2.0) for share in (0.02, 0.5, 0.9)]
    both, speed_only = most_likely(anchors, 0.7), most_likely(anchors, 1e-3)
    unlike = made_up(0.05, speed=1.0, host=2.0)

    assert both.move(unlike) == pytest.approx(math.log(1.05), abs=0.05)
    assert speed_only.move(unlike) > math.log(1.05) + 0.15
    assert both.deviation < speed_only.deviation


def test_networks_that_all_wait_as_much_say_that_all_is_slow() -> None:
    anchors = [made_up(0.01, speed=1.3, host=1.0)] * 3
    assert most_likely(anchors, 0.7).move(made_up(0.9, speed=1.3, host=1.0)) == pytest.approx(math.log(1.3), abs=0.1)
