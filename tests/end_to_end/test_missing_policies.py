"""A state whose policy is not installed any more: another one takes its place when that is asked for, and only then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.fake_agent import FakeAgent
from tests.support.loaded_programs import run_program
from tests.support.plugged_policies import install_policies
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

LAST_FIRST = '''
"""The job that came last starts first."""
from collections.abc import Sequence
from dataclasses import dataclass
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound

@dataclass(frozen=True)
class LastFirst:
    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        decide = ExclusiveRound(view).decide
        return [decide(job) for job in sorted(view.pending, key=lambda job: -job.submitted_at_ms)]
'''
JOBS = 3


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[SchedulerProcess, FakeAgent]]:
    """A scheduler that went by a plug-in, with one job that runs and two that wait; it is about to be stopped."""
    environment = install_policies(tmp_path / "site", LAST_FIRST, {"last_first": "LastFirst"})
    process = SchedulerProcess(
        tmp_path,
        arguments=("--predictor", "", "--policy", "last_first"),
        environment=environment,
        before_start=lambda: None,
    )
    with process, FakeAgent(process.address) as agent, SchedulerClient(process.address) as client:
        client.submit(steps_total=10**6)
        client.wait_for_phase("job-1", "RUNNING")
        client.submit()
        client.submit()
        yield process, agent


def started_without(process: SchedulerProcess, folder: Path, *flags: str) -> str:
    """Uninstall the plug-in and try to start; returns what the scheduler said where it did not."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    process.arguments = ("--predictor", "", "--policy", "fifo", *flags)
    before = process.log_file.stat().st_size
    try:
        process.start()
    except AssertionError:
        return process.log_file.read_bytes()[before:].decode()
    return ""


def phases(client: SchedulerClient) -> list[tuple[str, str, int]]:
    return [
        (job.job_id, scheduling_pb2.JobPhase.Name(job.phase).removeprefix("JOB_PHASE_"), job.attempt)
        for job in sorted(client.list_all(), key=lambda job: job.job_id)
    ]


def test_a_missing_policy_is_replaced_by_one_flag_and_jobs_keep_their_place(
    stopped: tuple[SchedulerProcess, FakeAgent], tmp_path: Path
) -> None:
    process, agent = stopped
    process.terminate()
    said = started_without(process, tmp_path)
    assert "there is no policy 'last_first'" in said
    assert "or start once with --replace-missing-policy, which chooses that of --policy" in said
    assert started_without(process, tmp_path, "--replace-missing-policy") == ""
    with SchedulerClient(process.address) as client:
        wait_until(lambda: agent.hellos >= 2, what="the agent is back")
        assert phases(client) == [("job-1", "RUNNING", 1), ("job-2", "PENDING", 0), ("job-3", "PENDING", 0)]
        policies = client.stub.ListPolicies(scheduling_pb2.ListPoliciesRequest(), timeout=90).policies
        assert [policy.name for policy in policies if policy.active] == ["fifo"]
        agent.finish(agent.running()[0])
        client.wait_for_phase("job-2", "RUNNING")
    words = ["audit", "--state-dir", str(process.state_dir)]
    done = run_program("scheduler_service", words, folder=Path.cwd(), environment=os.environ, timeout_s=60)
    assert "use policy" in done.stdout
    assert "fifo" in done.stdout
    (line,) = [line for line in process.log_file.read_text().splitlines() if '"missing_policy_replaced"' in line]
    assert '"policy": "last_first", "setting": "fifo"' in line
    # Whoever starts it later needs no flag.
    process.kill()
    assert started_without(process, tmp_path) == ""


def test_a_missing_policy_whose_decisions_are_not_stored_is_needed_once_more(
    stopped: tuple[SchedulerProcess, FakeAgent], tmp_path: Path
) -> None:
    process, agent = stopped
    process.kill()
    said = started_without(process, tmp_path, "--replace-missing-policy")
    assert "install it again for one start and stop the scheduler with SIGTERM" in said
    process.arguments = ("--predictor", "", "--policy", "last_first")
    install_policies(tmp_path / "site", LAST_FIRST, {"last_first": "LastFirst"})
    process.start()
    with SchedulerClient(process.address) as client:
        client.wait_for_phase("job-1", "RUNNING")
    process.terminate()
    assert started_without(process, tmp_path, "--replace-missing-policy") == ""
    assert len(agent.launched) == 1
