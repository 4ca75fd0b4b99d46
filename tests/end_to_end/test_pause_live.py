"""An operator pauses a job of a running cluster: a real scheduler, a real agent, the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import journalled_training
from tests.support.agent import REPOSITORY
from tests.support.live_cluster import PATIENCE_S, SHORT_TIMES, LiveCluster, live_cluster
from tests.support.scheduler_process import wait_until

STEPS = 100
PAUSED_S = 1.2
"""In which a job that is not paused would have made four steps."""
pytestmark = pytest.mark.timeout(600)


class PausedCluster(LiveCluster):
    """One stand-in device."""

    def train(self) -> str:
        """Start a training and wait for its first steps."""
        command = [sys.executable, journalled_training.__file__, str(self.folder), str(STEPS), "20"]
        submitted = self.client.submit(
            name="witness", command=command, steps_total=STEPS, working_directory=str(REPOSITORY)
        )
        self.slow_down(submitted.job_id)
        self.wait_until(submitted.job_id, lambda job: job.steps_done > 2, "its first steps")
        return submitted.job_id

    def hurry(self, job_id: str) -> None:
        """Let the training go on at its own pace."""
        self.slow_down(job_id).unlink()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PausedCluster]:
    folder = tmp_path_factory.mktemp("pauses")
    with live_cluster(PausedCluster, folder, ["agent"], ("--policy", "fifo", *SHORT_TIMES)) as found:
        found.start_agent("agent", "--allow-directory", str(REPOSITORY))
        yield found


def test_a_job_is_paused_and_resumed_by_name_and_loses_no_step(cluster: PausedCluster) -> None:
    job_id = cluster.train()
    reserved = cluster.client.get(job_id).memory_reserved_bytes
    cluster.cotenant("pause", "witness", "--seconds", "50")
    paused = cluster.wait_until(job_id, lambda job: job.HasField("pause"), "it is paused")
    assert (paused.phase, paused.pause.reason.code) == (scheduling_pb2.JOB_PHASE_RUNNING, "PAUSED_BY_OPERATOR")
    assert paused.memory_reserved_bytes == reserved > 0
    before = cluster.journal(job_id)
    served_ms = cluster.client.get(job_id).attained_gpu_ms
    assert "PAUSED_BY_OPERATOR" in cluster.cotenant("ps", "--phase", "paused")
    time.sleep(PAUSED_S)
    assert cluster.journal(job_id) == before
    assert cluster.client.get(job_id).attained_gpu_ms == served_ms
    cluster.cotenant("resume", job_id)
    cluster.hurry(job_id)
    done = cluster.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.restarts, done.attempt) == (STEPS, 0, 1)
    assert done.paused_ms >= PAUSED_S * 1_000
    steps = [int(line[2]) for line in cluster.journal(job_id) if line[0] == "step"]
    assert steps == list(range(1, STEPS + 1))


def test_a_paused_job_goes_on_in_time_although_the_scheduler_was_killed(cluster: PausedCluster) -> None:
    job_id = cluster.train()
    cluster.cotenant("pause", job_id, "--seconds", "10")
    cluster.wait_until(job_id, lambda job: job.HasField("pause"), "it is paused")
    cluster.scheduler.kill()
    before = len(cluster.journal(job_id))
    wait_until(lambda: len(cluster.journal(job_id)) > before, what="it goes on by itself", timeout_s=PATIENCE_S)
    cluster.scheduler.restart()
    cluster.hurry(job_id)
    done = cluster.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.restarts, done.attempt) == (STEPS, 0, 1)
    assert not done.HasField("pause")


def test_what_cannot_be_paused_is_refused_with_the_reason(cluster: PausedCluster) -> None:
    job_id = cluster.train()
    waiting = cluster.client.submit(name="waiting", command=[sys.executable, "-c", ""], steps_total=1)
    refused = cluster.run("pause", waiting.job_id)
    assert refused.returncode != 0
    assert "only a job that runs can be paused" in refused.stderr
    assert cluster.run("pause", "nobody").returncode != 0
    cluster.cotenant("pause", job_id, "--seconds", "61", status=2)
    cluster.cotenant("resume", job_id)
