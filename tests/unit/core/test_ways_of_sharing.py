"""Pairs are asked about and kept by how their device type is shared, as far as all its nodes say the same."""

from __future__ import annotations

from typing import Any

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core import events
from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.commands import Command, RefreshPairs, RequestPairPredictions
from scheduler_service.core.engine_snapshot import decode_state, freeze_state
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Level, Node, Share
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from tests.support.engine_play import Play
from tests.support.scheduling import gpu, node, pair, prediction

DEVICE = gpu().device
UNSTATED, TURNS, MPS = DeviceSharing


def shared_node(sharing: DeviceSharing, node_id: str = "n0") -> Node:
    return node(node_id, [gpu(f"{node_id}.0", sharing=sharing)])


def pair_questions(orders: list[Command]) -> list[RequestPairPredictions | RefreshPairs]:
    return [order for order in orders if isinstance(order, RequestPairPredictions | RefreshPairs)]


def ask(play: Play, name: str) -> list[RequestPairPredictions | RefreshPairs]:
    """Hands a job in and answers the question about it alone."""
    play.submit(name, key=name, graph="g", share=Share.ANY)
    return pair_questions(play.tell(events.PredictionArrived, prediction=prediction(name)))


def answer(play: Play, keys: list[str], sharing: DeviceSharing, slowdown_ratio: float) -> list[Command]:
    found = [pair(one, two, slowdown_ratio, sharing=sharing) for one in keys for two in keys]
    return play.tell(events.PairPredictionsArrived, pairs=tuple(found))


def two_known_jobs(sharing: DeviceSharing, slowdown_ratio: float) -> Play:
    """On a node that says a way, with that slowdown predicted of both."""
    play = Play("horus", nodes=0)
    play.tell(events.NodeJoined, node=shared_node(sharing))
    ask(play, "a")
    ask(play, "b")
    answer(play, ["a", "b"], sharing, slowdown_ratio)
    return play


def stored_ratio(store: PredictionStore) -> float | None:
    found = store.pair("a", "b", DEVICE)
    return None if found is None else found.slowdown_ratio


def test_a_question_says_the_way_that_all_nodes_of_the_device_type_say() -> None:
    play = Play(nodes=0)
    play.tell(events.NodeJoined, node=shared_node(MPS))
    (question,) = ask(play, "a")
    assert question.sharing is MPS
    play.tell(events.NodeJoined, node=shared_node(UNSTATED, "n1"))
    assert [one.sharing for one in ask(play, "b")] == [UNSTATED]
    play.tell(events.NodeForgotten, node_id="n1")
    assert [one.sharing for one in ask(play, "c")] == [MPS]


def test_a_start_and_a_refusal_say_that_the_gpus_of_their_type_are_not_shared_alike() -> None:
    play = Play("horus", nodes=0)
    play.tell(events.NodeJoined, node=shared_node(MPS))
    play.tell(events.NodeJoined, node=shared_node(TURNS, "n1"))
    for name in "abc":
        ask(play, name)
    answer(play, ["a", "b", "c"], UNSTATED, 0.1)
    told = [
        describe_reason(job.reason) for job in play.engine.state.jobs.values() if job.reason.code == "STARTS_SHARED"
    ]
    assert told
    assert all("GPUs of this type are shared in 2 ways" in each for each in told)
    answer(play, ["a", "b", "c"], UNSTATED, 5.0)
    one, other = (
        Resident(request=play.engine.state.jobs[name].request, micro_batch_size=8, memory_reserved_bytes=1)
        for name in "ab"
    )
    refusal = sharing_obstacle(one, [other], gpu(), play.engine.state.predictions)
    assert refusal is not None
    assert (refusal.code, refusal.numbers["ways_count"]) == ("SLOWDOWN_TOO_HIGH", 2)
    play.tell(events.NodeForgotten, node_id="n1")
    alike = sharing_obstacle(one, [other], gpu(), play.engine.state.predictions)
    assert alike is None or "ways_count" not in alike.numbers


def test_another_way_has_the_pairs_asked_about_anew_and_the_former_answers_wait_for_its_return() -> None:
    play = two_known_jobs(TURNS, 0.9)
    play.engine.state.predictions.observe_pair("a", "b", DEVICE, 0.8)
    assert stored_ratio(play.engine.state.predictions) == 0.8
    (question,) = pair_questions(play.tell(events.NodeJoined, node=shared_node(MPS)))
    assert isinstance(question, RequestPairPredictions)
    assert (question.sharing, question.observed, set(question.new_keys)) == (MPS, (), {"a", "b"})
    assert stored_ratio(play.engine.state.predictions) is None
    assert play.code("b") == "AWAITING_PREDICTION"
    answer(play, ["a", "b"], MPS, 0.1)
    assert stored_ratio(play.engine.state.predictions) == 0.1
    assert pair_questions(play.tell(events.NodeJoined, node=shared_node(TURNS))) == []
    assert stored_ratio(play.engine.state.predictions) == 0.8


def test_no_more_pairs_are_asked_about_anew_than_the_store_keeps() -> None:
    play = Play("horus", nodes=0)
    play.engine.state.predictions.keys_max = 2
    play.tell(events.NodeJoined, node=shared_node(TURNS))
    for key in "abc":
        ask(play, key)
    answer(play, ["a", "b", "c"], TURNS, 0.9)
    (question,) = pair_questions(play.tell(events.NodeJoined, node=shared_node(MPS)))
    assert isinstance(question, RequestPairPredictions)
    assert set(question.new_keys) == {"b", "c"}


def test_an_answer_about_the_former_way_changes_nothing_of_the_present_one() -> None:
    play = Play("horus", nodes=0)
    play.tell(events.NodeJoined, node=shared_node(TURNS))
    ask(play, "a")
    ask(play, "b")
    play.tell(events.NodeJoined, node=shared_node(MPS))
    answer(play, ["a", "b"], TURNS, 0.9)
    assert stored_ratio(play.engine.state.predictions) is None
    answer(play, ["a", "b"], MPS, 0.1)
    assert stored_ratio(play.engine.state.predictions) == 0.1


def filled() -> Play:
    play = Play("horus", nodes=0)
    for sharing, ratio in ((UNSTATED, 0.3), (TURNS, 0.9), (MPS, 0.1)):
        play.tell(events.NodeJoined, node=shared_node(sharing))
        if sharing is UNSTATED:
            ask(play, "a")
            ask(play, "b")
        answer(play, ["a", "b"], sharing, ratio)
        play.engine.state.predictions.observe_pair("b", "a", DEVICE, ratio, is_doubtful=sharing is TURNS)
    return play


def test_a_snapshot_keeps_what_is_known_of_each_way() -> None:
    play = filled()
    restored, _ = decode_state(freeze_state(play.engine.state, wakes_at_ms=())(), ended_jobs_max=10)
    for sharing in (MPS, UNSTATED, TURNS):
        for state in (play.engine.state, restored):
            state.predictions.share(DEVICE, sharing)
        for victim, other in (("a", "b"), ("b", "a"), ("a", "a")):
            kept = restored.predictions.pair(victim, other, DEVICE)
            assert kept == play.engine.state.predictions.pair(victim, other, DEVICE)
            assert kept is not None
            assert kept.sharing is sharing
    seen = restored.predictions.pair("b", "a", DEVICE)
    assert seen is not None
    assert (seen.slowdown_ratio, seen.level) == (0.9, Level.GRAPH)


def without_sharing(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_sharing(one) for name, one in value.items() if name != "sharing"}
    return [without_sharing(one) for one in value] if isinstance(value, list) else value


def test_a_snapshot_from_before_says_no_way() -> None:
    play = two_known_jobs(UNSTATED, 0.3)
    play.engine.state.predictions.observe_pair("b", "a", DEVICE, 0.4)
    written = without_sharing(freeze_state(play.engine.state, wakes_at_ms=())())
    restored, _ = decode_state(written, ended_jobs_max=10)
    assert (stored_ratio(restored.predictions), restored.predictions.sharing) == (0.3, {})
    seen = restored.predictions.pair("b", "a", DEVICE)
    assert seen is not None
    assert seen.slowdown_ratio == 0.4
