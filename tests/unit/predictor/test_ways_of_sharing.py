"""What was measured under MPS says nothing of jobs that take turns, nor the reverse."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.device_sharing import DeviceSharing, read_sharing
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import resources_pb2
from tests.support.predictor_service import open_predictor, running_server, stub_of
from tests.unit.predictor.test_measurement_windows_teach_pairs import Stub, ask, job, listed, record, upload, window

_TURNS, _MPS = resources_pb2.DEVICE_SHARING_TIME_SLICING, resources_pb2.DEVICE_SHARING_MPS
_UNSTATED = resources_pb2.DEVICE_SHARING_UNSPECIFIED


def _measure(stub: Stub, one: str, two: str, *, step_ms: int, under_mps: bool, first: int) -> None:
    alone = window(first, one, under_mps=under_mps)
    together = [window(first + 1 + number, one, two, step_ms=step_ms, under_mps=under_mps) for number in range(3)]
    record(stub, alone, *together)


def test_each_way_is_answered_by_its_own_windows_also_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path, open_predictor(tmp_path / "graphs")) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        _measure(stub, one, two, step_ms=30, under_mps=False, first=1)
        in_turns = ask(stub, one, two, sharing=_TURNS)
        assert not ask(stub, one, two, sharing=_MPS).times_measured
        _measure(stub, one, two, step_ms=11, under_mps=True, first=10)
        answers = [ask(stub, one, two, sharing=way) for way in (_TURNS, _MPS, _UNSTATED)]
    assert list(answers[0].slowdown_ratio) == list(in_turns.slowdown_ratio)
    assert [answer.times_measured[1] for answer in answers] == [3, 3, 6]
    turns, mps, unstated = (answer.slowdown_ratio[1] for answer in answers)
    assert mps < 0.5 < unstated < turns
    with running_server(tmp_path, open_predictor(tmp_path / "graphs")) as channel:
        again = [ask(stub_of(channel), one, two, sharing=way) for way in (_TURNS, _MPS, _UNSTATED)]
    for before, after in zip(answers, again, strict=True):
        assert list(after.slowdown_ratio) == pytest.approx(list(before.slowdown_ratio))


def test_a_pair_under_mps_waits_for_the_time_alone_under_mps(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        record(stub, window(1, one), window(2, one, two, step_ms=30, under_mps=True))
        assert not listed(stub).pairs
        record(stub, window(3, one, step_ms=20, under_mps=True))
        (pair,) = listed(stub).pairs
        assert pair.slowdown_ratio == pytest.approx(0.5)
        assert pair.sharing == _MPS


def test_other_pairs_lean_on_what_was_measured_their_way_only(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, three = upload(stub)
        before = ask(stub, one, three, sharing=_MPS)
        _measure(stub, one, two, step_ms=60, under_mps=False, first=1)
        assert list(ask(stub, one, three, sharing=_MPS).slowdown_ratio) == list(before.slowdown_ratio)
        assert ask(stub, one, three, sharing=_TURNS).slowdown_ratio[1] > 1.5 * before.slowdown_ratio[1]


def test_an_outcome_teaches_the_way_that_was_asked_about(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        for way, slowdown_ratio in ((_MPS, 0.1), (_TURNS, 2.0), (_UNSTATED, 1.0)):
            outcome = messages.Outcome(
                prediction_id=ask(stub, one, two, sharing=way).prediction_id,
                slowdown_ratio=slowdown_ratio,
                victim_job_id=one,
                other_job_id=two,
                window_ms=20_000,
            )
            stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=[outcome] * 2))
        counts = [ask(stub, one, two, sharing=way).times_measured[1] for way in (_TURNS, _MPS, _UNSTATED)]
        rows = {pair.sharing: pair for pair in listed(stub).pairs}
    assert counts == [2, 2, 6]
    assert [rows[way].times_measured for way in (_TURNS, _MPS, _UNSTATED)] == counts
    assert rows[_MPS].slowdown_ratio == pytest.approx(0.1)
    assert rows[_TURNS].slowdown_ratio == pytest.approx(2.0)


def test_ways_of_a_pair_are_rows_of_their_own_in_pages(tmp_path: Path) -> None:
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        _measure(stub, one, two, step_ms=30, under_mps=False, first=1)
        _measure(stub, one, two, step_ms=20, under_mps=True, first=10)
        first = listed(stub, page_size=1)
        rest = listed(stub, page_size=1, page_token=first.next_page_token)
    assert not rest.next_page_token
    assert {pair.sharing for page in (first, rest) for pair in page.pairs} == {_TURNS, _MPS}


def test_a_way_that_is_not_known_here_says_nothing(tmp_path: Path) -> None:
    assert (DeviceSharing(9), read_sharing("mig"), read_sharing(None)) == (DeviceSharing.UNSTATED,) * 3
    assert [read_sharing(way.label) for way in DeviceSharing] == list(DeviceSharing)
    with running_server(tmp_path) as channel:
        stub = stub_of(channel)
        one, two, _ = upload(stub)
        record(stub, window(1, one), window(2, one, co_located_jobs=[job(two)], step_ms=30))
        request = messages.PredictPairsRequest(device="cpu-standin")
        request.jobs.extend(
            messages.JobRef(job_id=name, graph_sha256=name, settings=job(name).settings) for name in (one, two)
        )
        request.MergeFromString(bytes((8 << 3, 9)))
        assert stub.PredictPairs(request).times_measured[1] == 1
