"""The disk of a node is full: no job of the queue is lost to it, what runs there can be ended, and it heals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.agent import STANDIN, TRAINING, AgentProcess, end_jobs, prepare_baseline, write_script
from tests.support.loaded_programs import run_program
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until
from tests.support.small_disks import fill, small_disk

ARGUMENTS = ("--predictor", "", "--policy", "fifo", "--heartbeat-ms", "100", "--progress-interval-ms", "50")
PATIENCE_S = 240.0
# Refusals of a job follow each other after 1, 2, 4 and 8 s, each in an attempt of its own: three by then.
REFUSED_THRICE_S = 4


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with small_disk(tmp_path / "small", "size=8m") as mount:
        yield mount


def test_an_agent_that_cannot_even_begin_says_which_disk_is_full(small: Path) -> None:
    fill(small / "ballast")
    flags = ["--scheduler", "127.0.0.1:1", "--state-dir", str(small / "agent"), *STANDIN]
    done = run_program(
        "cotenant_agent", ["run", *flags], folder=Path.cwd(), environment=os.environ, timeout_s=PATIENCE_S
    )
    assert done.returncode == 1
    assert f"error: {small / 'agent'} takes nothing: No space left on device; make room there" in done.stderr


def test_a_scheduler_that_cannot_begin_says_that_the_disk_is_full_and_that_it_must_be_started_again(
    small: Path,
) -> None:
    fill(small / "ballast")
    flags = ["--address", "127.0.0.1:0", "--metrics-address", "", "--predictor", "", "--state-dir", str(small / "new")]
    done = run_program(
        "scheduler_service", ["serve", *flags], folder=Path.cwd(), environment=os.environ, timeout_s=PATIENCE_S
    )
    assert done.returncode != 0
    assert f"error: the disk of {small / 'new'} is full; free some space there" in done.stderr
    assert "started again" in done.stderr


@pytest.mark.timeout(600)
def test_a_full_disk_of_a_node_costs_no_job_and_keeps_none_from_ending(tmp_path: Path, small: Path) -> None:
    state, script, ballast = small / "agent", write_script(tmp_path, TRAINING), small / "ballast"
    prepare_baseline(state)
    with SchedulerProcess(tmp_path, arguments=ARGUMENTS) as scheduler, SchedulerClient(scheduler.address) as client:
        flags = ("--allow-executable", sys.executable, "--allow-directory", str(tmp_path))
        agent = AgentProcess(state, scheduler, *flags)

        def fault() -> str:
            [node] = client.stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=90).nodes
            return node.gpus[0].fault

        def submit(steps: int) -> str:
            command = [sys.executable, script, str(steps), "0.05"]
            return client.submit(command=command, steps_total=steps, working_directory=str(tmp_path)).job_id

        try:
            running = submit(100_000)
            client.wait_for_phase(running, "RUNNING")
            fill(ballast)
            wait_until(lambda: "make room" in fault(), what="the node says that its disk is full")
            waiting = submit(3)
            client.stub.CancelJob(scheduling_pb2.CancelJobRequest(job_id=running), timeout=90)
            client.wait_for_phase(running, "CANCELLED")
            agent.kill()
            agent = AgentProcess(state, scheduler, *flags)
            time.sleep(REFUSED_THRICE_S)
            assert client.get(waiting).phase == scheduling_pb2.JOB_PHASE_PENDING
            ballast.unlink()
            client.wait_for_phase(waiting, "FINISHED")
            assert client.get(waiting).attempt == 1
        finally:
            agent.kill()
            end_jobs(state)
