"""In process and over gRPC the same question has the same answer, and the same bad question the same refusal."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.v1 import prediction_pb2 as messages
from predictor_service.errors import PredictorError
from predictor_service.grpc_api.status_codes import STATUS_CODES
from predictor_service.grpc_api.translate_answers import job_response, pairs_response, risk_response
from predictor_service.grpc_api.translate_requests import job_question, pairs_question, risk_question
from predictor_service.inference.predictor import Predictor
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor, running_server, stub_of

GRAPHS = graphs()
Ask = Callable[[Any], Any]

ASKED: dict[type, Callable[[Predictor, Any], Any]] = {
    messages.PredictJobRequest: lambda p, question: job_response(p.predict_job(job_question(question))),
    messages.PredictPairsRequest: lambda p, question: pairs_response(p.predict_pairs(pairs_question(question))),
    messages.PredictMemoryRiskRequest: lambda p, question: risk_response(
        p.predict_memory_risk(risk_question(question))
    ),
}


@pytest.fixture(scope="module", params=["in_process", "grpc"])
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    folder: Path = tmp_path_factory.mktemp("state")
    predictor = open_predictor(folder / "graphs")
    for content in GRAPHS.values():
        predictor.keep_graph(content)
    if request.param == "in_process":
        yield lambda question: ASKED[type(question)](predictor, question)
        return
    with running_server(folder, predictor) as channel:
        stub = stub_of(channel)
        calls: dict[type, Ask] = {
            messages.PredictJobRequest: stub.PredictJob,
            messages.PredictPairsRequest: stub.PredictPairs,
            messages.PredictMemoryRiskRequest: stub.PredictMemoryRisk,
        }
        yield lambda question: calls[type(question)](question)


def job_request(family: str = "medium", batch: int = 32, **fields: Any) -> messages.PredictJobRequest:
    settings: Any = {"global_batch_size": batch, "optimizer": "OPTIMIZER_ADAM"}
    fields = {"device": "cpu-standin", "onnx_graph": GRAPHS[family], **fields}
    return messages.PredictJobRequest(settings=settings, **fields)


def test_both_give_the_same_answer(ask: Ask) -> None:
    predictor = open_predictor()
    request = job_request(micro_batch_sizes=[8, 16], find_largest_batch_size=True, explain=True)
    expected, found = job_response(predictor.predict_job(job_question(request))), ask(request)
    found.prediction_id = expected.prediction_id
    assert found == expected


def test_a_job_is_within_its_own_interval_and_below_its_bound(ask: Ask) -> None:
    answer = ask(job_request())
    for estimate in (answer.memory_bytes, answer.step_ms, answer.utilization_ratio):
        assert 0 < estimate.lower <= estimate.value <= estimate.upper
    assert answer.memory_bytes.upper_99 >= answer.memory_bytes.value
    assert answer.memory_bytes.level == 3
    assert answer.memory_bytes.in_domain


def test_an_untrained_device_is_answered_from_its_peaks_and_says_so(ask: Ask) -> None:
    answer = ask(job_request(device="NVIDIA H200"))
    assert answer.memory_bytes.level == 4
    assert not answer.memory_bytes.in_domain
    assert "NO_TRAINED_MODEL" in [warning.code for warning in answer.warnings]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch": 0}, "from 1 to 1000000"),
        ({"batch": 10**9}, "from 1 to 1000000"),
        ({"device": "Abacus"}, "known: 125 types, among them cpu-standin"),
        ({"onnx_graph": b"\x00\x01"}, "onnx"),
        ({"onnx_graph": b"", "graph_sha256": "0" * 64}, "UploadGraph"),
        ({"micro_batch_sizes": [64]}, "more than the batch of 32"),
        ({"confidence": 2.0}, "0.5 to 0.999"),
    ],
)
def test_a_bad_question_is_refused_with_its_remedy(ask: Ask, fields: dict[str, Any], words: str) -> None:
    with pytest.raises((PredictorError, grpc.RpcError)) as caught:
        ask(job_request(**fields))
    error = caught.value
    code = STATUS_CODES[type(error)] if isinstance(error, PredictorError) else error.code()  # type: ignore[attr-defined]
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert words.lower() in str(error).lower()


def pair_request(**fields: Any) -> messages.PredictPairsRequest:
    jobs: Any = [
        {"job_id": "a", "settings": {"global_batch_size": 8}, "known_step_ms": 9.0, "known_utilization_ratio": 0.9,
         "known_memory_bytes": 200 << 20},
        {"job_id": "b", "settings": {"global_batch_size": 8}, "known_step_ms": 5.0, "known_utilization_ratio": 0.5,
         "known_memory_bytes": 300 << 20},
    ]  # fmt: skip
    return messages.PredictPairsRequest(device="cpu-standin", jobs=jobs, **fields)


def test_known_jobs_need_no_graph_and_reach_the_true_slowdown(ask: Ask) -> None:
    answer = ask(pair_request())
    assert list(answer.level) == [2, 2, 2, 2]
    assert answer.slowdown_ratio[1] == pytest.approx(0.9 * 0.5, abs=0.1)


def test_an_observed_pair_overrides_the_prediction_of_that_order_only(ask: Ask) -> None:
    observed: Any = [{"victim_job_id": "a", "other_job_id": "b", "slowdown_ratio": 0.75}]
    answer = ask(pair_request(observed=observed))
    assert list(answer.level) == [2, 1, 2, 2]
    assert answer.slowdown_ratio[1] == pytest.approx(0.75)


def risk_request(sha256: str, **fields: Any) -> messages.PredictMemoryRiskRequest:
    jobs: Any = [
        {"job_id": "a", "graph_sha256": sha256, "settings": {"global_batch_size": 32, "optimizer": "OPTIMIZER_ADAM"}},
        {"job_id": "b", "known_memory_bytes": 300 << 20},
    ]
    return messages.PredictMemoryRiskRequest(device="cpu-standin", jobs=jobs, **fields)


def test_both_give_the_same_risk_and_it_falls_as_the_device_grows(ask: Ask) -> None:
    predictor = open_predictor()
    sha256, _, _ = predictor.keep_graph(GRAPHS["wide"])
    risks = []
    for gibibytes in (0.25, 1.0, 64.0):
        request = risk_request(sha256, device_memory_bytes=int(gibibytes * (1 << 30)))
        expected, found = risk_response(predictor.predict_memory_risk(risk_question(request))), ask(request)
        assert found == expected
        risks.append(found.union_bound_risk_ratio)
    assert risks[0] == 1.0
    assert risks == sorted(risks, reverse=True)
    assert risks[-1] == 0.0


def test_a_set_with_a_job_that_is_only_counted_has_no_risk(ask: Ask) -> None:
    sha256, _, _ = open_predictor().keep_graph(GRAPHS["wide"])
    request = risk_request(sha256)
    request.device = "NVIDIA H200"
    answer = ask(request)
    assert not answer.HasField("union_bound_risk_ratio")
    assert answer.bounds_fit
    assert [warning.code for warning in answer.warnings] == ["NO_TRAINED_MODEL"]


@pytest.mark.parametrize(("fields", "words"), [({"device_memory_bytes": -1}, "below 0"), ({"confidence": 3.0}, "0.5")])
def test_a_bad_question_about_a_set_is_refused(ask: Ask, fields: dict[str, Any], words: str) -> None:
    with pytest.raises((PredictorError, grpc.RpcError)) as caught:
        ask(risk_request("0" * 64, **fields))
    assert words in str(caught.value)
