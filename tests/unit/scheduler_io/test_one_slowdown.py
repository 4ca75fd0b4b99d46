"""A job that shares a GPU with two others has one expected slowdown: started, stored, refused, explained, in Decide."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.records import Phase, Share
from scheduler_service.grpc_api.scheduling_servicer import Cluster, SchedulingServicer
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.status_codes import Context
from tests.support.engine_play import Play
from tests.support.live_loop import MemoryEventLog, make_loop
from tests.support.scheduling import DEVICE, GIB, all_pairs, prediction

UTILIZATION_RATIO, PAIR_SLOWDOWN_RATIO = 0.6, 0.1
# Two pairs, and two other jobs that wait for each other: .6 * (.36 * (2 - 1.2) / 1.36).
EXPECTED_RATIO = 2 * 0.1 + 0.6 * 0.36 * 0.8 / 1.36
POLICIES: dict[str, dict[str, Any]] = {
    "obp": {},
    "horus": {"max_jobs_per_gpu": 3, "utilization_max_ratio": 2.0},
    "i_greedy": {"compute_requirement": "zero"},
}
NAMES = ("a", "b", "c")


def three_jobs(policy: str, limit_ratio: float) -> Play:
    """Submit three jobs one after another to a cluster of one GPU."""
    play = Play(policy, parameters=POLICIES[policy])
    for name in NAMES:
        play.submit(
            name, key=name, graph=name, share=Share.SAFE, max_slowdown_ratio=limit_ratio, memory_request_bytes=GIB
        )
        known = prediction(name, utilization_ratio=UTILIZATION_RATIO)
        play.tell(events.PredictionArrived, prediction=known)
        keys = sorted(play.engine.state.living_keys)
        play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(keys, PAIR_SLOWDOWN_RATIO)))
    return play


def servicer_of(play: Play) -> SchedulingServicer:
    loop = make_loop(MemoryEventLog())
    loop.engine = play.engine
    absent = cast("Any", None)
    return SchedulingServicer(
        Cluster(loop=loop, numbers=absent, sessions=absent, predictor=absent, watch_hub=absent, admission=absent)
    )


def explained(play: Play) -> scheduling_pb2.ExplainJobResponse:
    request = scheduling_pb2.ExplainJobRequest(job_id="c")
    return asyncio.run(servicer_of(play).ExplainJob(request, cast("Context", None)))


def snapshot_of_three(limit_ratio: float) -> scheduling_pb2.Snapshot:
    found = scheduling_pb2.Snapshot(now_ms=1)
    machine = found.nodes.add(node_id="n0", schedulable=True)
    machine.gpus.add(gpu_id="n0.0", device=DEVICE, memory_bytes=8 * GIB, healthy=True)
    level = resources_pb2.ESTIMATE_LEVEL_GRAPH
    for name in NAMES:
        asked = scheduling_pb2.SnapshotJob(
            job_id=name,
            job_key=name,
            gpus=1,
            global_batch_size=1,
            steps_total=10,
            share=resources_pb2.SHARE_MODE_SAFE,
            max_slowdown_ratio=limit_ratio,
        )
        if name == "c":
            found.pending.add(job=asked)
        else:
            held = found.running.add(job=asked, attempt=1, micro_batch_size=1)
            held.assignments.add(gpu_id="n0.0")
        known = found.job_predictions.add(
            job_key=name, device=DEVICE, utilization_ratio=UTILIZATION_RATIO, level=level, in_domain=True
        )
        known.micro_batches.add(micro_batch_size=1, memory_bytes=GIB, memory_bytes_upper_99=GIB)
        for other in NAMES:
            found.pair_predictions.add(
                victim_job_key=name,
                other_job_key=other,
                device=DEVICE,
                slowdown_ratio=PAIR_SLOWDOWN_RATIO,
                slowdown_upper_ratio=PAIR_SLOWDOWN_RATIO,
                level=level,
                in_domain=True,
            )
    return found


def decided(policy: str, limit_ratio: float) -> scheduling_pb2.Decision:
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=snapshot_of_three(limit_ratio), explain=True)
    request.parameters.update(POLICIES[policy])
    (decision,) = asyncio.run(decide(request, predictor=None, seconds_left=5)).decisions
    return decision


@pytest.mark.parametrize("policy", POLICIES)
def test_a_third_job_starts_with_the_slowdown_that_is_reported_and_stored(policy: str) -> None:
    play = three_jobs(policy, limit_ratio=0.5)
    job = play.engine.state.jobs["c"]
    assert job.phase is Phase.STARTING
    reported = explained(play)
    for reason in (job.reason, reported.reason, reported.job.reason, decided(policy, 0.5).reason):
        assert reason.code == "STARTS_SHARED"
        assert reason.numbers["slowdown_ratio"] == pytest.approx(EXPECTED_RATIO)
        assert reason.numbers["neighbour_slowdown_ratio"] == pytest.approx(EXPECTED_RATIO)
    assert "expected slowdown 32.7 %" in reported.reason.message
    assert job.shape.predicted_slowdown_ratio == reported.job.predicted_slowdown_ratio == pytest.approx(EXPECTED_RATIO)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_third_job_is_refused_for_the_slowdown_with_which_it_would_have_started(policy: str) -> None:
    play = three_jobs(policy, limit_ratio=0.25)
    reported, answer = explained(play), decided(policy, 0.25)
    candidates = [*reported.candidates, *answer.candidates]
    assert len(candidates) == 2
    for reason in (reported.reason, answer.reason, *(candidate.reason for candidate in candidates)):
        assert reason.code == "SLOWDOWN_TOO_HIGH"
        assert reason.numbers["slowdown_ratio"] == pytest.approx(EXPECTED_RATIO)
    assert "32.7 %" in reported.reason.message


@pytest.mark.parametrize("policy", ["obp", "sjf_ffs"])
def test_jobs_of_which_nothing_is_predicted_share_without_a_number(policy: str) -> None:
    play = Play(policy)
    for name in NAMES[:2]:
        play.submit(name, share=Share.ANY, memory_request_bytes=GIB)
    job = play.engine.state.jobs["b"]
    assert (job.phase, job.reason.code) == (Phase.STARTING, "STARTS_SHARED_BLINDLY")
    assert "slowdown_ratio" not in job.reason.numbers
    assert job.shape.predicted_slowdown_ratio is None
