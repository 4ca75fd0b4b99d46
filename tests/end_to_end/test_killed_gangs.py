"""kill -9 of ranks, keepers, the agent and the scheduler at random moments: no gang is lost, doubled or half alive."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import gang_training
from tests.support.agent import REPOSITORY, AgentProcess, end_jobs, find_processes, prepare_baseline
from tests.support.gang_journals import check_gang
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

STEPS, STEP_MS = 60, 25
RANKS = 2
PATIENCE_S = 300.0
VICTIMS = ("rank", "keeper", "agent", "scheduler")
ENDED = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)


@dataclass
class Cluster:
    """A scheduler and an agent with two stand-in devices, each of which can be killed."""

    folder: Path
    client: SchedulerClient
    scheduler: SchedulerProcess
    agent: AgentProcess

    @property
    def state(self) -> Path:
        return self.folder / "agent"

    def submit(self, number: int) -> str:
        form = ["sharded"] if number % 2 else []
        command = [sys.executable, gang_training.__file__, str(self.folder), str(STEPS), str(STEP_MS), *form]
        submitted = self.client.submit(
            name=f"gang-{number}", command=command, steps_total=STEPS, gpus=RANKS, ranks=RANKS, restart_limit=1_000,
            working_directory=str(self.folder), environment={"PYTHONPATH": str(REPOSITORY)},
            settings={"global_batch_size": 8},
        )  # fmt: skip
        return submitted.job_id

    def kill(self, victim: str, generator: random.Random) -> None:
        if victim == "scheduler":
            self.scheduler.restart()
        elif victim == "agent":
            self.agent.kill()
            self.agent = start_agent(self.folder, self.scheduler)
        else:
            wanted = gang_training.__file__ if victim == "rank" else "shim.py"
            pids = find_processes(wanted, str(self.folder))
            if pids:
                _kill(generator.choice(pids))


def start_agent(folder: Path, scheduler: SchedulerProcess) -> AgentProcess:
    return AgentProcess(folder / "agent", scheduler, "--allow-any-command", devices=("--standin-cores", "0,1"))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    prepare_baseline(folder / "agent")
    arguments = ("--policy", "fifo", "--heartbeat-ms", "300", "--lease-ms", "2000", "--grace-ms", "2000")
    with SchedulerProcess(folder, arguments=arguments) as scheduler, SchedulerClient(scheduler.address) as client:
        cluster = Cluster(folder, client, scheduler, start_agent(folder, scheduler))
        try:
            yield cluster
        finally:
            cluster.agent.kill()
            end_jobs(cluster.state)


def kill_at_random_moments(folder: Path, *, seed: int, kills: int, gangs: int) -> None:
    generator = random.Random(seed)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    generator.shuffle(victims)
    with running_cluster(folder) as cluster:
        job_ids = [cluster.submit(number) for number in range(gangs)]
        for victim in victims:
            time.sleep(generator.uniform(0.1, 2.0))
            cluster.kill(victim, generator)
        jobs = [
            wait_until(lambda name=job_id: ended(cluster.client, name), what=f"{job_id} ends", timeout_s=PATIENCE_S)  # type: ignore[misc]
            for job_id in job_ids
        ]
        wait_until(lambda: not find_processes(gang_training.__file__, str(folder)), what="no rank is left alone")
    for job in jobs:
        assert job.phase == scheduling_pb2.JOB_PHASE_FINISHED, f"seed {seed}: {job}"
        assert job.steps_done == STEPS
        check_gang(folder, job.job_id, ranks=RANKS, steps=STEPS)


def ended(client: SchedulerClient, job_id: str) -> scheduling_pb2.Job | None:
    job = client.get(job_id)
    return job if job.phase in ENDED else None


@pytest.mark.endurance
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [1, 2])
def test_thirty_kills_lose_no_gang_and_leave_no_rank_alone(tmp_path: Path, seed: int) -> None:
    kill_at_random_moments(tmp_path, seed=seed, kills=30, gangs=6)
