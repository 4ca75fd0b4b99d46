"""Windows teach pairs at once: each once, also after a restart, and beyond the jobs that were measured."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc, resources_pb2
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from tests.support import measurement_windows
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor, running_server, stub_of

Stub = prediction_pb2_grpc.PredictionServiceStub
_GRAPHS = list(graphs().values())[:3]
_OBSERVED = resources_pb2.ESTIMATE_LEVEL_OBSERVED
_SETTINGS = resources_pb2.JobSettings(global_batch_size=32, optimizer=resources_pb2.OPTIMIZER_ADAM)
_ALONE_MS = 10


def upload(stub: Stub) -> list[str]:
    return [stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=content)])).graph_sha256 for content in _GRAPHS]


def job(graph_sha256: str) -> resources_pb2.MeasuredJob:
    return resources_pb2.MeasuredJob(graph_sha256=graph_sha256, settings=_SETTINGS)


def window(number: int, victim: str, other: str = "", *, step_ms: int = _ALONE_MS, **changes: Any) -> Any:
    return resources_pb2.MeasurementWindow(
        **{
            "window_id": f"{number:032x}",
            "campaign": "collected_00000000",
            "device": "cpu-standin",
            "job": job(victim),
            "co_located_jobs": [job(other)] if other else [],
            "steps": 1_000,
            "window_ms": 1_000 * step_ms,
            **changes,
        }
    )


def record(stub: Stub, *sent: Any) -> messages.RecordMeasurementWindowsResponse:
    answer: messages.RecordMeasurementWindowsResponse = stub.RecordMeasurementWindows(
        messages.RecordMeasurementWindowsRequest(measurement_windows=sent)
    )
    return answer


def ask(stub: Stub, *hashes: str, **request: Any) -> messages.PredictPairsResponse:
    jobs = [messages.JobRef(job_id=name, graph_sha256=name, settings=_SETTINGS) for name in hashes]
    answer: messages.PredictPairsResponse = stub.PredictPairs(
        messages.PredictPairsRequest(device="cpu-standin", jobs=jobs, **request)
    )
    return answer


def listed(stub: Stub, **request: Any) -> messages.ListMeasuredPairsResponse:
    answer: messages.ListMeasuredPairsResponse = stub.ListMeasuredPairs(messages.ListMeasuredPairsRequest(**request))
    return answer


def test_a_colocated_window_changes_the_next_answer_and_a_restart_does_not(tmp_path: Path) -> None:
    with running_server(tmp_path, open_predictor(tmp_path / "graphs")) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        before = ask(stub, one, two)
        assert not before.times_measured
        record(stub, window(1, one), *(window(2 + number, one, two, step_ms=40) for number in range(3)))
        after = ask(stub, one, two)
    assert list(after.times_measured) == [0, 3, 0, 0]
    assert after.level[1] == _OBSERVED
    assert abs(after.slowdown_ratio[1] - 3.0) < abs(before.slowdown_ratio[1] - 3.0)
    assert after.lower[1] < after.slowdown_ratio[1] < after.upper[1]
    with running_server(tmp_path, open_predictor(tmp_path / "graphs")) as channel:
        again = ask(stub_of(channel), one, two)
    assert list(again.times_measured) == [0, 3, 0, 0]
    assert list(again.slowdown_ratio) == pytest.approx(list(after.slowdown_ratio))


def test_a_window_that_is_sent_twice_counts_once(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        sent = [window(1, one), window(2, one, two, step_ms=30)]
        assert record(stub, *sent, *sent).recorded == 2
        assert record(stub, *sent).already_recorded == 2
        assert [pair.times_measured for pair in listed(stub).pairs] == [1]


def test_a_pair_waits_for_the_time_alone_of_the_same_machine(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        record(stub, window(1, one, two, step_ms=30))
        record(stub, window(2, one, campaign="collected_ffffffff"))
        assert not listed(stub).pairs
        record(stub, window(3, one))
        (pair,) = listed(stub).pairs
        assert pair.slowdown_ratio == pytest.approx(2.0)
        assert pair.lower < 2.0 < pair.upper
        assert (pair.victim_graph_sha256, pair.other_graph_sha256) == (one, two)
        assert pair.newest_at_ms > 0


def test_a_used_device_or_two_others_say_nothing_of_a_pair_and_unsteady_windows_do(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, three = upload(stub)
        multiway = window(2, one, co_located_jobs=[job(two), job(three)])
        record(stub, window(1, one), multiway, window(3, one, two, step_ms=30, quality_flags=["foreign_load"]))
        assert not listed(stub).pairs
        record(stub, window(4, one, two, step_ms=30, quality_flags=["unsteady"]))
        assert listed(stub).pairs


def test_a_pair_whose_other_job_has_gone_still_informs_the_next_one(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, three = upload(stub)
        before = ask(stub, one, three)
        record(stub, window(1, one), *(window(2 + number, one, two, step_ms=60) for number in range(4)))
        after = ask(stub, one, three)
    assert list(after.job_ids) == [one, three]
    assert not after.times_measured
    assert after.slowdown_ratio[1] > 1.5 * before.slowdown_ratio[1]


def test_the_table_is_listed_in_pages_of_one_device_type(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, three = upload(stub)
        record(stub, window(1, one), window(2, one, two, step_ms=20), window(3, one, three, step_ms=20))
        first = listed(stub, device="CPU-standin", page_size=1)
        rest = listed(stub, device="CPU-standin", page_token=first.next_page_token)
        assert len(first.pairs) == len(rest.pairs) == 1
        assert not rest.next_page_token
        assert first.pairs[0].other_job_key < rest.pairs[0].other_job_key
        assert not listed(stub, device="NVIDIA L4").pairs
        for wrong in ({"device": "abacus"}, {"page_size": 1_001}):
            with pytest.raises(grpc.RpcError) as caught:
                listed(stub, **wrong)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_what_another_program_deletes_is_forgotten_by_the_next_learner(tmp_path: Path) -> None:
    predictor = open_predictor(tmp_path / "graphs")
    with closing(ProfileStore(tmp_path / FILE_NAME)) as store:
        measured = [
            measurement_windows.window(1),
            measurement_windows.window(2, others=(measurement_windows.job(2),), window_ms=40_000),
        ]
        store.add(measured, measurement_windows.NOW_MS)
        predictor.relearn([], store.read())
        assert [pair.seen.times for pair in predictor.measured_pairs()] == [1]
        assert not store.was_changed_elsewhere()
        with closing(ProfileStore(tmp_path / FILE_NAME)) as other:
            other.forget()
        assert store.was_changed_elsewhere()
        assert not store.was_changed_elsewhere()
        predictor.relearn([], store.read())
    assert predictor.measured_pairs() == []
