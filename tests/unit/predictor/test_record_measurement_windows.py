"""Measurement windows over a real port: what is kept, what is refused, what a repeat does, what a full disk answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc, resources_pb2
from predictor_service.profile_store.measurement_window import Source
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor, running_server, stub_of

Stub = prediction_pb2_grpc.PredictionServiceStub


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with running_server(tmp_path, open_predictor(tmp_path / "graphs")) as channel:
        yield stub_of(channel)


def message(number: int, **changes: object) -> resources_pb2.MeasurementWindow:
    job = resources_pb2.MeasuredJob(graph_sha256="ab" * 32, settings=resources_pb2.JobSettings(global_batch_size=16))
    fields = {
        "window_id": f"{number:032x}",
        "campaign": "collected_00000000",
        "device": "CPU-standin",
        "job": job,
        "steps": 100,
        "window_ms": 5_000,
        "utilization_ratio": 0.5,
    }
    return resources_pb2.MeasurementWindow(**{**fields, **changes})  # type: ignore[arg-type]


def record(stub: Stub, *windows: resources_pb2.MeasurementWindow) -> messages.RecordMeasurementWindowsResponse:
    answer: messages.RecordMeasurementWindowsResponse = stub.RecordMeasurementWindows(
        messages.RecordMeasurementWindowsRequest(measurement_windows=windows)
    )
    return answer


def test_windows_are_kept_once_and_refusals_are_named(stub: Stub, tmp_path: Path) -> None:
    wrong_settings = resources_pb2.MeasuredJob(graph_sha256="ab" * 32)
    answer = record(stub, message(1), message(2), message(1), message(3, steps=0), message(4, job=wrong_settings))
    assert (answer.recorded, answer.already_recorded) == (2, 1)
    assert {refused.window_id[-1] for refused in answer.refused} == {"3", "4"}
    assert all(refused.reason for refused in answer.refused)
    assert record(stub, message(2)).already_recorded == 1
    with closing(ProfileStore(tmp_path / FILE_NAME)) as store:
        kept = [item.window for item in store.read() if item.window is not None]
        assert sum(store.status().refused.values()) == 2
    assert [(item.device, item.micro_batch_size, item.step_ms) for item in kept] == [("cpu-standin", 16, 50.0)] * 2
    assert kept[0].sm_activity_ratio is None


def test_more_than_a_thousand_are_refused_at_once(stub: Stub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        record(stub, *(message(number) for number in range(1_001)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_full_disk_is_answered_with_a_remedy_and_predictions_go_on(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ProfileStore, windows: object, at_ms: int) -> None:
        with self._writing() as connection:
            connection.execute("PRAGMA max_page_count = 1")
            connection.execute("CREATE TABLE filling AS SELECT randomblob(100000) AS content")

    with monkeypatch.context() as patch:
        patch.setattr(ProfileStore, "add", refuse)
        with pytest.raises(grpc.RpcError) as caught:
            record(stub, message(1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "check room" in str(caught.value.details())
    question = messages.PredictJobRequest(
        onnx_graph=next(iter(graphs().values())),
        device="cpu-standin",
        settings=resources_pb2.JobSettings(global_batch_size=16),
    )
    assert stub.PredictJob(question).step_ms.value > 0


def test_an_outcome_of_a_job_alone_is_kept_as_a_window(stub: Stub, tmp_path: Path) -> None:
    question = messages.PredictJobRequest(
        onnx_graph=next(iter(graphs().values())),
        device="cpu-standin",
        settings=resources_pb2.JobSettings(global_batch_size=16),
    )
    prediction_id = stub.PredictJob(question).prediction_id
    good = messages.Outcome(prediction_id=prediction_id, step_ms_mean=4.0, utilization_ratio=0.5, window_ms=20_000)
    absurd = messages.Outcome(prediction_id=prediction_id, step_ms_mean=4.0, utilization_ratio=50, window_ms=20_000)
    assert stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=[good, absurd])).recorded == 2
    with closing(ProfileStore(tmp_path / FILE_NAME)) as store:
        (kept,) = [item.window for item in store.read() if item.window is not None]
        assert list(store.status().refused) == ["a utilization or activity outside 0 to 1"]
    assert (kept.source, kept.step_ms) == (Source.OUTCOME, 4.0)
