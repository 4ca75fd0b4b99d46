"""A real predictor that never learned anything, a real scheduler and a real agent on one stand-in device."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cotenant.client import ChannelOptions, PredictorClient, SchedulerClient, open_channel
from cotenant.client_errors import ServiceError
from cotenant.local_cluster import AgentOptions, LocalCluster
from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support import undisturbed_agent
from tests.support.agent import prepare_baseline
from tests.support.daemons import free_ports
from tests.support.forked_cluster import fork_programs

ENDLESS_STEPS = 100_000
MEASURED_STEPS = 80
"""Of 20 ms each: more than a window takes at least."""
WAIT_S = 240
ENDED = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)


@dataclass(frozen=True)
class LearningCluster:
    """Clients of a running cluster, its programs, and the folder in which its jobs run."""

    programs: LocalCluster
    scheduler: SchedulerClient
    predictor: PredictorClient
    folder: Path

    def submit(self, graph_sha256: str, script: str, *arguments: float, **fields: Any) -> str:
        """Submits an endless job that shares with any other; returns its id.

        Args:
            graph_sha256: An uploaded graph.
            script: File that is run with the number of steps and then the arguments.
            arguments: As above.
            fields: Of its JobSpec.
        """
        values: dict[str, Any] = {"name": "endless", **fields}
        spec = scheduling_pb2.JobSpec(
            command=[sys.executable, script, str(ENDLESS_STEPS), *map(str, arguments)],
            working_directory=str(self.folder),
            graph_sha256=graph_sha256,
            # Waits for data most of the time, so that sharing looks harmless.
            settings=resources_pb2.JobSettings(global_batch_size=16, input_wait_ratio=0.9),
            steps_total=ENDLESS_STEPS,
            share=resources_pb2.SHARE_MODE_ANY,
            **values,
        )
        return self.scheduler.submit_job(spec).job_id

    def phase(self, job_id: str) -> scheduling_pb2.JobPhase.ValueType:
        """Returns where a job is."""
        return self.scheduler.get_job(job_id).phase

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits for what must come true; a service that was killed may be away for a moment."""
        deadline = time.monotonic() + WAIT_S
        while not _holds(is_so):
            assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}; {self._story()}"
            time.sleep(0.2)

    def _story(self) -> str:
        return str([(job.job_id, job.phase, job.reason.message) for job in self.scheduler.list_jobs()])

    def let_step(self, job_id: str, steps: int) -> None:
        """Waits while a job does some steps from now on."""
        goal = self.scheduler.get_job(job_id).steps_done + steps
        self.wait_for(lambda: self.scheduler.get_job(job_id).steps_done >= goal, f"{job_id} steps")

    def let_measure(self, *job_ids: str) -> None:
        """Waits for windows of jobs that go on as they do now: they may begin with the next report, however late."""
        for job_id in 2 * job_ids:
            self.let_step(job_id, MEASURED_STEPS)

    def end(self, job_id: str) -> None:
        """Cancels a job and waits for its end."""
        self.scheduler.cancel_job(job_id)
        self.wait_for(lambda: self.phase(job_id) in ENDED, f"{job_id} ends")

    def kill_and_restart(self, name: str) -> None:
        """As a power cut of one program, which comes back where it was."""
        program = self.programs.programs[name]
        program.kill()
        program.start()
        assert program.wait_ready()


def _holds(is_so: Callable[[], bool]) -> bool:
    try:
        return is_so()
    except ServiceError:
        return False


@contextmanager
def learning_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, folder: str, collect_profiles: bool = True, **delays_ms: int
) -> Iterator[LearningCluster]:
    """Starts a cluster and stops it.

    Args:
        tmp_path: Of the test.
        monkeypatch: Sets the programs' settings.
        folder: Name of the folder in which jobs run.
        collect_profiles: Whether the node lets others learn.
        delays_ms: Settings of the scheduler without their unit, e.g. pair_refresh=500.
    """
    state, jobs, no_datasets = tmp_path / "cluster", tmp_path / folder, tmp_path / "no-datasets"
    for path in (jobs, no_datasets):
        path.mkdir()
    prepare_baseline(state / "agent-local")
    fork_programs(monkeypatch, undisturbed_agent.__name__)
    monkeypatch.setenv("COTENANT_PREDICTOR_DATASETS", str(no_datasets))
    for name, value_ms in {"heartbeat": 200, **delays_ms}.items():
        monkeypatch.setenv(f"COTENANT_SCHEDULER_{name.upper()}_MS", str(value_ms))
    monkeypatch.setenv("COTENANT_AGENT_COLLECT_PROFILES", str(collect_profiles).lower())
    options = AgentOptions(
        standin_cores=(max(os.sched_getaffinity(0)),),
        allowed_directories=(jobs,),
        stop_jobs_on_exit=True,
    )
    predictor_port, scheduler_port = free_ports(2)
    cluster = LocalCluster(
        state_dir=state,
        policy="horus",
        agents=(options,),
        predictor_port=predictor_port,
        scheduler_port=scheduler_port,
    )
    cluster.start()
    try:
        with (
            open_channel(ChannelOptions(address=cluster.target("scheduler"))) as scheduler,
            open_channel(ChannelOptions(address=cluster.target("predictor"))) as predictor,
        ):
            yield LearningCluster(cluster, SchedulerClient(scheduler), PredictorClient(predictor), jobs)
    finally:
        cluster.stop()
