"""Outcomes sent over gRPC teach at once, and a restarted service still knows them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import resources_pb2
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor, running_server, stub_of

_GRAPHS = list(graphs().values())[:2]
_OBSERVED = resources_pb2.ESTIMATE_LEVEL_OBSERVED


def _settings() -> resources_pb2.JobSettings:
    return resources_pb2.JobSettings(global_batch_size=32, optimizer=resources_pb2.OPTIMIZER_ADAM)


def _pairs(hashes: list[str]) -> messages.PredictPairsRequest:
    jobs = [
        messages.JobRef(job_id=f"job{number}", graph_sha256=graph_sha256, settings=_settings())
        for number, graph_sha256 in enumerate(hashes)
    ]
    return messages.PredictPairsRequest(device="cpu-standin", jobs=jobs)


def _slowdown(prediction_id: str, slowdown_ratio: float) -> messages.Outcome:
    return messages.Outcome(
        prediction_id=prediction_id,
        slowdown_ratio=slowdown_ratio,
        victim_job_id="job0",
        other_job_id="job1",
        window_ms=20_000,
    )


def test_a_measured_pair_overrides_its_prediction_also_after_a_restart(tmp_path: Path) -> None:
    predictor = open_predictor(tmp_path / "graphs")
    hashes = [predictor.keep_graph(content)[0] for content in _GRAPHS]
    with running_server(tmp_path, predictor) as channel:
        stub = stub_of(channel)
        before = stub.PredictPairs(_pairs(hashes))
        assert _OBSERVED not in before.level
        outcomes = [_slowdown(before.prediction_id, 2.5)] * 12
        assert stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=outcomes)).recorded == 12
        after = stub.PredictPairs(_pairs(hashes))
    assert after.level[1] == _OBSERVED
    assert after.level[2] != _OBSERVED
    assert after.slowdown_ratio[1] == pytest.approx(2.5, rel=0.05)
    assert after.lower[1] < after.slowdown_ratio[1] < after.upper[1]
    assert after.slowdown_ratio[0] > before.slowdown_ratio[0]
    with running_server(tmp_path, open_predictor(tmp_path / "graphs")) as channel:
        again = stub_of(channel).PredictPairs(_pairs(hashes))
    assert list(again.slowdown_ratio) == pytest.approx(list(after.slowdown_ratio))


def test_a_measured_job_is_answered_at_the_level_observed(tmp_path: Path) -> None:
    request = messages.PredictJobRequest(onnx_graph=_GRAPHS[0], settings=_settings(), device="cpu-standin")
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        before = stub.PredictJob(request)
        outcome = messages.Outcome(
            prediction_id=before.prediction_id, step_ms_mean=3.0 * before.step_ms.value, window_ms=60_000
        )
        stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=[outcome] * 15))
        after = stub.PredictJob(request)
    assert after.step_ms.level == _OBSERVED
    assert after.step_ms.value == pytest.approx(3.0 * before.step_ms.value, rel=0.1)
    assert after.memory_bytes == before.memory_bytes


def test_a_pair_that_the_caller_measured_informs_pairs_that_share_a_job(tmp_path: Path) -> None:
    predictor = open_predictor(tmp_path / "graphs")
    hashes = [predictor.keep_graph(content)[0] for content in _GRAPHS]
    question = _pairs(hashes)
    with running_server(tmp_path, predictor) as channel:
        stub = stub_of(channel)
        before = stub.PredictPairs(question)
        question.observed.append(messages.ObservedPair(victim_job_id="job0", other_job_id="job1", slowdown_ratio=3.0))
        after = stub.PredictPairs(question)
    assert after.slowdown_ratio[1] == pytest.approx(3.0)
    assert after.level[1] == _OBSERVED
    assert after.slowdown_ratio[0] > before.slowdown_ratio[0]
    assert after.level[0] == before.level[0]


def test_a_measured_pair_is_known_of_every_copy_of_its_jobs(tmp_path: Path) -> None:
    predictor = open_predictor(tmp_path / "graphs")
    hashes = [predictor.keep_graph(content)[0] for content in _GRAPHS]
    question = _pairs([*hashes, hashes[0]])
    with running_server(tmp_path, predictor) as channel:
        stub = stub_of(channel)
        outcomes = [_slowdown(stub.PredictPairs(question).prediction_id, 2.5)] * 12
        stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=outcomes))
        answer = stub.PredictPairs(question)
    assert [answer.level[place] == _OBSERVED for place in range(9)] == [place in (1, 7) for place in range(9)]
    assert answer.slowdown_ratio[1] == answer.slowdown_ratio[7]
    assert answer.times_measured[1] == answer.times_measured[7] == 12
    assert list(answer.lower[:3]) == list(answer.lower[6:])


def test_a_slowdown_that_no_job_can_have_leaves_every_number_finite(tmp_path: Path) -> None:
    predictor = open_predictor(tmp_path / "graphs")
    question = _pairs([predictor.keep_graph(content)[0] for content in _GRAPHS])
    question.observed.append(messages.ObservedPair(victim_job_id="job0", other_job_id="job1", slowdown_ratio=1e308))
    with running_server(tmp_path, predictor) as channel:
        answer = stub_of(channel).PredictPairs(question)
    assert answer.slowdown_ratio[1] == pytest.approx(999.0)
    assert all(math.isfinite(value) for value in (*answer.slowdown_ratio, *answer.lower, *answer.upper))
