"""A policy of another package that never answers: the scheduler serves on, says so, and goes by another one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.fake_agent import FakeAgent
from tests.support.loaded_programs import run_program
from tests.support.plugged_policies import install_policies
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, job_spec, wait_until

ENDLESS = '''
"""Starts a job where one waits; with a second one it is at it for ever."""
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policies.fifo import Fifo

def hang(view: SchedulingView) -> None:
    word = os.environ["HANGS_BY"]
    while word == "computing":
        try:
            sorted(view.pending, key=lambda job: job.submitted_at_ms)
        except Exception:
            pass
    if word == "nobody can stop":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    time.sleep(1_000_000)

@dataclass(frozen=True)
class Endless:
    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        if view.running and view.pending:
            hang(view)
        return Fifo().decide(view)
'''
LEASES = ("--heartbeat-ms", "50", "--lease-ms", "4000", "--grace-ms", "500", "--policy-deadline-ms", "2000")


@pytest.mark.parametrize("way", ["computing", "sleeping"])
def test_a_policy_that_never_answers_costs_no_job_and_no_lease_and_another_one_goes_on(
    tmp_path: Path, way: str
) -> None:
    process = scheduler(tmp_path, way)
    with process, FakeAgent(process.address) as agent, SchedulerClient(process.address) as client:
        client.submit(steps_total=10**6)
        client.wait_for_phase("job-1", "RUNNING")
        client.submit()
        reason = wait_until(lambda: is_held_by(client, "job-2", "POLICY_SILENT"), "the policy is given up", 60.0)
        assert "is not asked any more" in reason
        # Submissions, cancels, leases and reports go on.
        client.submit()
        assert is_held_by(client, "job-3", "POLICY_SILENT")
        client.cancel("job-3")
        client.wait_for_phase("job-3", "CANCELLED")
        steps = client.get("job-1").steps_done
        wait_until(lambda: client.get("job-1").steps_done > steps, "reports arrive")
        assert client.get("job-1").attempt == 1
        assert len(agent.launched) == 1
        (warning,) = client.stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=90).warnings
        assert warning.code == "POLICY_SILENT"
        assert warning.message.startswith("policy endless did not answer in ")
        assert [line["level"] for line in process.log_lines() if line["event"] == "policy_silent"] == ["error"]
        # A restart asks it as little, also where that has to be found in the log.
        process.restart()
        wait_until(lambda: agent.hellos >= 2, "the agent is back")
        wait_until(lambda: is_held_by(client, "job-2", "POLICY_SILENT"), "it is still not asked")
        assert [event["kind"] for event in exported(process)].count("PolicySilenced") == 1
        client.stub.SetPolicy(scheduling_pb2.SetPolicyRequest(policy="fifo"), timeout=90)
        agent.finish(agent.running()[0])
        client.wait_for_phase("job-2", "RUNNING")
        assert not client.stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=90).warnings
        process.restart()
        client.wait_for_phase("job-2", "RUNNING")
        assert client.get("job-2").attempt == 1


def test_a_policy_that_nobody_can_stop_is_not_asked_again_by_the_next_scheduler(tmp_path: Path) -> None:
    process = scheduler(tmp_path, "nobody can stop")
    with process, FakeAgent(process.address) as agent, SchedulerClient(process.address) as client:
        client.submit(steps_total=10**6)
        client.wait_for_phase("job-1", "RUNNING")
        # Kept: a call whose answer is dropped is cancelled, perhaps before it is sent.
        submitting = client.stub.SubmitJob.future(scheduling_pb2.SubmitJobRequest(spec=job_spec()), timeout=90)
        wait_until((process.state_dir / "silent_policy.json").exists, "what the policy is late with is marked")
        agent.go_away()
        process.restart()
        submitting.cancel()
        wait_until(lambda: is_held_by(client, "job-2", "POLICY_SILENT"), "it is not asked again")
        assert [event["kind"] for event in exported(process)].count("PolicySilenced") == 1
        client.stub.SetPolicy(scheduling_pb2.SetPolicyRequest(policy="fifo"), timeout=90)
        assert client.get("job-1").attempt == 1


def scheduler(folder: Path, way: str) -> SchedulerProcess:
    environment = {**install_policies(folder / "site", ENDLESS, {"endless": "Endless"}), "HANGS_BY": way}
    arguments = ("--predictor", "", "--policy", "endless", *LEASES)
    return SchedulerProcess(folder, arguments=arguments, environment=environment, before_start=lambda: None)


def is_held_by(client: SchedulerClient, job_id: str, code: str) -> str:
    """The words of the reason for which a job waits; empty = it is another one."""
    reason = client.get(job_id).reason
    return reason.message if reason.code == code else ""


def exported(process: SchedulerProcess) -> list[Mapping[str, object]]:
    words = ["export-log", "--state-dir", str(process.state_dir)]
    done = run_program("scheduler_service", words, folder=Path.cwd(), environment=os.environ, timeout_s=60)
    return [json.loads(line) for line in done.stdout.splitlines()]
