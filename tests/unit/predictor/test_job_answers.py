"""What is known of earlier PredictJob requests saves work and changes no answer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from cotenant.v1 import prediction_pb2, resources_pb2
from cotenant.v1 import prediction_pb2 as messages
from predictor_service.errors import InvalidBatchError, InvalidRequestError
from predictor_service.grpc_api import job_answers
from predictor_service.grpc_api.job_answers import JobAnswers
from predictor_service.grpc_api.translate_answers import job_response
from predictor_service.grpc_api.translate_requests import job_question
from predictor_service.inference import job_estimator
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.observed_jobs import read_entry_job
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.prepared_job import PreparedJob
from predictor_service.inference.records import JobQuestion
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.registry.served_version import ServedVersion
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.predictor_service import trained_store

GRAPHS = graphs()


class Versions:
    """Hands out the version that the test put in."""

    def __init__(self) -> None:
        store = trained_store()
        self.served: ServedVersion | None = store.load(store.names()[0])

    def current(self) -> ServedVersion | None:
        return self.served

    def swap(self, name: str) -> None:
        assert self.served is not None
        manifest = dataclasses.replace(self.served.manifest, version=name)
        self.served = dataclasses.replace(self.served, manifest=manifest)


class CountingPredictor(Predictor):
    """Knows how many questions were prepared."""

    prepared = 0

    def prepare_job(self, question: JobQuestion) -> PreparedJob:
        self.prepared += 1
        return super().prepare_job(question)


class Counted:
    """Counts how often a message is made."""

    def __init__(self, name: str, kind: Any, made: Counter[str]) -> None:
        self._name, self._kind, self._made = name, kind, made

    def __call__(self, **fields: Any) -> Any:
        self._made[self._name] += 1
        return self._kind(**fields)

    def __getattr__(self, name: str) -> Any:
        if name == "FromString":
            self._made[self._name] += 1
        return getattr(self._kind, name)


class Desk:
    """Answers of one service with everything behind them."""

    def __init__(self, folder: Path, questions_max: int = job_answers.QUESTIONS_MAX) -> None:
        self.versions = Versions()
        self.predictor = CountingPredictor(GraphLibrary(InProcessDescriber(), folder / "graphs"), self.versions)
        self.journal = OutcomeJournal(folder / "journal.sqlite")
        self.answers = JobAnswers(self.predictor, self.journal, questions_max)
        self.hashes = {family: self.predictor.keep_graph(content)[0] for family, content in GRAPHS.items()}

    def request(self, family: str = "medium", batch: int = 32, **fields: Any) -> messages.PredictJobRequest:
        settings: Any = {"global_batch_size": batch, "optimizer": "OPTIMIZER_ADAM", **fields.pop("settings", {})}
        fields = {"device": DEVICE, "graph_sha256": self.hashes[family], **fields}
        return messages.PredictJobRequest(settings=settings, **fields)

    def ask(self, *arguments: Any, **fields: Any) -> messages.PredictJobResponse:
        return self.answer(self.request(*arguments, **fields))

    def answer(self, request: messages.PredictJobRequest) -> messages.PredictJobResponse:
        return messages.PredictJobResponse.FromString(self.answers.answer(request))


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.journal.close()


CHANGES: list[dict[str, Any]] = [
    {},
    {"batch": 33},
    {"batch": 7, "micro_batch_sizes": [1, 7]},
    {"family": "deep"},
    {"device": "NVIDIA H200"},
    {"device_memory_bytes": 1 << 34},
    {"confidence": 0.5},
    {"explain": True},
    {"find_largest_batch_size": True},
    {"find_memory_states": True},
    {"settings": {"optimizer": "OPTIMIZER_SGD"}},
    {"settings": {"precision": "PRECISION_BF16"}},
    {"settings": {"mode": "RUN_MODE_INFER"}},
    {"settings": {"input_wait_ratio": 0.25}},
    {"settings": {"input_wait_ms": 18.0}},
    {"batch": 33, "settings": {"input_wait_ms": 18.0}},
    {"batch": 7, "micro_batch_sizes": [1, 7], "settings": {"input_wait_ms": 2.5}, "find_memory_states": True},
    {"settings": {"host_memory_bytes": 1 << 33}},
    {"settings": {"dimension_bindings": {"unused": 3}}},
]


def test_answers_are_those_of_a_predictor_that_keeps_nothing_in_any_order(pipeline: Desk, tmp_path: Path) -> None:
    fresh = Predictor(GraphLibrary(InProcessDescriber(), tmp_path / "graphs"), pipeline.versions, estimators_max=0)
    for change in [*CHANGES, *reversed(CHANGES), *CHANGES]:
        expected = job_response(fresh.predict_job(job_question(pipeline.request(**change))))
        found = pipeline.ask(**change)
        expected.prediction_id = found.prediction_id
        assert found == expected


def test_a_question_is_prepared_once_whatever_its_id_and_batch_and_every_answer_has_an_id_of_its_own(
    pipeline: Desk,
) -> None:
    answers = [pipeline.ask(request_id="a"), pipeline.ask(request_id="b"), pipeline.ask(batch=64)]
    assert pipeline.predictor.prepared == 1
    ids = {answer.prediction_id for answer in answers}
    assert len(ids) == 3
    assert set(pipeline.journal.find(list(ids))) == ids


def test_another_batch_of_a_known_question_makes_no_message_but_the_copy_it_is_known_by(
    pipeline: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is out of domain, with all its reasons: they are written once."""
    made: Counter[str] = Counter()
    for module in (prediction_pb2, resources_pb2):
        for name in module.DESCRIPTOR.message_types_by_name:
            monkeypatch.setattr(module, name, Counted(name, getattr(module, name), made))
    requests = [pipeline.request(batch=batch) for batch in (900_000, 900_001)]
    texts = {text for request in requests for text in pipeline.answer(request).memory_bytes.unusual_features}
    assert texts
    made.clear()
    pipeline.answers.answer(requests[1])
    assert made == {"PredictJobRequest": 1}


def test_a_chance_that_is_not_known_is_not_computed(pipeline: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("asked for a chance that no answer states")

    monkeypatch.setattr(job_estimator, "estimate_chance_above", refuse)
    answer = pipeline.ask(batch=900_000, device_memory_bytes=1 << 20)
    assert answer.memory_bytes.range_not_calibrated
    assert "runs out of device memory with a chance that is not known" in {each.message for each in answer.warnings}


def test_the_journal_has_the_batch_that_was_asked_not_the_one_that_was_asked_first(pipeline: Desk) -> None:
    pipeline.ask(batch=8)
    answer = pipeline.ask(batch=48)
    content = pipeline.journal.find([answer.prediction_id])[answer.prediction_id].content
    assert content["settings"] == [48, "train", "fp32", "adam", 0.0]
    assert content["job_key"] == answer.job_key


def test_the_journal_has_a_wait_in_milliseconds_with_each_batch(pipeline: Desk) -> None:
    for batch, wait_ms in ((8, 18.0), (48, 18.0), (48, 0.1)):
        answer = pipeline.ask(batch=batch, settings={"input_wait_ms": wait_ms})
        content = pipeline.journal.find([answer.prediction_id])[answer.prediction_id].content
        settings = JobSettings(global_batch_size=batch, optimizer="adam", input_wait_ms=wait_ms)
        assert read_entry_job(content) == (pipeline.hashes["medium"], settings)


def test_the_journal_has_what_was_answered_to_the_last_bit(pipeline: Desk) -> None:
    settings = {"input_wait_ratio": 0.25, "dimension_bindings": {"unused": 3}}
    answer = pipeline.ask(batch=48, confidence=0.8, settings=settings)
    estimates = (answer.utilization_ratio, answer.memory_bytes, answer.step_ms)
    assert pipeline.journal.find([answer.prediction_id])[answer.prediction_id].content == {
        "job_key": answer.job_key,
        "utilization_ratio": answer.utilization_ratio.value,
        "memory_bytes": answer.memory_bytes.value,
        "memory_upper_99_bytes": answer.memory_bytes.upper_99,
        "step_ms": answer.step_ms.value,
        "intervals": [[estimate.lower, estimate.upper] for estimate in estimates],
        "confidence": 0.8,
        "graph_sha256": answer.graph.graph_sha256,
        "settings": [48, "train", "fp32", "adam", 0.25],
        "bindings": {"unused": 3},
    }


def test_no_answer_of_a_version_outlives_it(pipeline: Desk) -> None:
    before = pipeline.ask()
    pipeline.versions.swap("another")
    after = pipeline.ask()
    assert (before.model_version == "another", after.model_version) == (False, "another")


def test_no_answer_outlives_what_was_measured_since(pipeline: Desk) -> None:
    before = pipeline.ask()
    entry = pipeline.journal.find([before.prediction_id])[before.prediction_id]
    pipeline.predictor.learn_outcomes([(entry, {"step_ms_mean": 3 * before.step_ms.value, "window_ms": 60_000})])
    after = pipeline.ask()
    assert after.step_ms.level == 1
    assert after.step_ms.value > 1.5 * before.step_ms.value


def test_no_more_questions_are_kept_than_allowed(tmp_path: Path) -> None:
    pipeline = Desk(tmp_path, questions_max=1)
    for family, prepared in (("medium", 1), ("medium", 1), ("deep", 2), ("medium", 3)):
        pipeline.ask(family)
        assert pipeline.predictor.prepared == prepared
    pipeline.journal.close()


def test_a_question_that_is_long_for_no_reason_is_answered_and_not_kept(pipeline: Desk) -> None:
    request = pipeline.request()
    unknown_field = b"\xf8\x3f\x01"
    request.MergeFromString(unknown_field * job_answers.QUESTION_BYTES_MAX)
    assert pipeline.answer(request).fits
    assert pipeline.answer(request).fits
    assert pipeline.predictor.prepared == 2


def test_a_known_question_is_refused_at_a_bad_batch_as_a_new_one_would_be(pipeline: Desk) -> None:
    assert pipeline.ask(micro_batch_sizes=[16]).fits
    with pytest.raises(InvalidBatchError, match="global_batch_size is 0"):
        pipeline.ask(batch=0, micro_batch_sizes=[16])
    with pytest.raises(InvalidBatchError, match="global_batch_size is 2000000"):
        pipeline.ask(batch=2_000_000, micro_batch_sizes=[16])
    with pytest.raises(InvalidRequestError, match="16 is more than the batch of 8"):
        pipeline.ask(batch=8, micro_batch_sizes=[16])
    assert pipeline.ask(micro_batch_sizes=[16]).fits


def test_a_graph_that_is_sent_along_is_answered_and_not_kept_as_a_question(pipeline: Desk) -> None:
    request = pipeline.request()
    request.onnx_graph = GRAPHS["wide"]
    first = pipeline.answer(request)
    assert first.graph.graph_sha256 == pipeline.hashes["wide"]
    pipeline.answer(request)
    assert pipeline.predictor.prepared == 2


def test_memory_states_are_answered_to_those_who_ask_and_add_up_to_the_estimate(pipeline: Desk) -> None:
    assert not pipeline.ask().HasField("memory_states")
    found = pipeline.ask(find_memory_states=True)
    states, peak_bytes = found.memory_states, found.memory_bytes.value
    assert states.low_bytes + states.extra_bytes == pytest.approx(peak_bytes, abs=2)
    assert states.low_bytes == pytest.approx(peak_bytes, abs=2)  # gradients take more than activations of few samples
    larger = pipeline.ask(batch=4_096, find_memory_states=True)
    assert 0 < larger.memory_states.low_bytes < larger.memory_bytes.value
    assert larger.memory_states.extra_bytes > states.extra_bytes
    waiting = pipeline.ask(find_memory_states=True, settings={"input_wait_ratio": 0.5}).memory_states
    assert waiting.high_state_ratio == pytest.approx(0.5 * states.high_state_ratio, rel=0.01)
