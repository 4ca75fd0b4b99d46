"""Trials through a real scheduler: its node agent reports what a test says of jobs alone and together; no predictor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2, scheduling_pb2
from tests.support.fake_agent import GIB, FakeAgent
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

PATIENCE_S = 240.0
ENDLESS = 10_000_000
STEP_MS = 20
pytestmark = pytest.mark.timeout(600)


@dataclass
class SharedGpuAgent(FakeAgent):
    """Its jobs step more slowly when two of them run; of a change of that it reports the steps, but no window.

    Attributes:
        shared_step_ms: What a step takes then.
    """

    shared_step_ms: int = STEP_MS
    _running_before: int = 0

    def _observations(self) -> Iterator[node_agent_pb2.AttemptObservation]:
        living = [attempt for attempt in self.attempts.values() if attempt.exited is None]
        step_ms = STEP_MS if len(living) == 1 else self.shared_step_ms
        window_steps = self.steps_per_heartbeat if len(living) == self._running_before else 0
        self._running_before = len(living)
        for attempt in living:
            attempt.steps_done += self.steps_per_heartbeat
            yield node_agent_pb2.AttemptObservation(
                key=attempt.key,
                steps_done=attempt.steps_done,
                window_steps=window_steps,
                window_ms=window_steps * step_ms,
                utilization_ratio=0.5,
                memory_bytes=GIB,
                memory_peak_bytes=GIB,
                checkpoint_step=attempt.steps_done,
            )


@dataclass(frozen=True)
class TrialCluster:
    """A scheduler without a predictor, and one node with one GPU."""

    client: SchedulerClient
    agent: FakeAgent

    def submit(self, name: str, **fields: object) -> str:
        """Submit a job of one graph that accepts to be half as long again."""
        values: dict[str, Any] = {"graph_sha256": "a" * 64, "max_slowdown_ratio": 0.5, "steps_total": ENDLESS, **fields}
        return self.client.submit(name=name, **values).job_id

    def wait_for(self, job_id: str, *codes: str) -> scheduling_pb2.Job:
        """Wait until a job is where it is for one of these reasons."""
        return self.wait_for_any((job_id,), *codes)

    def wait_for_any(self, job_ids: tuple[str, ...], *codes: str) -> scheduling_pb2.Job:
        """Wait until one of some jobs is where it is for one of these reasons."""

        def look() -> scheduling_pb2.Job | None:
            jobs = (self.client.get(job_id) for job_id in job_ids)
            return next((job for job in jobs if job.reason.code in codes), None)

        return wait_until(look, what=f"{job_ids} {codes}", timeout_s=PATIENCE_S)

    def wait_until_measured(self, job_id: str) -> None:
        """Wait until what is kept for a job alone is what was measured of it."""
        wait_until(
            lambda: 0 < self.client.get(job_id).memory_reserved_bytes < 2 * GIB,
            what=f"{job_id} measured",
            timeout_s=PATIENCE_S,
        )


@contextmanager
def trial_cluster(folder: Path, *flags: str, shared_step_ms: int, gpus: int = 1) -> Iterator[TrialCluster]:
    arguments = ("--predictor", "", "--policy", "horus", "--progress-interval-ms", "1", *flags)
    with (
        SchedulerProcess(folder, arguments=arguments) as scheduler,
        SharedGpuAgent(
            scheduler.address, gpus=gpus, heartbeat_s=0.1, steps_per_heartbeat=4, shared_step_ms=shared_step_ms
        ) as agent,
        SchedulerClient(scheduler.address) as client,
    ):
        yield TrialCluster(client=client, agent=agent)
        assert agent.errors == []


def test_two_jobs_that_keep_their_consent_pass_their_trial_and_go_on_together(tmp_path: Path) -> None:
    with trial_cluster(tmp_path, shared_step_ms=22) as cluster:
        first = cluster.submit("first")
        cluster.wait_until_measured(first)
        second = cluster.submit("second")
        passed = cluster.wait_for(second, "TRIAL_PASSED")
        assert passed.reason.numbers["slowdown_ratio"] == pytest.approx(0.1)
        assert list(passed.reason.job_ids) == [first]
        assert "of 50.0 % allowed" in passed.reason.message
        assert len(cluster.agent.running()) == 2
        assert cluster.agent.stopped == []


def test_where_a_consent_breaks_the_later_job_leaves_with_a_checkpoint_and_the_pair_is_not_tried_again(
    tmp_path: Path,
) -> None:
    with trial_cluster(tmp_path, shared_step_ms=40) as cluster:
        first = cluster.submit("first")
        cluster.wait_until_measured(first)
        second = cluster.submit("second")
        waiting = cluster.wait_for(second, "SLOWDOWN_TOO_HIGH")
        assert waiting.reason.numbers["slowdown_ratio"] == pytest.approx(1.0)
        assert (waiting.phase, waiting.attempt) == (scheduling_pb2.JOB_PHASE_PENDING, 1)
        assert waiting.steps_done > 0, "it goes on from its checkpoint"
        assert [key[0] for key in cluster.agent.stopped] == [second]
        undisturbed = cluster.client.get(first)
        assert (undisturbed.phase, undisturbed.attempt) == (scheduling_pb2.JOB_PHASE_RUNNING, 1)
        history = cluster.client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=second), timeout=90).history
        assert [line.message for line in history if line.kind == "trial"][-1].startswith("The trial is over")
        third = cluster.submit("third")
        cluster.wait_for(third, "SLOWDOWN_TOO_HIGH")


def test_a_cluster_without_trials_lets_such_jobs_run_alone(tmp_path: Path) -> None:
    with trial_cluster(tmp_path, "--no-trials", shared_step_ms=22) as cluster:
        first = cluster.submit("first")
        cluster.wait_until_measured(first)
        second = cluster.submit("second")
        cluster.wait_for(second, "PAIR_UNKNOWN", "JOB_UNKNOWN")
        assert len(cluster.agent.running()) == 1


def test_two_running_jobs_that_were_measured_alone_are_joined_on_trial_so_that_a_third_one_starts(
    tmp_path: Path,
) -> None:
    with trial_cluster(tmp_path, shared_step_ms=22, gpus=2) as cluster:
        # Without a graph: what is measured of a command counts for it.
        first, second = (cluster.submit(name, graph_sha256="", command=["train", name]) for name in ("a", "b"))
        for job_id in (first, second):
            cluster.wait_until_measured(job_id)
        third = cluster.submit("c", graph_sha256="", command=["train", "c"])
        wait_until(
            lambda: cluster.client.get(third).phase == scheduling_pb2.JOB_PHASE_RUNNING,
            what="the third job runs alone",
            timeout_s=PATIENCE_S,
        )
        moved = cluster.wait_for_any((first, second), "TRIAL_PASSED")
        assert moved.attempt == 2
        assert moved.steps_done > 0
