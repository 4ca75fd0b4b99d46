"""Jobs that hurt each other more than predicted are not put together again, nor with jobs that they inform about.

Every job says that it waits for data most of the time, so that sharing looks harmless, and then they take turns. What
the first two do to each other has to reach the decision about a third one, which was asked about before and never was
co-located.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import contending_training
from tests.support.learning_cluster import LearningCluster, learning_cluster
from tests.support.measured_dataset import dense_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEP_MS = 20
HEAVY = 20
"""Weight of the second job, whose turns are so much longer."""
ENOUGH_STEPS = 40
ACCEPTED_RATIO = 0.2
"""What the jobs accept of each other."""


def submit(cluster: LearningCluster, graph_sha256: str, *, weight: int = 1) -> str:
    script = contending_training.__file__
    return cluster.submit(graph_sha256, script, STEP_MS, weight, max_slowdown_ratio=ACCEPTED_RATIO)


def co_located(cluster: LearningCluster, waiting: str, running: str) -> scheduling_pb2.CoLocatedJob:
    """Returns what is predicted of a waiting job with a running one; empty = nothing."""
    for candidate in cluster.scheduler.explain_job(waiting).candidates:
        for other in candidate.co_located_jobs:
            if other.job_id == running:
                return other
    return scheduling_pb2.CoLocatedJob()


def wait_for_warning(cluster: LearningCluster, waiting: str, running: str) -> None:
    cluster.wait_for(
        lambda: co_located(cluster, waiting, running).caused_slowdown_ratio > ACCEPTED_RATIO, f"{waiting} is warned"
    )


def wait_until_running(cluster: LearningCluster, job_id: str) -> None:
    cluster.wait_for(lambda: cluster.phase(job_id) == scheduling_pb2.JOB_PHASE_RUNNING, f"{job_id} runs")


def test_a_slowed_down_job_is_left_alone_and_every_program_may_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with learning_cluster(tmp_path, monkeypatch, folder="jobs", progress_interval=400, pair_refresh=500) as cluster:
        hashes = [
            cluster.predictor.upload_graph(dense_network(widths)).graph_sha256
            for widths in ([64, 48, 10], [32, 32, 10], [48, 32, 10])
        ]
        first = submit(cluster, hashes[0])
        # A job that was never measured alone is never known to be slowed down.
        cluster.wait_for(lambda: cluster.scheduler.get_job(first).solo_step_ms > 0, f"{first} is measured alone")
        second, third = submit(cluster, hashes[1], weight=HEAVY), submit(cluster, hashes[2])
        wait_until_running(cluster, second)
        assert cluster.scheduler.get_job(second).reason.code.startswith("STARTS_SHARED")

        # The third one never ran: it knows how much the second one slows the first down.
        wait_for_warning(cluster, third, first)
        assert co_located(cluster, third, first).times_measured == 0
        cluster.end(second)
        cluster.let_step(first, ENOUGH_STEPS)
        assert cluster.phase(third) == scheduling_pb2.JOB_PHASE_PENDING

        for name in ("predictor", "agent-local", "scheduler"):
            cluster.kill_and_restart(name)
        wait_until_running(cluster, first)
        fourth = submit(cluster, hashes[1])
        wait_for_warning(cluster, fourth, first)
        cluster.let_step(first, ENOUGH_STEPS)
        assert cluster.phase(fourth) == scheduling_pb2.JOB_PHASE_PENDING
        assert cluster.phase(third) == scheduling_pb2.JOB_PHASE_PENDING
        cluster.scheduler.cancel_job(first)
        wait_until_running(cluster, third)
