"""The real scheduler between agents that measure and a predictor that keeps: what is private stays where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support.fake_agent import FakeAgent
from tests.support.fake_predictor import FakePredictor
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until


def window(name: str) -> resources_pb2.MeasurementWindow:
    return resources_pb2.MeasurementWindow(window_id=name, steps=10)


def arguments(predictor: FakePredictor) -> tuple[str, ...]:
    return ("--predictor", predictor.address, "--policy", "fifo", "--progress-interval-ms", "50")


def test_windows_of_open_nodes_arrive_and_of_private_ones_do_not(tmp_path: Path) -> None:
    with (
        FakePredictor() as predictor,
        SchedulerProcess(tmp_path, arguments=arguments(predictor)) as process,
        FakeAgent(process.address, node_id="private", windows=[window("private")], no_profiles=True) as private,
        FakeAgent(process.address, node_id="open", windows=[window("open")]) as agent,
    ):
        wait_until(lambda: private.acks > 20 and agent.acks > 20, what="heartbeats of both nodes")
        wait_until(lambda: predictor.windows, what="a window")
        assert {item.window_id for item in predictor.windows} == {"open"}
        assert agent.errors == private.errors == []


def test_outcomes_are_sent_of_open_jobs_and_not_of_private_ones(tmp_path: Path) -> None:
    with (
        FakePredictor() as predictor,
        SchedulerProcess(tmp_path, arguments=arguments(predictor)) as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address) as agent,
    ):
        reported: list[str] = []
        for number, is_private in enumerate((True, False), start=1):
            settings = {"global_batch_size": 8 * number}
            spec: dict[str, Any] = {
                "graph_sha256": "ab" * 32,
                "steps_total": 1_000,
                "settings": settings,
                "no_profiles": is_private,
            }
            job_id = client.submit(**spec).job_id
            reported += [item.prediction_id for item in client.wait_for_phase(job_id, "RUNNING").predictions]
            client.wait_until_measured_alone(job_id, steps=120)
            agent.finish(agent.running()[0])
            assert client.wait_for_phase(job_id, "FINISHED").phase == scheduling_pb2.JOB_PHASE_FINISHED
        wait_until(lambda: predictor.outcomes, what="an outcome")
        assert [item.prediction_id for item in predictor.outcomes] == reported[1:]
