"""kill -9 of ranks, keepers, the agent and the scheduler at random moments: no gang is lost, doubled or half alive."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.gang_cluster import GangCluster
from tests.support.gang_journals import check_gang
from tests.support.live_cluster import live_cluster
from tests.support.scheduler_process import SchedulerClient, wait_until

STEPS, STEP_MS = 60, 25
RANKS = 2
PATIENCE_S = 300.0
VICTIMS = ("rank", "keeper", "agent", "scheduler")
ENDED = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)


def kill_at_random_moments(folder: Path, *, seed: int, kills: int, gangs: int) -> None:
    generator = random.Random(seed)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    generator.shuffle(victims)
    arguments = ("--policy", "fifo", "--heartbeat-ms", "300", "--lease-ms", "2000", "--grace-ms", "2000")
    with live_cluster(GangCluster, folder, ["agent"], arguments) as cluster:
        cluster.start_agents()
        forms = [["sharded"] if number % 2 else [] for number in range(gangs)]
        job_ids = [cluster.witness(*form, steps=STEPS, step_ms=STEP_MS, restart_limit=1_000) for form in forms]
        for victim in victims:
            time.sleep(generator.uniform(0.1, 2.0))
            cluster.kill(victim, generator)
        jobs = [
            wait_until(lambda name=job_id: ended(cluster.client, name), what=f"{job_id} ends", timeout_s=PATIENCE_S)  # type: ignore[misc]
            for job_id in job_ids
        ]
        wait_until(lambda: not cluster.rank_processes(), what="no rank is left alone")
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
