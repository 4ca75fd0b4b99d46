"""The bridge between an engine and Decide: advises, places, goes on after a kill, and says where it disagrees."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from cotenant.engines.bridge import Bridge, RoundReport
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.records import EngineJob, EnginePhase, EngineState
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.cases import for_each
from tests.support.simulated_engine import SimulatedEngine

LIGHT = "cotenant memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
HEAVY = "cotenant memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"


def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
    return asyncio.run(decide(request, predictor=None, seconds_left=60))


def bridge(engine: SimulatedEngine, *, places: bool = True) -> Bridge:
    return Bridge(engine, ask, policy="horus", places=places)


def run_round(engine: SimulatedEngine, *, places: bool = True) -> RoundReport:
    report = bridge(engine, places=places).run_round(now_ms=1_000)
    assert engine.faults() == []
    return report


def running(engine: SimulatedEngine) -> dict[str, list[str]]:
    return {name: [*job.held_slots] for name, job in engine.jobs.items() if job.phase is EnginePhase.RUNNING}


def test_two_jobs_that_go_together_share_a_gpu_and_two_that_do_not_wait() -> None:
    light, heavy = SimulatedEngine(), SimulatedEngine()
    for number in range(3):
        light.submit(str(number), LIGHT)
        heavy.submit(str(number), HEAVY)
    run_round(light)
    run_round(heavy)
    assert len(running(light)) == 3
    assert len({gpus[0] for gpus in running(light).values()}) == 2
    assert len(running(heavy)) == 2
    assert len({gpus[0] for gpus in running(heavy).values()}) == 2
    waiting = next(job for job in heavy.jobs.values() if job.phase is EnginePhase.HELD)
    assert waiting.note.startswith("cotenant: ")


@for_each(
    "crowd",
    [
        {"queues": ("full",)},
        {"tenant": "crowd", "queues": ("gpu",), "allowed_node_ids": ("gone",)},
        {"queues": ("gpu",), "array_id": "7", "array_running_max": 1, "allowed_node_ids": ("gone",)},
    ],
)
def test_a_crowd_that_cannot_start_does_not_hide_a_younger_job_that_can(crowd: dict[str, Any]) -> None:
    engine = SimulatedEngine()
    for number in range(600):
        engine.submit(f"crowd-{number}", HEAVY)
        engine.jobs[f"crowd-{number}"] = replace(engine.jobs[f"crowd-{number}"], **crowd)
    engine.submit("young", HEAVY)
    assert run_round(engine).placed == ["young"]


@pytest.mark.parametrize("places", [True, False])
def test_where_no_node_takes_a_job_its_user_is_told_so_in_the_engines_words_and_nothing_is_asked(places: bool) -> None:
    class Drained(SimulatedEngine):
        def read(self) -> EngineState:
            state = super().read()
            return replace(state, nodes=tuple(replace(node, is_usable=False) for node in state.nodes))

    engine = Drained()
    engine.submit("1", f"{LIGHT} colour=red")
    report = Bridge(engine, lambda _: pytest.fail("was asked"), policy="horus", places=places).run_round(now_ms=1_000)
    note = engine.jobs["1"].note
    assert note.startswith("cotenant: waits: of the engine's GPUs none is known here")
    assert "cotenant nodes" not in note
    assert "'colour' is unknown" in note
    assert any(line.startswith("warning: of the engine's GPUs") for line in report.lines)


def test_tasks_of_an_array_are_told_too_where_no_gpu_is_known_at_all() -> None:
    class Bare(SimulatedEngine):
        def read(self) -> EngineState:
            return replace(super().read(), nodes=())

    engine = Bare()
    engine.submit("1", LIGHT)
    engine.jobs["1"] = replace(engine.jobs["1"], array_id="7")
    bridge(engine).run_round(now_ms=1_000)
    assert "none is known here" in engine.jobs["1"].note


def test_advice_changes_nothing_but_the_note_and_is_written_once() -> None:
    engine = SimulatedEngine()
    engine.submit("1", LIGHT, phase=EnginePhase.WAITING)
    run_round(engine, places=False)
    run_round(engine, places=False)
    assert engine.orders == ["annotate 1"]
    assert engine.jobs["1"].phase is EnginePhase.WAITING
    assert engine.jobs["1"].note.startswith("cotenant: would start on n1/g")
    assert "with 6.0 GiB of its memory" in engine.jobs["1"].note


def test_a_crowd_is_placed_before_it_is_told_why_it_waits_and_told_once() -> None:
    engine = SimulatedEngine()
    for number in range(80):
        engine.submit(str(number), HEAVY)
    run_round(engine)
    verbs = [order.split()[0] for order in engine.orders]
    assert verbs == [*["place"] * 2, *["release"] * 2, *["annotate"] * 50]
    run_round(engine)
    run_round(engine)
    assert sum(order.startswith("annotate") for order in engine.orders) == 78
    assert engine.jobs["79"].note.endswith("[SLOWDOWN_TOO_HIGH]")
    engine.finish("0")
    engine.finish("1")
    orders = len(engine.orders)
    run_round(engine)
    assert [order.split()[0] for order in engine.orders[orders:]] == ["place", "place", "release", "release"]


def test_as_few_words_as_wanted_are_written_in_a_round_and_the_others_in_later_ones() -> None:
    engine = SimulatedEngine()
    for number in range(12):
        engine.submit(str(number), HEAVY)
    for told in (4, 8, 10, 10):
        bridge(engine).run_round(now_ms=1_000, notes_max=4)
        assert sum(order.startswith("annotate") for order in engine.orders) == told


def test_complaints_about_the_comment_reach_its_user() -> None:
    engine = SimulatedEngine()
    engine.submit("1", "cotenant memroy=6GiB", phase=EnginePhase.WAITING)
    run_round(engine, places=False)
    assert "did you mean 'memory'" in engine.jobs["1"].note


def test_jobs_of_others_are_left_alone_and_nobody_joins_them() -> None:
    engine = SimulatedEngine()
    engine.run_elsewhere("90", "n1/g0")
    engine.run_elsewhere("91", "n1/g1", slots=1)
    engine.submit("1", LIGHT)
    engine.submit("2", "a job of somebody else")
    run_round(engine)
    assert engine.orders == ["annotate 1"]
    assert set(running(engine)) == {"90", "91"}


def test_a_job_of_which_nothing_is_known_gets_a_whole_gpu() -> None:
    engine = SimulatedEngine()
    engine.submit("1", "cotenant")
    engine.submit("2", LIGHT)
    run_round(engine)
    assert engine.jobs["1"].held_slots in ({"n1/g0": 0}, {"n1/g1": 0})
    assert engine.jobs["2"].held_slots.keys().isdisjoint(engine.jobs["1"].held_slots)


def test_jobs_of_several_gpus_are_not_placed_and_learn_why() -> None:
    engine = SimulatedEngine()
    engine.submit("1", "cotenant", gpus=2)
    run_round(engine)
    assert "jobs of several GPUs are not placed" in engine.jobs["1"].note


@for_each("orders", range(7))
def test_a_bridge_killed_after_any_order_is_followed_by_one_that_goes_on(orders: int) -> None:
    engine = SimulatedEngine()
    for number in range(3):
        engine.submit(str(number), LIGHT)
    engine.fails_after = orders
    with pytest.raises(KeyboardInterrupt) if orders < 6 else pytest.MonkeyPatch.context():
        bridge(engine).run_round(now_ms=1_000)
    engine.fails_after = None
    run_round(engine)
    assert len(running(engine)) == 3
    placed = [order.split()[1] for order in engine.orders if order.startswith("place")]
    assert sorted(placed) == ["0", "1", "2"]


def test_plan_and_engine_never_disagree_silently() -> None:
    engine = SimulatedEngine()
    engine.submit("1", LIGHT)
    engine.submit("2", LIGHT)
    run_round(engine)
    planned = next(iter(engine.jobs["1"].held_slots))
    other = "n1/g1" if planned == "n1/g0" else "n1/g0"
    engine.jobs["1"] = _on(engine, "1", other)
    report = bridge(engine).run_round(now_ms=1_000)
    assert report.disagreements == ["1"]
    assert f"disagreement: job 1 was placed on {planned}, and runs on {other}" in report.lines


def test_a_placed_job_behind_a_stranger_is_said_to_wait_for_it() -> None:
    engine = SimulatedEngine()
    engine.submit("1", LIGHT)
    run_round(engine)
    [gpu_id] = engine.jobs["1"].held_slots
    engine.jobs["1"] = _on(engine, "1", gpu_id, EnginePhase.PLACED)
    engine.run_elsewhere("77", gpu_id)
    report = bridge(engine).run_round(now_ms=1_000)
    assert (
        f"disagreement: job 1 was placed on {gpu_id}, which job 77 holds without being placed, and waits"
        in report.lines
    )


def test_an_engine_that_is_away_is_an_error_and_costs_nothing() -> None:
    engine = SimulatedEngine()
    engine.submit("1", LIGHT)
    engine.is_away = True
    with pytest.raises(EngineUnreachableError):
        bridge(engine).run_round(now_ms=1_000)
    engine.is_away = False
    run_round(engine)
    assert set(running(engine)) == {"1"}


def _on(engine: SimulatedEngine, job_id: str, gpu_id: str, phase: EnginePhase = EnginePhase.RUNNING) -> EngineJob:
    return replace(engine.jobs[job_id], held_slots={gpu_id: 1}, phase=phase)
