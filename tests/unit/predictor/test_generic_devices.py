"""Unknown device types: answered, flagged, and never said to fit without a memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cotenant.job_settings import JobSettings
from cotenant.v1 import prediction_pb2 as messages
from predictor_service.commands.predict import answer_as_table
from predictor_service.errors import InvalidRequestError, UnknownDeviceError
from predictor_service.features.devices import GIBIBYTE
from predictor_service.grpc_api.job_answers import JobAnswers
from predictor_service.grpc_api.translate_answers import job_response
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion, Level, PairJob, PairsQuestion, RiskQuestion
from predictor_service.outcome_journal import OutcomeJournal
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor

GRAPH = graphs()["wide"]
UNKNOWN = "NVIDIA X990"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    made = open_predictor()
    made.keep_graph(GRAPH)
    return made


def ask(predictor: Predictor, device: str, memory_bytes: int = 0, *, batch: int = 8) -> JobAnswer:
    settings = JobSettings(global_batch_size=batch, optimizer="adam")
    return predictor.predict_job(
        JobQuestion(
            settings=settings,
            device=device,
            onnx_graph=GRAPH,
            device_memory_bytes=memory_bytes,
            find_largest_batch=True,
        )
    )


def test_without_its_memory_a_job_never_fits_on_a_generic_type(predictor: Predictor) -> None:
    answer = ask(predictor, UNKNOWN, batch=1)
    assert (answer.fits, answer.device_memory_bytes, answer.largest_batch_that_fits) == (False, 0, None)
    assert (answer.device, answer.device_is_generic) == (UNKNOWN, True)
    assert {"GENERIC_DEVICE", "DEVICE_MEMORY_UNKNOWN"} <= {notice.code for notice in answer.warnings}
    for estimate in (answer.memory_bytes, answer.step_ms, answer.utilization_ratio):
        assert (estimate.level, estimate.in_domain) == (Level.FALLBACK, False)
    assert "unknown: state --device-memory" in answer_as_table(answer)


def test_with_its_memory_a_generic_type_is_answered_and_flagged(predictor: Predictor) -> None:
    answer = ask(predictor, UNKNOWN, 180 * GIBIBYTE)
    assert (answer.fits, answer.device_memory_bytes) == (True, 180 * GIBIBYTE)
    assert answer.largest_batch_that_fits is not None
    assert [notice.code for notice in answer.warnings] == ["GENERIC_DEVICE"]
    assert not ask(predictor, UNKNOWN, 1 << 20).fits


def test_times_on_a_generic_type_are_wider_than_on_one_with_known_peaks(predictor: Predictor) -> None:
    known, generic = ask(predictor, "NVIDIA A10").step_ms, ask(predictor, UNKNOWN).step_ms
    assert generic.upper / generic.lower > 10 * known.upper / known.lower


def test_the_answer_to_a_short_name_is_that_to_the_full_one(predictor: Predictor) -> None:
    short, full = ask(predictor, "rtx4090"), ask(predictor, "NVIDIA GeForce RTX 4090")
    assert job_response(short).device == "NVIDIA GeForce RTX 4090"
    assert not job_response(short).device_is_generic
    assert short._replace(prediction_id="") == full._replace(prediction_id="")


def test_a_short_name_is_journalled_as_the_full_one(predictor: Predictor, tmp_path: Path) -> None:
    journal = OutcomeJournal(tmp_path / "journal.sqlite")
    request = messages.PredictJobRequest(onnx_graph=GRAPH, settings={"global_batch_size": 8}, device="h200")  # type: ignore[arg-type]
    answer = messages.PredictJobResponse.FromString(JobAnswers(predictor, journal).answer(request))
    journal.flush()
    entry = journal.find([answer.prediction_id])[answer.prediction_id]
    journal.close()
    assert entry.device == answer.device == "NVIDIA H200"


def test_pairs_are_answered_for_short_names_and_generic_types(predictor: Predictor) -> None:
    plain = JobSettings(global_batch_size=1)
    alone = PairJob(job_id="a", settings=plain, known_step_ms=10.0, known_utilization_ratio=0.5, known_memory_bytes=1e9)
    jobs = [alone, dataclasses.replace(alone, job_id="b")]
    assert predictor.predict_pairs(PairsQuestion(device="h200", jobs=jobs)).device == "NVIDIA H200"
    picked = PairsQuestion(device="V100", jobs=jobs, device_memory_bytes=16 * GIBIBYTE)
    assert predictor.predict_pairs(picked).device == "Tesla V100-SXM2-16GB"
    generic = PairsQuestion(device="fake-gpu", jobs=jobs, device_memory_bytes=16 * GIBIBYTE)
    assert not predictor.predict_pairs(generic).in_domain.any()
    with pytest.raises(UnknownDeviceError, match="may be one of"):
        predictor.predict_pairs(PairsQuestion(device="V100-SXM2", jobs=jobs))


def test_the_risk_on_a_generic_type_needs_its_memory(predictor: Predictor) -> None:
    jobs = [PairJob(job_id="a", settings=JobSettings(global_batch_size=1), known_memory_bytes=GIBIBYTE)]
    with pytest.raises(InvalidRequestError, match="device_memory_bytes: that of 'NVIDIA X990' is not known"):
        predictor.predict_memory_risk(RiskQuestion(device=UNKNOWN, jobs=jobs))
    risk = predictor.predict_memory_risk(RiskQuestion(device=UNKNOWN, jobs=jobs, device_memory_bytes=2 * GIBIBYTE))
    assert risk.bounds_fit


def test_measured_pairs_are_listed_by_short_names_and_a_slip_is_asked_back(predictor: Predictor) -> None:
    assert predictor.measured_pairs("h200") == predictor.measured_pairs("NVIDIA H200") == []
    with pytest.raises(UnknownDeviceError, match=r"did you mean .*NVIDIA H200"):
        predictor.measured_pairs("h20o")


def test_a_refusal_lists_the_candidates_for_programs(predictor: Predictor) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        ask(predictor, "V100-SXM2")
    assert json.loads(json.dumps(caught.value.details))["candidates"].startswith("Tesla V100-SXM2-16GB")
