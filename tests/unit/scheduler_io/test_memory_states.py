"""States of memory between contract and core: the predictor's answer, the agent's report, and a snapshot's row."""

from __future__ import annotations

import asyncio
import math

import pytest
from google.protobuf import struct_pb2

from cotenant.job_settings import JobSettings
from cotenant.v1 import node_agent_pb2, prediction_pb2, resources_pb2, scheduling_pb2
from scheduler_service.adapters.agents.memory_reports import memory_report
from scheduler_service.adapters.predictor.prediction_messages import job_prediction, job_question
from scheduler_service.core.commands import RequestPrediction
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.scheduling import GIB

COMMAND = RequestPrediction(
    key="k", graph_sha256="g", device="d", device_memory_bytes=10 * GIB, settings=JobSettings(global_batch_size=8)
)


def answered(
    low_gib: float = 2.0, extra_gib: float = 3.0, high_ratio: float = 0.5
) -> prediction_pb2.PredictJobResponse:
    answer = prediction_pb2.PredictJobResponse()
    for estimate in (answer.utilization_ratio, answer.memory_bytes, answer.step_ms):
        estimate.level = resources_pb2.ESTIMATE_LEVEL_GRAPH
    answer.memory_bytes.value, answer.memory_bytes.upper_99 = 5 * GIB, 6 * GIB
    states = answer.memory_states
    states.low_bytes, states.extra_bytes, states.high_state_ratio = int(low_gib * GIB), int(extra_gib * GIB), high_ratio
    return answer


def test_the_predictor_is_asked_for_them_and_they_become_shares_of_the_device_by_the_bound() -> None:
    assert job_question(COMMAND).find_memory_states
    triple = job_prediction(COMMAND, answered()).memory_triple
    assert triple is not None
    assert (triple.gamma_ratio, triple.delta_ratio) == pytest.approx((0.24, 0.36))
    assert triple.high_state_ratio == 0.5


def test_an_older_predictor_and_a_device_of_unknown_size_give_no_triple() -> None:
    without = answered()
    without.ClearField("memory_states")
    assert job_prediction(COMMAND, without).memory_triple is None
    unknown = RequestPrediction(
        key="k", graph_sha256="g", device="d", device_memory_bytes=0, settings=JobSettings(global_batch_size=8)
    )
    assert job_prediction(unknown, answered()).memory_triple is None


@pytest.mark.parametrize("high_ratio", [math.nan, -0.1, math.inf])
def test_a_share_of_time_that_cannot_be_is_refused(high_ratio: float) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        job_prediction(COMMAND, answered(high_ratio=high_ratio))


def observed(**states: float) -> node_agent_pb2.AttemptObservation:
    made = node_agent_pb2.AttemptObservation(allocated_bytes=7)
    for name, value in states.items():
        setattr(made.memory_states, name, value)
    return made


def test_an_agents_report_is_read() -> None:
    found = memory_report(observed(low_bytes=3, extra_bytes=4, high_state_ratio=0.25))
    assert found is not None
    assert (found.used_bytes, found.low_bytes, found.extra_bytes, found.high_state_ratio) == (7, 3, 4, 0.25)
    assert memory_report(node_agent_pb2.AttemptObservation()) is None


@pytest.mark.parametrize(
    "states", [{"low_bytes": -1}, {"extra_bytes": -1}, {"high_state_ratio": 1.5}, {"high_state_ratio": math.nan}]
)
def test_a_report_that_cannot_be_is_dropped(states: dict[str, float]) -> None:
    assert memory_report(observed(**states)) is None


def papers_two_jobs(*, releases_memory: bool = True) -> scheduling_pb2.Snapshot:
    """Gamma .3, delta .3, p .2 and a peak of .6, one of them running."""
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    node = made.nodes.add(node_id="n", schedulable=True)
    node.gpus.add(gpu_id="g", device="d", memory_bytes=10 * GIB, healthy=True)
    jobs = [
        scheduling_pb2.SnapshotJob(
            job_id=name,
            job_key="k",
            gpus=1,
            global_batch_size=8,
            steps_total=1_000,
            share=resources_pb2.SHARE_MODE_SAFE,
            releases_memory=releases_memory,
        )
        for name in "ab"
    ]
    made.running.add(job=jobs[0], attempt=1, assignments=[scheduling_pb2.Assignment(gpu_id="g")])
    made.pending.add(job=jobs[1])
    row = made.job_predictions.add(job_key="k", device="d", utilization_ratio=0.2, in_domain=True)
    row.level = resources_pb2.ESTIMATE_LEVEL_GRAPH
    row.micro_batches.add(micro_batch_size=8, memory_bytes=6 * GIB, memory_bytes_upper_99=6 * GIB)
    triple = row.memory_triple
    triple.gamma_ratio, triple.delta_ratio, triple.high_state_ratio = 0.3, 0.3, 0.2
    pair = made.pair_predictions.add(victim_job_key="k", other_job_key="k", device="d", in_domain=True)
    pair.slowdown_ratio, pair.level = 0.05, resources_pb2.ESTIMATE_LEVEL_GRAPH
    return made


def decided(snapshot: scheduling_pb2.Snapshot, **parameters: float) -> scheduling_pb2.Decision:
    chosen = struct_pb2.Struct()
    chosen.update(parameters)
    request = scheduling_pb2.DecideRequest(policy="ojpp", parameters=chosen, snapshot=snapshot)
    answer = asyncio.run(decide(request, predictor=None, seconds_left=60))
    (decision,) = [one for one in answer.decisions if one.job_id == "b"]
    return decision


def test_decide_shares_the_papers_two_jobs_where_the_operator_lets_peaks_take_turns() -> None:
    shared = decided(papers_two_jobs(), opportunistic_memory=True, tau_max=0.04)
    assert [part.gpu_id for part in shared.start.assignments] == ["g"]
    assert decided(papers_two_jobs()).reason.code == "MEMORY_DOES_NOT_FIT"
    assert decided(papers_two_jobs(), opportunistic_memory=True, tau_max=0.03).reason.code == "COLLISION_TOO_LIKELY"
    kept = decided(papers_two_jobs(releases_memory=False), opportunistic_memory=True)
    assert kept.reason.code == "MEMORY_DOES_NOT_FIT"
