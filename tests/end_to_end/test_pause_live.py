"""An operator pauses a job of a running cluster: a real scheduler, a real agent, the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import journalled_training
from tests.support.agent import REPOSITORY, AgentProcess, end_jobs, prepare_baseline
from tests.support.real_cluster import COTENANT
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

PATIENCE_S = 120.0
STEPS = 150
pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class LiveCluster:
    """A scheduler with one stand-in device, and the command line pointed at it."""

    client: SchedulerClient
    scheduler: SchedulerProcess
    folder: Path

    def cotenant(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COTENANT_SCHEDULER": self.scheduler.address, "COLUMNS": "120"}
        command = [*COTENANT, *arguments]
        return subprocess.run(
            command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )

    def train(self) -> str:
        """Start a training and wait for its first steps."""
        command = [sys.executable, journalled_training.__file__, str(self.folder), str(STEPS), "40"]
        submitted = self.client.submit(
            name="witness", command=command, steps_total=STEPS, working_directory=str(REPOSITORY)
        )
        self.wait_until(submitted.job_id, lambda job: job.steps_done > 2, "its first steps")
        return submitted.job_id

    def wait_until(self, job_id: str, accept: Callable[[scheduling_pb2.Job], bool], what: str) -> scheduling_pb2.Job:
        def look() -> scheduling_pb2.Job | None:
            job = self.client.get(job_id)
            return job if accept(job) else None

        return wait_until(look, what=what, timeout_s=PATIENCE_S)

    def journal(self, job_id: str) -> list[str]:
        return (self.folder / f"{job_id}.journal").read_text().splitlines()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    state = tmp_path / "agent"
    prepare_baseline(state)
    arguments = ("--policy", "fifo", "--progress-interval-ms", "100", "--heartbeat-ms", "300")
    with SchedulerProcess(tmp_path, arguments=arguments) as scheduler, SchedulerClient(scheduler.address) as client:
        agent = AgentProcess(state, scheduler, "--allow-directory", str(REPOSITORY))
        try:
            yield LiveCluster(client=client, scheduler=scheduler, folder=tmp_path)
        finally:
            agent.kill()
            end_jobs(state)


def test_a_job_is_paused_and_resumed_by_name_and_loses_no_step(cluster: LiveCluster) -> None:
    job_id = cluster.train()
    reserved = cluster.client.get(job_id).memory_reserved_bytes
    assert cluster.cotenant("pause", "witness", "--seconds", "50").returncode == 0
    paused = cluster.wait_until(job_id, lambda job: job.HasField("pause"), "it is paused")
    assert (paused.phase, paused.pause.reason.code) == (scheduling_pb2.JOB_PHASE_RUNNING, "PAUSED_BY_OPERATOR")
    assert paused.memory_reserved_bytes == reserved > 0
    before = cluster.journal(job_id)
    served_ms = cluster.client.get(job_id).attained_gpu_ms
    assert "PAUSED_BY_OPERATOR" in cluster.cotenant("ps", "--phase", "paused").stdout
    time.sleep(2.0)
    assert cluster.journal(job_id) == before
    assert cluster.client.get(job_id).attained_gpu_ms == served_ms
    assert cluster.cotenant("resume", job_id).returncode == 0
    done = cluster.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.restarts, done.attempt) == (STEPS, 0, 1)
    assert done.paused_ms >= 2_000
    steps = [int(line.split()[2]) for line in cluster.journal(job_id) if line.startswith("step")]
    assert steps == list(range(1, STEPS + 1))


def test_a_paused_job_goes_on_in_time_although_the_scheduler_was_killed(cluster: LiveCluster) -> None:
    job_id = cluster.train()
    assert cluster.cotenant("pause", job_id, "--seconds", "6").returncode == 0
    cluster.wait_until(job_id, lambda job: job.HasField("pause"), "it is paused")
    cluster.scheduler.kill()
    before = len(cluster.journal(job_id))
    wait_until(lambda: len(cluster.journal(job_id)) > before, what="it goes on by itself", timeout_s=PATIENCE_S)
    cluster.scheduler.restart()
    done = cluster.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.restarts, done.attempt) == (STEPS, 0, 1)
    assert not done.HasField("pause")


def test_what_cannot_be_paused_is_refused_with_the_reason(cluster: LiveCluster) -> None:
    job_id = cluster.train()
    waiting = cluster.client.submit(name="waiting", command=[sys.executable, "-c", ""], steps_total=1)
    refused = cluster.cotenant("pause", waiting.job_id)
    assert refused.returncode != 0
    assert "only a job that runs can be paused" in refused.stderr
    assert cluster.cotenant("pause", "nobody").returncode != 0
    assert cluster.cotenant("pause", job_id, "--seconds", "61").returncode == 2
    assert cluster.cotenant("resume", job_id).returncode == 0
