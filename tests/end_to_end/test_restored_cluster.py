"""A real agent with a running job meets an empty state, a restored one and one that was set back, at one address."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import grpc
import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.agent import TRAINING, AgentProcess, end_jobs, prepare_baseline, wait_until, write_script
from tests.support.loaded_programs import run_program
from tests.support.log_schema import read_lines
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess

ARGUMENTS = ("--predictor", "", "--policy", "fifo", "--heartbeat-ms", "100", "--progress-interval-ms", "50")


def refusals(agent: AgentProcess, text: str) -> int:
    lines = [line for line in read_lines(agent.output(), "agent") if line["event"] == "join_refused"]
    return sum(text in line["fields"]["reason"] for line in lines)


def state_command(*arguments: str) -> None:
    done = run_program("scheduler_service", arguments, folder=Path.cwd(), environment=os.environ, timeout_s=60)
    assert done.returncode == 0, done.stderr


def standstill(client: SchedulerClient) -> str:
    answer = client.stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=90, wait_for_ready=True)
    return "".join(warning.code for warning in answer.warnings)


def wait_for_steps(client: SchedulerClient, steps: int) -> None:
    before = client.get("job-1").steps_done
    wait_until(lambda: client.get("job-1").steps_done >= before + steps, "the job works, and the scheduler hears it")


@pytest.mark.timeout(600)
def test_a_running_job_outlives_a_strangers_state_and_a_restore(tmp_path: Path) -> None:
    agent_state, script = tmp_path / "agent", write_script(tmp_path, TRAINING)
    prepare_baseline(agent_state)
    with SchedulerProcess(tmp_path, arguments=ARGUMENTS) as scheduler, SchedulerClient(scheduler.address) as client:
        own = scheduler.state_dir
        agent = AgentProcess(agent_state, scheduler, "--allow-executable", sys.executable)
        try:
            client.submit(command=[sys.executable, script, "100000", "0.05"], steps_total=100_000)
            client.wait_for_phase("job-1", "RUNNING")
            state_command("backup", str(tmp_path / "backup"), "--state-dir", str(own))
            shutil.copytree(own, tmp_path / "copy")
            wait_for_steps(client, 10)

            scheduler.kill()
            scheduler.state_dir = tmp_path / "empty"
            scheduler.start()
            wait_until(lambda: refusals(agent, "leave-cluster") > 0, "the node keeps to its cluster")
            assert client.list_all() == []

            scheduler.kill()
            scheduler.state_dir = tmp_path / "copy"
            scheduler.start()
            wait_until(lambda: standstill(client) == "STATE_BEHIND", "the copy knows less than the node")
            with pytest.raises(grpc.RpcError, match="older than what its nodes have seen"):
                client.submit()
            scheduler.restart()
            assert standstill(client) == "STATE_BEHIND"

            scheduler.kill()
            scheduler.state_dir = own
            state_command("restore", str(tmp_path / "backup"), "--state-dir", str(own), "--force")
            scheduler.start()
            wait_until(lambda: refusals(agent, "cotenant nodes confirm") > 0, "the node waits for a person")
            assert standstill(client) == "RESTORE_UNCONFIRMED"
            client.stub.ConfirmRestore(scheduling_pb2.ConfirmRestoreRequest(), timeout=90)
            wait_for_steps(client, 1)
            assert client.get("job-1").attempt == 1
            assert client.submit(command=[sys.executable, script, "1", "0"]).job_id == "job-10002"
        finally:
            agent.kill()
            end_jobs(agent_state)
