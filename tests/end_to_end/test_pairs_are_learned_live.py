"""Jobs that hurt each other more than predicted are not put together again, nor with those of whom they tell.

Real predictor, scheduler and agent on one stand-in device. Every job says that it waits for data most of the time, so
that sharing looks harmless, and then keeps its core busy. What the first two do to each other has to reach the decision
about a third one, which was asked about before and never ran beside anybody.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cotenant.client import ChannelOptions, PredictorClient, SchedulerClient, open_channel
from cotenant.client_errors import ServiceError
from cotenant.local_cluster import AgentOptions, LocalCluster
from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support import busy_training
from tests.support.agent import prepare_baseline
from tests.support.measured_dataset import dense_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
STEPS = 100_000
STEP_CPU_MS = 20
ENOUGH_STEPS = 40
WAIT_S = 120
ACCEPTED_RATIO = 0.2
"""What the jobs accept of each other."""
ENDED = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)


@dataclass(frozen=True)
class Cluster:
    """A running cluster with clients of both services."""

    programs: LocalCluster
    scheduler: SchedulerClient
    predictor: PredictorClient
    folder: Path

    def submit(self, graph_sha256: str, *, helpers: int = 0) -> str:
        spec = scheduling_pb2.JobSpec(
            name="busy",
            command=[sys.executable, busy_training.__file__, str(STEPS), str(STEP_CPU_MS), str(helpers)],
            working_directory=str(self.folder),
            graph_sha256=graph_sha256,
            settings=resources_pb2.JobSettings(batch_size=16, input_wait_ratio=0.9),
            steps_total=STEPS,
            share=resources_pb2.SHARE_MODE_ANY,
            max_slowdown_ratio=ACCEPTED_RATIO,
        )
        return self.scheduler.submit_job(spec).job_id

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits for what must come true; a service that was killed may be away for a moment."""
        deadline = time.monotonic() + WAIT_S
        while not self._holds(is_so):
            assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}; {self._story()}"
            time.sleep(0.2)

    def _holds(self, is_so: Callable[[], bool]) -> bool:
        try:
            return is_so()
        except ServiceError:
            return False

    def _story(self) -> str:
        jobs = [(job.job_id, job.phase, job.reason.message) for job in self.scheduler.list_jobs()]
        return str(jobs)

    def phase(self, job_id: str) -> scheduling_pb2.JobPhase.ValueType:
        return self.scheduler.get_job(job_id).phase

    def let_step(self, job_id: str) -> None:
        goal = self.scheduler.get_job(job_id).steps_done + ENOUGH_STEPS
        self.wait_for(lambda: self.scheduler.get_job(job_id).steps_done >= goal, f"{job_id} steps")

    def beside(self, waiting: str, running: str) -> scheduling_pb2.Neighbour:
        """Returns what is believed of a waiting job beside a running one; empty = nothing."""
        for candidate in self.scheduler.explain_job(waiting).candidates:
            for neighbour in candidate.neighbours:
                if neighbour.job_id == running:
                    return neighbour
        return scheduling_pb2.Neighbour()

    def kill_and_restart(self, name: str) -> None:
        """As a power cut of one program."""
        program = self.programs.programs[name]
        program.kill()
        program.start()
        assert program.wait_ready()


@contextmanager
def running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Starts a cluster whose predictor never learned anything."""
    state, folder = tmp_path / "cluster", tmp_path / "jobs"
    for path in (folder, tmp_path / "no-datasets"):
        path.mkdir()
    prepare_baseline(state / "agent-local")
    monkeypatch.setenv("COTENANT_PREDICTOR_DATASETS", str(tmp_path / "no-datasets"))
    for name, value_ms in (("HEARTBEAT", 200), ("PROGRESS_INTERVAL", 400), ("PAIR_REFRESH", 500)):
        monkeypatch.setenv(f"COTENANT_SCHEDULER_{name}_MS", str(value_ms))
    options = AgentOptions(
        standin_cores=(max(os.sched_getaffinity(0)),), allowed_directories=(folder,), stop_jobs_on_exit=True
    )
    cluster = LocalCluster(state_dir=state, policy="horus", agents=(options,))
    cluster.start()
    for name in ("scheduler", "predictor"):
        program = cluster.programs[name]
        program.arguments[program.arguments.index("--address") + 1] = program.address
    try:
        with (
            open_channel(ChannelOptions(address=cluster.scheduler_address)) as scheduler,
            open_channel(ChannelOptions(address=cluster.predictor_address)) as predictor,
        ):
            yield Cluster(cluster, SchedulerClient(scheduler), PredictorClient(predictor), folder)
    finally:
        cluster.stop()


def test_whoever_was_hurt_once_is_left_alone_and_every_program_may_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_cluster(tmp_path, monkeypatch) as cluster:
        hashes = [
            cluster.predictor.upload_graph(dense_network(widths)).graph_sha256
            for widths in ([64, 48, 10], [32, 32, 10], [48, 32, 10])
        ]
        first = cluster.submit(hashes[0])
        cluster.let_step(first)
        second, third = cluster.submit(hashes[1], helpers=3), cluster.submit(hashes[2])
        cluster.wait_for(lambda: cluster.phase(second) == scheduling_pb2.JOB_PHASE_RUNNING, "two share the device")
        assert cluster.scheduler.get_job(second).reason.code.startswith("STARTS_SHARED")

        # The third one never ran: it knows of the first one's suffering from the second.
        cluster.wait_for(
            lambda: cluster.beside(third, first).caused_slowdown_ratio > ACCEPTED_RATIO, "the third one is warned"
        )
        assert cluster.beside(third, first).times_measured == 0
        cluster.scheduler.cancel_job(second)
        cluster.wait_for(lambda: cluster.phase(second) in ENDED, "the second one ends")
        cluster.let_step(first)
        assert cluster.phase(third) == scheduling_pb2.JOB_PHASE_PENDING

        for name in ("predictor", "agent-local", "scheduler"):
            cluster.kill_and_restart(name)
        cluster.wait_for(lambda: cluster.phase(first) == scheduling_pb2.JOB_PHASE_RUNNING, "everybody is back")
        fourth = cluster.submit(hashes[1])
        cluster.wait_for(lambda: cluster.beside(fourth, first).caused_slowdown_ratio > ACCEPTED_RATIO, "it is known")
        cluster.let_step(first)
        assert cluster.phase(fourth) == scheduling_pb2.JOB_PHASE_PENDING
        assert cluster.phase(third) == scheduling_pb2.JOB_PHASE_PENDING
        cluster.scheduler.cancel_job(first)
        cluster.wait_for(lambda: cluster.phase(third) == scheduling_pb2.JOB_PHASE_RUNNING, "the third one's turn")
