"""Real processes that claim what is not theirs: another node's job, a node's name, a node without its jobs."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2, scheduling_pb2
from tests.support.agent import AgentProcess, end_jobs, prepare_baseline
from tests.support.agent import wait_until as wait_for
from tests.support.fake_agent import FakeAgent
from tests.support.log_schema import read_lines
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

NO_PREDICTOR = ("--predictor", "", "--policy", "fifo")
SHORT_LEASES = ("--heartbeat-ms", "50", "--lease-ms", "4000", "--grace-ms", "500", "--progress-interval-ms", "50")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(tmp_path, arguments=(*NO_PREDICTOR, *SHORT_LEASES)) as process:
        yield process


def start_endless(client: SchedulerClient) -> None:
    client.submit(steps_total=10**6)
    client.wait_for_phase("job-1", "RUNNING")


def node_events(scheduler: SchedulerProcess, *kinds: str) -> list[str]:
    return [line["fields"]["kind"] for line in scheduler.log_lines() if line["fields"].get("kind") in kinds]


def warnings(scheduler: SchedulerProcess, refusal: str) -> list[dict[str, Any]]:
    return [line for line in scheduler.log_lines() if line["fields"].get("refusal") == refusal]


def metrics(scheduler: SchedulerProcess) -> str:
    page = urllib.request.urlopen(f"http://{scheduler.ready['metrics_address']}/metrics", timeout=90).read()
    return str(page.decode())


def test_a_node_cannot_end_another_nodes_job(scheduler: SchedulerProcess, client: SchedulerClient) -> None:
    with FakeAgent(scheduler.address, node_id="node-1") as owner:
        start_endless(client)
        with FakeAgent(scheduler.address, node_id="node-2") as liar:
            wait_until(lambda: liar.acks, what="the second node has joined")
            (stolen,) = owner.attempts.values()
            for exit_class in ("done", "error", "stopped"):
                ended = node_agent_pb2.AttemptExited(key=stolen.key, exit_class=exit_class, steps_done=10**6)
                liar.say(attempt_exited=ended)
            seen = liar.acks
            wait_until(lambda: liar.acks > seen + 2, what="the lies were taken")
            owner_acks = owner.acks
            wait_until(lambda: owner.acks > owner_acks + 2, what="the owner goes on")
            job = client.get("job-1")
            assert (job.phase, job.attempt) == (scheduling_pb2.JOB_PHASE_RUNNING, 1)
            assert liar.ends_stored == set()
            assert owner.stopped == []
            assert 'cotenant_scheduler_agent_refusals_total{kind="foreign_attempt"} 3.0' in metrics(scheduler)
    assert len(warnings(scheduler, "foreign_attempt")) == 1


def agent_lines(agent: AgentProcess, event: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(agent.output(), "agent") if line["event"] == event]


def wait_for_welcomes(agent: AgentProcess, times: int) -> None:
    wait_for(lambda: len(agent_lines(agent, "welcomed")) == times, "the agent is in")


def test_the_second_agent_with_a_nodes_name_is_refused_loudly_until_the_first_is_gone(
    tmp_path: Path, scheduler: SchedulerProcess
) -> None:
    states = [tmp_path / name for name in ("one", "two")]
    for state in states:
        prepare_baseline(state)
    first = AgentProcess(states[0], scheduler)
    try:
        wait_for(lambda: bool(agent_lines(first, "welcomed")), "the first agent is in")
        second = AgentProcess(states[1], scheduler)
        wait_for(lambda: len(agent_lines(second, "join_refused")) >= 3, "the second agent is refused, and tries again")
        refused = agent_lines(second, "join_refused")[0]
        assert (refused["level"], refused["fields"]["code"]) == ("error", "ALREADY_EXISTS")
        assert "--node-id" in refused["fields"]["reason"]
        assert len(agent_lines(first, "welcomed")) == 1
        assert node_events(scheduler, "NodeJoined", "NodeDisconnected") == ["NodeJoined"]
        assert len(warnings(scheduler, "second_instance")) == 1
        first.kill()
        wait_for(lambda: bool(agent_lines(second, "welcomed")), "the second agent takes over")
        second.kill()
    finally:
        for state in states:
            end_jobs(state)


def test_an_agent_that_was_killed_is_back_at_once(tmp_path: Path, scheduler: SchedulerProcess) -> None:
    prepare_baseline(tmp_path / "one")
    try:
        for times in range(1, 4):
            agent = AgentProcess(tmp_path / "one", scheduler)
            wait_for_welcomes(agent, times)
            agent.kill()
    finally:
        end_jobs(tmp_path / "one")


@pytest.mark.parametrize("restarts_scheduler", [False, True])
def test_a_wiped_node_joins_only_after_the_lease_of_what_it_ran(
    scheduler: SchedulerProcess, client: SchedulerClient, restarts_scheduler: bool
) -> None:
    with FakeAgent(scheduler.address, instance_id="a") as first:
        start_endless(client)
        wait_until(lambda: first.renewed, what="a renewed lease")
    if restarts_scheduler:
        scheduler.restart()
    with FakeAgent(scheduler.address, instance_id="b") as wiped:
        wait_until(lambda: wiped.errors, what="a refusal")
        assert "Join again in" in wiped.errors[0]
        assert "FAILED_PRECONDITION" in wiped.errors[0]
        (key,) = wait_until(lambda: wiped.launched, what="the job starts again")
        assert key[:2] == ("job-1", 2)
    events = node_events(scheduler, "NodeJoined", "NodeLost")
    assert events == ["NodeJoined", "NodeLost", "NodeJoined"]
    assert len(warnings(scheduler, "attempts_missing")) == 1
