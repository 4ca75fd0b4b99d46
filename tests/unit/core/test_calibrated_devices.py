"""What the engine does with calibrations: kept with the inventory, handed on, and asked again when one comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler_service.core import events
from scheduler_service.core.commands import Command, RequestPairPredictions, RequestPrediction
from scheduler_service.core.engine_snapshot import decode_state, freeze_state
from scheduler_service.core.records import Node
from tests.support.calibrations import calibration
from tests.support.engine_play import Play
from tests.support.scheduling import gpu, node, prediction

DEVICE = gpu().device
MEASURED = replace(calibration(), device=DEVICE)


def questions(orders: list[Command]) -> list[RequestPrediction]:
    return [order for order in orders if isinstance(order, RequestPrediction)]


def calibrated_node(node_id: str = "n0", **changes: Any) -> Node:
    found = replace(MEASURED, **changes)
    return node(node_id, [gpu(f"g-{node_id}", calibration=found)])


def test_questions_carry_what_was_measured_of_the_device_type() -> None:
    play = Play(nodes=0)
    play.tell(events.NodeJoined, node=calibrated_node())
    (question,) = questions(play.submit(graph="a" * 64))
    assert question.calibration == MEASURED
    orders = play.tell(events.PredictionArrived, prediction=prediction(question.key, device=DEVICE))
    (pairs,) = [order for order in orders if isinstance(order, RequestPairPredictions)]
    assert pairs.calibration == MEASURED


def test_a_calibration_that_comes_later_has_living_jobs_asked_about_again() -> None:
    play = Play(nodes=0)
    play.tell(events.NodeJoined, node=node("n0", [gpu("g-n0")]))
    (first,) = questions(play.submit(graph="a" * 64))
    assert first.calibration is None
    play.tell(events.PredictionArrived, prediction=prediction(first.key, device=DEVICE))
    (again,) = questions(play.tell(events.NodeJoined, node=calibrated_node()))
    assert (again.key, again.calibration) == (first.key, MEASURED)
    assert questions(play.tell(events.NodeJoined, node=calibrated_node())) == []


def test_of_several_nodes_the_newest_quiet_calibration_stands_for_the_type() -> None:
    play = Play(nodes=0)
    play.tell(events.NodeJoined, node=calibrated_node("n0", launch_ms=0.01))
    play.tell(events.NodeJoined, node=calibrated_node("n1", launch_ms=0.02, measured_at_ms=MEASURED.measured_at_ms + 1))
    loud = MEASURED.measured_at_ms + 2
    play.tell(events.NodeJoined, node=calibrated_node("n2", measured_at_ms=loud, foreign_load=True))
    assert play.engine.state.calibrations[DEVICE].launch_ms == 0.02
    play.tell(events.NodeJoined, node=node("n1", [gpu("g-n1")]))
    assert play.engine.state.calibrations[DEVICE].launch_ms == 0.01


def test_a_snapshot_keeps_calibrations() -> None:
    play = Play(nodes=0)
    play.tell(events.NodeJoined, node=calibrated_node())
    restored, _ = decode_state(freeze_state(play.engine.state, wakes_at_ms=())(), ended_jobs_max=10)
    assert restored.calibrations == {DEVICE: MEASURED}
