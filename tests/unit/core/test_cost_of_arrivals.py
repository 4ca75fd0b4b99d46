"""What the arrival of a job, or of a node, must not look at again."""

from __future__ import annotations

import random
from typing import NoReturn

import pytest

from scheduler_service.core import events
from scheduler_service.core.cluster_view.open_gpus import OpenGpus
from scheduler_service.core.cluster_view.view import PendingJob
from scheduler_service.core.commands import RequestPairPredictions
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.queue.lanes import Lane
from scheduler_service.core.records import Share
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, all_pairs, job, node, pending, prediction


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("it was looked at")


def submit_sharing(play: Play, job_id: str, key: str) -> list[tuple[str, ...]]:
    """Submit a job that may share; return the keys that each question about pairs names."""
    found = play.submit(job_id, key=key, graph=key, share=Share.ANY)
    return [tuple(member.key for member in one.members) for one in found if isinstance(one, RequestPairPredictions)]


def answer(play: Play, *keys: str) -> None:
    """Answer what was asked about keys, the newest last."""
    play.tell(events.PredictionArrived, prediction=prediction(keys[-1]))
    play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(keys)))


def test_a_job_of_a_key_that_others_have_had_looks_at_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play("sjf_bsbf", nodes=2)
    submit_sharing(play, "j0", "a")
    answer(play, "a")
    submit_sharing(play, "j1", "b")
    answer(play, "a", "b")
    submit_sharing(play, "j2", "a")
    monkeypatch.setattr(PredictionStore, "has_pair", refuse)
    submit_sharing(play, "j3", "a")


def test_what_is_unknown_again_of_a_pair_is_asked_again() -> None:
    play = Play("sjf_bsbf", nodes=2)
    submit_sharing(play, "j0", "a")
    answer(play, "a")
    submit_sharing(play, "j1", "b")
    answer(play, "a", "b")
    assert submit_sharing(play, "j2", "a") == submit_sharing(play, "j3", "a") == []
    play.engine.state.predictions.keys_max = 0
    play.tell(events.JobCancelled, job_id="j1")
    play.report(events.JobStopped, "j1", exit_class="stopped")
    assert submit_sharing(play, "j4", "a") == []  # b is gone
    submit_sharing(play, "j5", "b")
    play.tell(events.PredictionArrived, prediction=prediction("b"))
    play.tell(events.PairPredictionsFailed, device=DEVICE, keys=("b",), code="NOT_MEASURED")
    assert submit_sharing(play, "j6", "a") == [("a", "b")]


def test_nodes_that_join_in_order_are_added_to_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play("fifo", nodes=1, gpus=2)
    monkeypatch.setattr(OpenGpus, "rebuild", refuse)
    for number in range(1, 5):
        play.tell(events.NodeJoined, node=node(f"n{number}", 2))
    play.submit("wide", gpus=2)
    assert len(play.engine.state.usable_gpus) == 10
    assert play.engine.state.gpus_free == 8


@pytest.mark.parametrize("seed", range(5))
def test_usable_gpus_are_in_order_however_nodes_come_and_go(seed: int) -> None:
    generator, play = random.Random(seed), Play("fifo", nodes=0)
    for _ in range(30):
        name = f"n{generator.randrange(6)}"
        if name in play.engine.state.nodes and generator.random() < 0.4:
            play.tell(events.NodeDisconnected, node_id=name)
        else:
            play.tell(events.NodeJoined, node=node(name, generator.randrange(1, 4)))
        state = play.engine.state
        nodes = sorted(one.node_id for one in state.nodes.values() if one.connected)
        assert [*state.occupancy.usable_nodes] == nodes
        expected = [gpu.gpu_id for name in nodes for gpu in state.nodes[name].gpus]
        assert [*state.usable_gpus] == expected
        assert state.occupancy.free_gpu_ids == set(expected)


def test_what_a_quota_leaves_of_a_lane_is_found_again_only_after_the_lane_has_changed() -> None:
    generator, lane, present = random.Random(0), Lane(), dict[str, PendingJob]()
    for number in range(200):
        name = f"j{generator.randrange(20)}"
        if name in present and generator.random() < 0.5:
            del present[name]
            lane.remove(name)
        else:
            at_ms = present[name].submitted_at_ms if name in present else number
            present[name] = pending(job(name, gpus=generator.choice((1, 2, 4))), submitted_at_ms=at_ms)
            lane.put(present[name])
        for gpus_max in (0, 1, 2, 3, 4):
            wider = [one for one in present.values() if one.request.gpus > gpus_max]
            in_order = sorted(wider, key=lambda one: one.submitted_at_ms)
            assert lane.wider_ids(gpus_max) == tuple(one.request.job_id for one in in_order)
            assert lane.wider_ids(gpus_max) is lane.wider_ids(gpus_max)
            narrowed = lane.narrowed(gpus_max)
            assert {*narrowed.by_id.values()} == {*present.values()} - {*wider}
            assert [*narrowed] == sorted(narrowed.by_id.values(), key=lambda one: one.submitted_at_ms)
            assert lane.narrowed(gpus_max) is narrowed
