"""kill -9 with gangs across two agents, at random moments: no gang is lost, doubled or half alive."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import gang_training
from tests.support.agent import find_processes
from tests.support.gang_journals import check_gang
from tests.support.scheduler_process import SchedulerClient, wait_until
from tests.support.two_nodes import two_nodes

STEPS, STEP_MS, GANGS = 60, 25, 6
PATIENCE_S = 400.0
VICTIMS = ("rank", "keeper", "agent", "scheduler")
ENDED = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)


def kill_at_random_moments(folder: Path, *, seed: int, kills: int, gangs: int) -> int:
    """Kill so often while gangs run, and see that nothing is lost; how often they were restarted in sum."""
    generator = random.Random(seed)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    generator.shuffle(victims)
    with two_nodes(folder, "--lease-ms", "2000", "--grace-ms", "2000") as cluster:
        forms = [("sharded",) if number % 2 else () for number in range(gangs)]
        job_ids = [cluster.witness(*form, steps=STEPS, step_ms=STEP_MS, restart_limit=1_000) for form in forms]
        for victim in victims:
            time.sleep(generator.uniform(0.1, 2.0))
            cluster.kill(victim, generator)
        jobs = [
            wait_until(lambda name=job_id: ended(cluster.client, name), what=f"{job_id} ends", timeout_s=PATIENCE_S)  # type: ignore[misc]
            for job_id in job_ids
        ]
        wait_until(lambda: not find_processes(gang_training.__file__), what="no rank is left alone")
    for job in jobs:
        assert job.phase == scheduling_pb2.JOB_PHASE_FINISHED, f"seed {seed}: {job}"
        assert job.steps_done == STEPS
        check_gang(folder, job.job_id, ranks=2, steps=STEPS)
    return sum(job.restarts for job in jobs)


def ended(client: SchedulerClient, job_id: str) -> scheduling_pb2.Job | None:
    job = client.get(job_id)
    return job if job.phase in ENDED else None


@pytest.mark.endurance
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [1, 2])
def test_thirty_kills_lose_no_gang_across_nodes_and_leave_no_rank_alone(tmp_path: Path, seed: int) -> None:
    restarts = kill_at_random_moments(tmp_path, seed=seed, kills=30, gangs=GANGS)
    sys.stdout.write(f"seed {seed}: 30 kills, {GANGS} gangs, {restarts} restarts\n")
