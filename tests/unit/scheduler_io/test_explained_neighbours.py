"""explain names which jobs are on a GPU and what is known of the job with each; a snapshot may be too large for it."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.records import Share
from scheduler_service.errors import InvalidRequestError
from scheduler_service.grpc_api import validation
from scheduler_service.grpc_api.jobs.translate_jobs import name_neighbours
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.engine_play import Play
from tests.support.random_snapshots import SnapshotMaker
from tests.support.scheduling import all_pairs, pair, prediction


def test_a_measured_pair_is_named_with_its_count_and_an_unmeasured_one_with_its_level() -> None:
    play = Play()
    for name, memory_bytes in (("a", 0), ("b", 1 << 60), ("c", 1 << 60)):
        play.submit(name, key=name, graph="g", steps_total=10_000, share=Share.ANY, memory_request_bytes=memory_bytes)
        play.tell(events.PredictionArrived, prediction=prediction(name))
        keys = sorted(play.engine.state.living_keys)
        measured = [pair("c", "a", 0.4, times_measured=3)] if name == "c" else []
        play.tell(events.PairPredictionsArrived, pairs=(*all_pairs(keys), *measured))
    state = play.engine.state
    (there,) = state.gpus["n0.0"].job_ids
    candidates = [scheduling_pb2.Candidate(gpu_id="n0.0"), scheduling_pb2.Candidate(gpu_id="gone")]
    name_neighbours(state, state.jobs["c"], candidates)
    (co_located,) = candidates[0].co_located_jobs
    assert (co_located.job_id, co_located.times_measured, there) == ("a", 3, "a")
    assert co_located.predicted_slowdown_ratio == 0.4
    assert co_located.caused_slowdown_ratio == 0.1
    assert not candidates[1].co_located_jobs
    name_neighbours(state, state.jobs["b"], candidates)
    assert candidates[0].co_located_jobs[1].times_measured == 0
    assert candidates[0].co_located_jobs[1].level == resources_pb2.ESTIMATE_LEVEL_GRAPH


def test_a_snapshot_that_is_too_large_to_be_explained_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "EXPLAINED_LOOKS_MAX", 0)
    snapshot = SnapshotMaker(1).make()
    request = scheduling_pb2.DecideRequest(policy="fifo", snapshot=snapshot, explain=True)
    with pytest.raises(InvalidRequestError, match="explain"):
        asyncio.run(decide(request, predictor=None, seconds_left=5))
    request.explain = False
    assert asyncio.run(decide(request, predictor=None, seconds_left=5)).decisions
