"""OJPAP on a running cluster: a worker leaves a co-located job that disturbs it more than was predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_predictor import MIB, FakePredictor
from tests.support.policy_cluster import ENDLESS, GRAPHS, PATIENCE_S, PolicyCluster, policy_cluster
from tests.support.scheduler_process import wait_until

pytestmark = pytest.mark.timeout(600)


def test_ojpap_moves_a_worker_away_from_a_colocated_job_that_disturbs_more_than_was_predicted(tmp_path: Path) -> None:
    """Both are predicted to lose 2 %; together the first one's steps take four times as long, until one is moved."""
    with (
        FakePredictor(utilization_ratio=0.9, memory_bytes=200 * MIB, slowdown_ratio=0.02) as predictor,
        policy_cluster(tmp_path, policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        cluster.use(
            "ojpap",
            'compute_requirement="zero"',
            "interval_ms=500",
            "settle_ms=500",
            "cost_max_ms=60000",
            "unshare=false",
        )
        first = cluster.witness("first", steps=ENDLESS)
        cluster.wait(first, "RUNNING")
        cluster.client.wait_until_measured_alone(first, timeout_s=PATIENCE_S)
        second = cluster.witness("second", steps=ENDLESS, graph_sha256=GRAPHS["two"])
        cluster.wait(second, "RUNNING")
        assert places(cluster, first) == places(cluster, second), "a GPU in use comes before a free one"
        pace = tmp_path / f"{first}.step_ms"
        pace.write_text("160")
        wait_until(
            lambda: places(cluster, first) != places(cluster, second), what="a GPU for each", timeout_s=PATIENCE_S
        )
        pace.unlink()
        for job_id in (first, second):
            cluster.wait(job_id, "RUNNING")
            cluster.wait_for_more_steps(job_id)
        jobs = [cluster.client.get(job_id) for job_id in (first, second)]
        assert sorted(job.attempt for job in jobs) == [1, 2]
        assert [job.restarts for job in jobs] == [0, 0]
        for job in jobs:
            lines = cluster.journal(job.job_id)
            assert not [line for line in lines if line[0] == "twice"]
            steps = [int(line[2]) for line in lines if line[0] == "step"]
            assert sorted(set(steps)) == list(range(1, max(steps) + 1))


def places(cluster: PolicyCluster, job_id: str) -> list[str]:
    """Return the GPUs of a job; none while it is between two of them."""
    return [part.gpu_id for part in cluster.client.get(job_id).assignments]


def test_co_located_jobs_are_moved_apart_when_a_gpu_falls_idle(tmp_path: Path) -> None:
    """Each is predicted to lose 2 % beside the other, which over its many steps is more than a move costs."""
    with (
        FakePredictor(utilization_ratio=0.9, memory_bytes=200 * MIB, slowdown_ratio=0.02) as predictor,
        policy_cluster(tmp_path, policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        cluster.use("ojpap", 'compute_requirement="zero"', "interval_ms=500", "settle_ms=500", "cost_max_ms=60000")
        alone = cluster.witness("alone", steps=ENDLESS, share="SHARE_MODE_NEVER")
        cluster.wait(alone, "RUNNING")
        first = cluster.witness("first", steps=ENDLESS)
        cluster.wait(first, "RUNNING")
        second = cluster.witness("second", steps=ENDLESS, graph_sha256=GRAPHS["two"])
        cluster.wait(second, "RUNNING")
        assert places(cluster, first) == places(cluster, second) != places(cluster, alone)
        for job_id in (first, second):
            cluster.wait_for_more_steps(job_id)
        cluster.client.cancel(alone)
        cluster.wait(alone, "CANCELLED")
        wait_until(
            lambda: places(cluster, first) != places(cluster, second), what="a GPU for each", timeout_s=PATIENCE_S
        )
        for job_id in (first, second):
            cluster.wait(job_id, "RUNNING")
            cluster.wait_for_more_steps(job_id)
            steps = [int(line[2]) for line in cluster.journal(job_id) if line[0] == "step"]
            assert sorted(set(steps)) == list(range(1, max(steps) + 1))
        jobs = [cluster.client.get(job_id) for job_id in (first, second)]
        assert (sorted(job.attempt for job in jobs), [job.restarts for job in jobs]) == ([1, 2], [0, 0])
