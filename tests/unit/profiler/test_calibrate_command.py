"""What `calibrate` prints says which parts of the record it could not measure."""

from __future__ import annotations

import dataclasses

from cotenant_profiler.calibrate_command import _table
from cotenant_profiler.calibration import left_out

from cotenant.device_calibration import AnchorPair
from predictor_service.features.anchor_networks import GPU_ANCHORS, STANDIN_ANCHORS
from tests.support.calibrations import anchor_of, calibration

PAIR = AnchorPair(victim="resnet", other="mlp", slowdown_ratio=0.2, input_wait_ratio=0.5, other_input_wait_ratio=0.5)
WHOLE = dataclasses.replace(
    calibration(), anchors=tuple(anchor_of(network, step_ms=5.0) for network in STANDIN_ANCHORS), pairs=(PAIR,)
)


def test_a_whole_record_lacks_nothing_and_says_so_by_silence() -> None:
    assert left_out(WHOLE) == ()
    assert "left out" not in _table(WHOLE)


def test_a_network_that_the_minute_had_no_time_for_is_named_with_the_pairs() -> None:
    cut = dataclasses.replace(WHOLE, anchors=WHOLE.anchors[:2], pairs=())
    assert left_out(cut) == ("lstm", "pairs of networks")
    assert "lstm, pairs of networks: no time or memory was left, or others used the device" in _table(cut)


def test_what_a_wait_is_worth_is_said_where_it_is_worth_something() -> None:
    ahead = dataclasses.replace(WHOLE, head_start_ms=2.04)
    (line,) = set(_table(ahead).splitlines()) - set(_table(WHOLE).splitlines())
    assert line.split(maxsplit=3)[:3] == ["after", "a", "wait"]
    assert "2.04 ms of computing beyond its share" in line


def test_how_far_the_speed_wandered_is_said_where_it_was_seen() -> None:
    wandering = dataclasses.replace(WHOLE, speed_wander_ratio=0.08)
    (line,) = set(_table(wandering).splitlines()) - set(_table(WHOLE).splitlines())
    assert line.split(maxsplit=1) == ["speed", "windows alone differ by 8 %"]


def test_a_gpu_is_judged_by_the_networks_of_gpus() -> None:
    anchors = tuple(anchor_of(network, step_ms=5.0) for network in GPU_ANCHORS[1:])
    record = dataclasses.replace(calibration(device="NVIDIA L4"), anchors=anchors, pairs=(PAIR,))
    assert left_out(record) == (GPU_ANCHORS[0].network,)
