"""Pairs are asked about and kept by how GPUs of a device type are shared, each way that there is by itself."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.device_sharing import DeviceSharing
from cotenant.v1 import scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.shared_ways import place_name, place_of
from scheduler_service.core.commands import Command, RefreshPairs, RequestPairPredictions
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.engine_snapshot import decode_state, freeze_state
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Level, Node, Share
from scheduler_service.core.sharing.colocation_slowdown import takes_turns
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from scheduler_service.core.trial_sharing.first_measurement_rules import _known_break
from scheduler_service.grpc_api.jobs.translate_jobs import job_message, name_neighbours
from scheduler_service.policy_registry import POLICIES, make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import all_pairs, gpu, job, memory, node, pair, pending, prediction, running, store, view

DEVICE = gpu().device
SHARING = sorted(name for name, entry in POLICIES.items() if entry.shares_gpus)
UNSTATED, TURNS, MPS = DeviceSharing
TOLD = {"n0.0": "those that take turns", "n1.0": "those with MPS"}


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


def test_a_question_is_asked_for_every_way_that_nodes_of_the_device_type_say() -> None:
    play = Play(nodes=0)
    play.tell(events.NodeJoined, node=shared_node(MPS))
    (question,) = ask(play, "a")
    assert question.sharing is MPS
    play.tell(events.NodeJoined, node=shared_node(UNSTATED, "n1"))
    assert [one.sharing for one in ask(play, "b")] == [UNSTATED, MPS]
    play.tell(events.NodeForgotten, node_id="n1")
    assert [one.sharing for one in ask(play, "c")] == [MPS]


def shared_both_ways(policy: str, names: str = "ab", *, turns: float = 5.0, mps: float = 0.1) -> Play:
    """Two nodes with a GPU each, and what is predicted of all pairs under either way."""
    play = Play(policy, nodes=0)
    play.tell(events.NodeJoined, node=shared_node(TURNS, "n0"))
    play.tell(events.NodeJoined, node=shared_node(MPS, "n1"))
    for name in names:
        ask(play, name)
    answer(play, [*names], TURNS, turns)
    answer(play, [*names], MPS, mps)
    return play


@pytest.mark.parametrize("policy", ["horus", "ojpp", "sjf_ffs"])
@pytest.mark.parametrize(("turns", "mps", "right"), [(5.0, 0.1, "n1.0"), (0.1, 5.0, "n0.0")])
def test_a_start_where_gpus_of_one_type_are_shared_both_ways_names_the_way_that_it_counts_on(
    policy: str, turns: float, mps: float, right: str
) -> None:
    play = shared_both_ways(policy, "abc", turns=turns, mps=mps)
    shared = [job for job in play.engine.state.jobs.values() if job.reason.code == "STARTS_SHARED"]
    assert [job.gpu_ids for job in shared] == [(right,)]
    told = describe_reason(shared[0].reason)
    assert f"shared in 2 ways (MPS, in turns, or not said): what is expected is of {TOLD[right]}, as here." in told


@pytest.mark.parametrize("nodes", [1, 60])
@pytest.mark.parametrize("policy", SHARING)
@pytest.mark.parametrize(("turns", "mps", "right"), [(5.0, 0.01, "mps"), (0.01, 5.0, "turns")])
def test_every_policy_that_shares_lets_jobs_join_only_gpus_whose_way_slows_little(
    policy: str, turns: float, mps: float, right: str, nodes: int
) -> None:
    """Of many GPUs some policies keep columns, by classes of equal GPUs."""
    known = store(
        [prediction(key, utilization_ratio=0.2, memory=memory(1), step_ms={(1, 1): 1_000.0}) for key in "ab"],
        [*all_pairs("ab", turns, sharing=TURNS), *all_pairs("ab", mps, sharing=MPS)],
    )
    known.share(DEVICE, TURNS, MPS)
    consent: dict[str, Any] = {"share": Share.ANY, "max_slowdown_ratio": 0.3, "steps_total": 1_000}
    names = [f"{way}{place}" for place in range(nodes) for way in ("turns", "mps")]
    seen = view(
        nodes=[shared_node(MPS if name.startswith("mps") else TURNS, name) for name in names],
        holding=[running(job(f"r-{name}", key="a", **consent), [f"{name}.0"]) for name in names],
        waiting=[pending(job(f"new{place}", key="b", **{**consent, "steps_total": 100})) for place in range(nodes)],
        predictions=known,
        nodes_per_job_max=0,
    )
    decisions = unfolded(make_policy(policy, {}).decide(seen))
    given = [part.gpu_id for one in decisions if isinstance(one, Start) for part in one.assignments]
    assert len(given) == nodes
    assert {gpu_id.rstrip(".0123456789") for gpu_id in given} == {right}


def test_no_job_joins_where_both_ways_slow_too_much_and_the_refusal_names_its_way() -> None:
    play = shared_both_ways("horus", "abc", turns=5.0, mps=5.0)
    assert sum(job.holds_gpus for job in play.engine.state.jobs.values()) == 2
    one, other = (
        Resident(request=play.engine.state.jobs[name].request, micro_batch_size=8, memory_reserved_bytes=1)
        for name in "ab"
    )
    refusal = sharing_obstacle(one, [other], gpu(sharing=MPS), play.engine.state.predictions)
    assert refusal is not None
    assert (refusal.code, refusal.numbers["ways_count"], refusal.numbers["way_here"]) == ("SLOWDOWN_TOO_HIGH", 2, MPS)
    play.tell(events.NodeForgotten, node_id="n0")
    alike = sharing_obstacle(one, [other], gpu(sharing=MPS), play.engine.state.predictions)
    assert alike is not None
    assert "ways_count" not in alike.numbers


def test_what_is_measured_where_jobs_take_turns_says_nothing_of_the_gpus_with_mps() -> None:
    store = shared_both_ways("fifo").engine.state.predictions
    turns, mps = (gpu(sharing=way) for way in (TURNS, MPS))
    store.observe_pair("a", "b", store.name_for(turns), 0.7)
    found = [store.pair("a", "b", place_of(one)) for one in (turns, mps)]
    assert [one and (one.device, one.sharing, one.slowdown_ratio) for one in found] == [
        (DEVICE, TURNS, 0.7),
        (DEVICE, MPS, 0.1),
    ]


def test_a_window_of_two_jobs_with_mps_is_kept_of_that_way_and_told_of_it() -> None:
    play = shared_both_ways("horus", "abc")
    state = play.engine.state
    first, second = sorted(state.gpus["n1.0"].job_ids)
    shown = job_message(state, state.jobs[first]).co_located_jobs
    assert [one.predicted_slowdown_ratio for one in shown] == [0.1]
    candidates = [scheduling_pb2.Candidate(gpu_id="n1.0")]
    name_neighbours(state, state.jobs[first], candidates)
    assert [one.caused_slowdown_ratio for one in candidates[0].co_located_jobs] == [0.1]
    for name in (first, second):
        shape: dict[str, Any] = {"gpus": 1, "micro_batch_size": state.jobs[name].shape.micro_batch_size}
        state.predictions.observe_solo(name, DEVICE, steps=100, window_ms=10_000, **shape)
        play.report(events.JobStarted, name)
    for steps_done in (10, 20):  # the first window warms up
        play.report(
            events.JobProgressed, first, after_ms=20_000, steps_done=steps_done, window_steps=10, window_ms=2_000
        )
    seen = {way: state.predictions.pair(first, second, place_name(DEVICE, way)) for way in DeviceSharing}
    assert {way: one and (one.slowdown_ratio, one.level) for way, one in seen.items()} == {
        UNSTATED: None,
        TURNS: (5.0, Level.GRAPH),
        MPS: (1.0, Level.OBSERVED),
    }
    assert [*state.predictions.refreshes] == [place_name(DEVICE, MPS)]
    assert [*state.predictions.sound_pairs(DEVICE)] == [(first, second, 1.0)]


@pytest.mark.parametrize(("way", "is_known"), [(TURNS, False), (MPS, True)])
def test_who_was_measured_to_lose_too_much_with_mps_may_be_tried_in_turns(
    way: DeviceSharing, *, is_known: bool
) -> None:
    known = shared_both_ways("fifo").engine.state.predictions
    known.observe_pair("a", "b", place_name(DEVICE, MPS), 3.0)
    one, other = (
        Resident(request=job(key, key=key, max_slowdown_ratio=0.5), micro_batch_size=8, memory_reserved_bytes=0)
        for key in "ab"
    )
    assert (_known_break(one, other, gpu(sharing=way), known) is not None) is is_known


def test_jobs_wait_for_each_other_but_on_those_of_the_gpus_that_have_mps() -> None:
    known = shared_both_ways("fifo").engine.state.predictions
    assert [takes_turns(gpu(sharing=way), known) for way in DeviceSharing] == [True, True, False]


@pytest.mark.parametrize("order", [(TURNS, MPS), (MPS, TURNS)])
def test_a_job_waits_for_the_answer_about_every_way_even_a_failed_one(order: tuple[DeviceSharing, ...]) -> None:
    play = Play("horus", nodes=0)
    play.tell(events.NodeJoined, node=shared_node(TURNS, "n0"))
    play.tell(events.NodeJoined, node=shared_node(MPS, "n1"))
    ask(play, "a")
    first, second = order
    answer(play, ["a"], first, 0.1)
    assert play.code("a") == "AWAITING_PREDICTION"
    play.tell(events.PairPredictionsFailed, device=DEVICE, keys=("a",), code="TIMEOUT", sharing=second)
    assert play.code("a") != "AWAITING_PREDICTION"


def test_an_answer_that_was_asked_for_when_all_were_alike_frees_a_job_after_a_node_of_another_way_came() -> None:
    play = Play("horus", nodes=0)
    play.tell(events.NodeJoined, node=shared_node(TURNS, "n0"))
    ask(play, "a")
    play.tell(events.NodeJoined, node=shared_node(MPS, "n1"))
    answer(play, ["a"], TURNS, 0.1)
    assert play.code("a") == "AWAITING_PREDICTION"
    answer(play, ["a"], MPS, 0.1)
    assert play.code("a") != "AWAITING_PREDICTION"
    assert play.engine.state.predictions.outstanding_pairs() == ()


def test_no_job_waits_for_an_answer_about_a_way_of_which_all_is_known_again() -> None:
    play = Play("horus", nodes=0)
    play.tell(events.NodeJoined, node=shared_node(UNSTATED, "n0"))
    ask(play, "a")
    answer(play, ["a"], UNSTATED, 0.1)
    play.tell(events.NodeJoined, node=shared_node(MPS, "n0"))
    play.tell(events.NodeJoined, node=shared_node(UNSTATED, "n1"))
    answer(play, ["a"], MPS, 0.1)
    assert play.engine.state.predictions.outstanding_pairs() == ()


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


def restored(play: Play) -> SchedulerEngine:
    return SchedulerEngine.restore(play.engine.snapshot(), make_policy=make_policy)


def test_living_jobs_that_were_asked_about_in_no_way_are_asked_about_in_each_after_an_upgrade() -> None:
    play = Play("fifo", nodes=0)
    play.tell(events.NodeJoined, node=shared_node(TURNS, "n0"))
    play.tell(events.NodeJoined, node=shared_node(MPS, "n1"))
    for name in "ab":
        ask(play, name)
    for way in (TURNS, MPS):  # as a version leaves them that keeps all under the device type
        play.tell(events.PairPredictionsFailed, device=DEVICE, keys=("a", "b"), code="TIMEOUT", sharing=way)
    answer(play, ["a", "b"], UNSTATED, 0.3)
    engine = restored(play)
    asked = [one for one in pair_questions(engine.reissue()) if isinstance(one, RequestPairPredictions)]
    assert [(one.sharing, set(one.new_keys)) for one in asked] == [(TURNS, {"a", "b"}), (MPS, {"a", "b"})]
    assert engine.state.predictions.outstanding_pairs() == (), "no job waits for what it did without until now"


def test_what_is_known_or_asked_of_each_way_is_not_asked_once_more_after_a_restart() -> None:
    known = shared_both_ways("fifo")
    assert pair_questions(restored(known).reissue()) == []
    waiting = Play("fifo", nodes=0)
    waiting.tell(events.NodeJoined, node=shared_node(TURNS, "n0"))
    waiting.tell(events.NodeJoined, node=shared_node(MPS, "n1"))
    ask(waiting, "a")
    asked = [one for one in pair_questions(restored(waiting).reissue()) if isinstance(one, RequestPairPredictions)]
    assert sorted(one.sharing for one in asked) == [TURNS, MPS]
