"""Questions to a real port: answers, failures and outages all become events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from cotenant.job_settings import JobSettings
from cotenant.v1 import prediction_pb2
from scheduler_service.adapters.predictor.prediction_messages import fitted_speeds, outcomes_message, pairs_question
from scheduler_service.adapters.predictor.predictor_client import (
    PAIR_MEMBERS_MAX,
    PredictorClient,
    Question,
    open_channel,
    pair_questions,
)
from scheduler_service.core.commands import (
    PairMember,
    RecordOutcome,
    RefreshPairs,
    RequestLossFit,
    RequestPairPredictions,
    RequestPrediction,
    RequestSpeedFit,
    RequestTaskSpeedFit,
)
from scheduler_service.core.events import (
    Event,
    PairPredictionsArrived,
    PairPredictionsFailed,
    PairsRefreshed,
    PredictionArrived,
    PredictionFailed,
)
from scheduler_service.core.fit_events import LossFitted, SpeedFitted, TaskSpeedFitted
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import Level, PairPrediction
from tests.support.cases import for_each
from tests.support.fake_predictor import FakePredictor, GenericPredictor

QUESTION = RequestPrediction(
    key="k",
    device="d",
    device_memory_bytes=1,
    graph_sha256="ab" * 32,
    settings=JobSettings(global_batch_size=32),
    micro_batch_sizes=(16,),
)


def members(count: int) -> tuple[PairMember, ...]:
    return tuple(PairMember(key=f"k{n}", graph_sha256="ab" * 32, settings=None) for n in range(count))


@pytest.fixture
def predictor() -> Iterator[FakePredictor]:
    with FakePredictor() as made:
        yield made


def ask(address: str, command: Question, *, deadline_s: float = 80) -> Event:
    async def main() -> Event:
        client = PredictorClient(open_channel(address) if address else None, deadline_s=deadline_s)
        answer: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        client.request(command, answer.set_result)
        try:
            return await asyncio.wait_for(answer, timeout=90)
        finally:
            await client.close()

    return asyncio.run(main())


def test_an_answer_becomes_a_prediction_with_every_asked_micro_batch(predictor: FakePredictor) -> None:
    event = ask(predictor.address, QUESTION)
    assert isinstance(event, PredictionArrived)
    prediction = event.prediction
    assert (prediction.key, prediction.device, prediction.level) == ("k", "d", Level.GRAPH)
    assert set(prediction.memory) == {16, 32}
    assert prediction.step_ms == {(1, 16): 50.0, (1, 32): 50.0}
    assert prediction.memory[32].memory_bytes_upper_99 == round(predictor.memory_bytes * 1.2)


def test_what_was_noted_before_a_question_is_told_before_it_is_answered(predictor: FakePredictor) -> None:
    """The question may be due to it: a peak above what was predicted."""

    async def main() -> int:
        client = PredictorClient(open_channel(predictor.address), deadline_s=80)
        client.record(RecordOutcome(prediction_id="p", job_id="j", node_ids=(), window_ms=1, memory_peak_bytes=7))
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        client.request(QUESTION, lambda _: answer.set_result(len(predictor.outcomes)))
        try:
            return await asyncio.wait_for(answer, timeout=90)
        finally:
            await client.close()

    assert asyncio.run(main()) == 1


def test_a_prediction_keeps_that_its_range_is_not_calibrated(predictor: FakePredictor) -> None:
    def kept() -> bool:
        event = ask(predictor.address, QUESTION)
        assert isinstance(event, PredictionArrived)
        return event.prediction.range_not_calibrated

    assert not kept()
    predictor.calibrated = False
    assert kept()


def test_a_short_outage_is_bridged_by_retries(predictor: FakePredictor) -> None:
    failures = iter([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE])
    predictor.failure = lambda: next(failures, None)
    assert isinstance(ask(predictor.address, QUESTION), PredictionArrived)
    assert len(predictor.job_questions) == 3


def test_an_outage_ends_after_bounded_retries_as_an_event(predictor: FakePredictor) -> None:
    predictor.failure = lambda: grpc.StatusCode.UNAVAILABLE
    event = ask(predictor.address, QUESTION)
    assert isinstance(event, PredictionFailed)
    assert (event.key, event.device, event.code) == ("k", "d", "PREDICTOR_UNAVAILABLE")
    assert len(predictor.job_questions) == 4


def test_a_refusal_is_not_repeated(predictor: FakePredictor) -> None:
    predictor.failure = lambda: grpc.StatusCode.INVALID_ARGUMENT
    event = ask(predictor.address, QUESTION)
    assert isinstance(event, PredictionFailed)
    assert event.code == "PREDICTOR_INVALID_ARGUMENT"
    assert len(predictor.job_questions) == 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("name", ["memory_bytes", "step_ms", "utilization_ratio"])
def test_a_number_that_cannot_be_is_no_answer(predictor: FakePredictor, name: str, wrong: float) -> None:
    setattr(predictor, name, wrong)
    event = ask(predictor.address, QUESTION, deadline_s=5)
    assert isinstance(event, PredictionFailed)
    assert event.code == "BAD_ANSWER"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_slowdown_that_cannot_be_is_no_answer(predictor: FakePredictor, wrong: float) -> None:
    predictor.slowdown_ratio = wrong
    event = ask(predictor.address, RequestPairPredictions(device="d", members=members(2), new_keys=("k0",)))
    assert isinstance(event, PairPredictionsFailed)
    assert event.code == "BAD_ANSWER"


def test_no_predictor_is_an_event_too() -> None:
    event = ask("", QUESTION)
    assert isinstance(event, PredictionFailed)
    assert event.code == "NO_PREDICTOR"


def test_pairs_come_back_for_the_new_keys_only(predictor: FakePredictor) -> None:
    event = ask(predictor.address, RequestPairPredictions(device="d", members=members(3), new_keys=("k0",)))
    assert isinstance(event, PairPredictionsArrived)
    pairs = {(pair.victim_key, pair.other_key) for pair in event.pairs}
    assert pairs == {("k0", "k0"), ("k0", "k1"), ("k1", "k0"), ("k0", "k2"), ("k2", "k0")}
    assert [pair.slowdown_ratio for pair in event.pairs] == pytest.approx([0.05] * 5)


def test_failed_pairs_name_the_new_keys(predictor: FakePredictor) -> None:
    predictor.failure = lambda: grpc.StatusCode.NOT_FOUND
    event = ask(predictor.address, RequestPairPredictions(device="d", members=members(2), new_keys=("k1",)))
    assert isinstance(event, PairPredictionsFailed)
    assert event.keys == ("k1",)


def known_pairs(*slowdowns: float) -> tuple[PairPrediction, ...]:
    return tuple(
        PairPrediction(victim_key="k0", other_key=f"k{number}", device="d", slowdown_ratio=value, upper_ratio=0.05)
        for number, value in enumerate(slowdowns)
    )


def test_asked_again_only_what_has_changed_comes_back(predictor: FakePredictor) -> None:
    event = ask(predictor.address, RefreshPairs(device="d", members=members(3), known=known_pairs(0.05, 0.9, 0.05)))
    assert isinstance(event, PairsRefreshed)
    assert [pair.other_key for pair in event.pairs] == ["k1"]
    assert event.pairs[0].slowdown_ratio == pytest.approx(0.05)
    assert not event.code


def test_asked_again_in_vain_the_reason_comes_back(predictor: FakePredictor) -> None:
    predictor.failure = lambda: grpc.StatusCode.NOT_FOUND
    command = RefreshPairs(device="d", members=members(2), known=known_pairs(0.5))
    assert ask(predictor.address, command) == PairsRefreshed(at_ms=0, device="d", code="PREDICTOR_NOT_FOUND")


def test_a_question_about_nothing_is_answered_without_a_call(predictor: FakePredictor) -> None:
    assert ask(predictor.address, RefreshPairs(device="d", members=())) == PairsRefreshed(at_ms=0, device="d")
    assert not predictor.pair_questions


def test_measured_pairs_travel_with_the_question_that_names_both_jobs() -> None:
    observed = (("k0", "k1", 0.25), ("k0", "gone", 0.5), ("k1", "k0", -1.0))
    command = RequestPairPredictions(device="d", members=members(2), new_keys=("k0",), observed=observed)
    sent = pairs_question(command).observed
    assert [(pair.victim_job_id, pair.other_job_id, pair.slowdown_ratio) for pair in sent] == [("k0", "k1", 0.25)]
    assert not sent[0].quality_flags


def test_measured_pairs_and_outcomes_travel_with_the_doubts_about_them() -> None:
    observed, doubted = (("k0", "k1", 0.25), ("k1", "k0", 0.5)), frozenset({("k1", "k0")})
    command = RefreshPairs(device="d", members=members(2), observed=observed, doubted=doubted)
    assert [list(pair.quality_flags) for pair in pairs_question(command).observed] == [[], ["foreign_load"]]
    outcome = RecordOutcome(prediction_id="p", memory_peak_bytes=7, quality_flags=("incomplete_run",))
    (sent,) = outcomes_message([outcome]).outcomes
    assert (sent.memory_peak_bytes, list(sent.quality_flags)) == (7, ["incomplete_run"])


def test_the_store_names_the_measured_pairs_of_some_keys_on_one_device() -> None:
    store = PredictionStore()
    for victim, other, device in (("a", "b", "d"), ("a", "c", "d"), ("b", "a", "e")):
        store.observe_pair(victim, other, device, 0.5)
    assert store.observed_among(("a", "b"), "d") == (("a", "b", 0.5),)


@for_each(("new", "total"), [(1, 2_000), (3, 250), (250, 250), (120, 130), (1, 1)])
def test_large_questions_are_split_without_losing_a_pair(new: int, total: int) -> None:
    all_members = members(total)
    new_keys = {member.key for member in all_members[:new]}
    command = RequestPairPredictions(device="d", members=all_members, new_keys=tuple(sorted(new_keys)))
    asked: set[frozenset[str]] = set()
    for question in pair_questions(command):
        assert len(question) <= PAIR_MEMBERS_MAX
        keys = [member.key for member in question]
        asked |= {frozenset((one, other)) for one in keys for other in keys}
    wanted = {frozenset((one, member.key)) for one in new_keys for member in all_members}
    assert wanted <= asked


def test_more_gpus_are_known_from_one_and_only_where_their_share_was_predicted(predictor: FakePredictor) -> None:
    """Two GPUs make one pass of 16 samples where one GPU makes two; the 8 samples of four GPUs have no prediction."""
    event = ask(predictor.address, replace(QUESTION, gpus=(1, 2, 4)))
    assert isinstance(event, PredictionArrived)
    assert event.prediction.step_ms == {(1, 16): 50.0, (1, 32): 50.0, (2, 16): 25.0}


def test_numbers_about_an_unknown_device_type_are_no_prediction() -> None:
    with GenericPredictor() as generic:
        event = ask(generic.address, QUESTION)
    assert isinstance(event, PredictionFailed)
    assert (event.code, event.device) == ("UNKNOWN_DEVICE", "d")


def test_a_question_about_pairs_states_the_memory_that_distinguishes_device_types(predictor: FakePredictor) -> None:
    ask(predictor.address, RequestPairPredictions(device="V100", members=members(2), device_memory_bytes=7))
    ask(predictor.address, RefreshPairs(device="V100", members=members(2), device_memory_bytes=7))
    assert [question.device_memory_bytes for question in predictor.pair_questions] == [7, 7]


SPEED_QUESTION = RequestSpeedFit(
    key="k",
    device="d",
    global_batch_size=64,
    samples=((1, 810.0), (2, 560.0), (4, 410.0)),
    counts=(1, 2, 4, 8),
)


def test_measured_step_times_become_a_curve_over_every_count_asked_about(predictor: FakePredictor) -> None:
    event = ask(predictor.address, SPEED_QUESTION)
    assert isinstance(event, SpeedFitted)
    assert (event.key, event.device, event.code) == ("k", "d", "")
    assert [event.step_ms[gpus] for gpus in (1, 2, 4)] == pytest.approx([810.0, 560.0, 410.0], rel=0.1)
    assert 100.0 < event.step_ms[8] < 410.0 * 1.5
    (question,) = predictor.speed_questions
    assert question.synchrony == prediction_pb2.TRAINING_SYNCHRONY_ALL_REDUCE
    assert [sample.steps_per_s for sample in question.samples] == pytest.approx([1 / 0.81, 1 / 0.56, 1 / 0.41])


def test_a_predictor_that_is_down_leaves_the_foreseen_curve() -> None:
    assert ask("", SPEED_QUESTION) == SpeedFitted(at_ms=0, key="k", device="d", code="NO_PREDICTOR")


TASK_QUESTION = RequestTaskSpeedFit(
    key="k",
    device="d",
    global_batch_size=64,
    samples=((1, 1, 1_000.0), (1, 2, 600.0), (1, 3, 470.0), (2, 1, 1_500.0)),
    asked=((1, 2), (1, 4), (2, 2)),
)


def test_step_times_with_parameter_servers_become_a_curve_over_both_numbers(predictor: FakePredictor) -> None:
    event = ask(predictor.address, TASK_QUESTION)
    assert isinstance(event, TaskSpeedFitted)
    assert (event.key, event.device, event.code, set(event.step_ms)) == ("k", "d", "", set(TASK_QUESTION.asked))
    assert event.step_ms[1, 2] == pytest.approx(600.0, rel=0.1)
    assert event.step_ms[1, 4] < 470.0 < event.step_ms[2, 2]
    (question,) = predictor.speed_questions
    assert question.synchrony == prediction_pb2.TRAINING_SYNCHRONY_SYNCHRONOUS
    assert [(one.resources.workers, one.resources.servers) for one in question.samples] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
    ]


def test_without_a_predictor_no_curve_over_servers_comes() -> None:
    assert ask("", TASK_QUESTION) == TaskSpeedFitted(at_ms=0, key="k", device="d", code="NO_PREDICTOR")


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_fitted_speed_that_cannot_be_is_refused(speed: float) -> None:
    answer = prediction_pb2.FitSpeedModelResponse(predictions=[prediction_pb2.SpeedPrediction(steps_per_s=speed)])
    with pytest.raises(ValueError, match="cannot be"):
        fitted_speeds(SPEED_QUESTION, answer)


def test_reported_losses_become_a_number_of_steps_with_an_interval(predictor: FakePredictor) -> None:
    losses = tuple((steps, 4.0 / (1 + steps / 500) + 0.1) for steps in range(0, 4_000, 100))
    event = ask(predictor.address, RequestLossFit(job_id="j", target_loss=0.35, losses=losses, epoch_steps=100.0))
    assert isinstance(event, LossFitted)
    assert (event.job_id, event.code, event.is_reliable, event.is_reached) == ("j", "", True, False)
    assert event.steps_total == pytest.approx(7_500, rel=0.25)
    assert event.steps_lower < event.steps_total < event.steps_upper
    assert event.confidence == 0.9


def test_losses_below_the_target_have_reached_it(predictor: FakePredictor) -> None:
    losses = tuple((steps, 4.0 / (1 + steps / 500)) for steps in range(0, 4_000, 100))
    event = ask(predictor.address, RequestLossFit(job_id="j", target_loss=1.0, losses=losses, epoch_steps=100.0))
    assert isinstance(event, LossFitted)
    assert event.is_reached
    assert event.steps_total == pytest.approx(1_500, abs=200)


def test_a_target_that_is_not_foreseeable_has_no_number_of_steps(predictor: FakePredictor) -> None:
    losses = tuple((steps, 4.0) for steps in range(0, 4_000, 100))
    event = ask(predictor.address, RequestLossFit(job_id="j", target_loss=1.0, losses=losses, epoch_steps=100.0))
    assert event == LossFitted(at_ms=0, job_id="j", confidence=0.9)


def test_without_a_predictor_no_end_is_foreseen() -> None:
    question = RequestLossFit(job_id="j", target_loss=1.0, losses=((0, 1.0),), epoch_steps=1.0)
    assert ask("", question) == LossFitted(at_ms=0, job_id="j", code="NO_PREDICTOR")


class SizedPredictor(FakePredictor):
    """Says that each sample of the other job at once costs a hundredth."""

    def PredictPairs(  # noqa: N802
        self, request: prediction_pb2.PredictPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictPairsResponse:
        answer = super().PredictPairs(request, context)
        samples = [reference.settings.global_batch_size for reference in request.jobs]
        answer.slowdown_ratio[:] = [other / 100 for _ in samples for other in samples]
        return answer


def test_parts_of_a_batch_are_asked_about_as_jobs_of_their_own_and_answered_by_size() -> None:
    known = PairMember(key="old", graph_sha256="ab" * 32, settings=JobSettings(global_batch_size=64))
    new = replace(known, key="new", settings=JobSettings(global_batch_size=32))
    members = (known, new, replace(new, micro_batch_size=16), replace(new, micro_batch_size=8))
    command = RequestPairPredictions(device="d", members=members, new_keys=("new",))
    with SizedPredictor() as predictor:
        event = ask(predictor.address, command)
    assert isinstance(event, PairPredictionsArrived)
    of_old = {
        (one.micro_batch_size, one.other_micro_batch_size): round(one.slowdown_ratio, 6)
        for one in event.pairs
        if (one.victim_key, one.other_key) == ("old", "new")
    }
    assert of_old == {(0, 0): 0.32, (0, 16): 0.16, (0, 8): 0.08}
    of_new = {one.micro_batch_size for one in event.pairs if (one.victim_key, one.other_key) == ("new", "old")}
    assert of_new == {0, 16, 8}
    assert len(event.pairs) == 2 * 3 + 5, "with itself too, but for two parts"
