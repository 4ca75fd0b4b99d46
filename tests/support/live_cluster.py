"""A real scheduler and real agents on this machine, and the command line pointed at them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cotenant.v1 import scheduling_pb2
from tests.support.agent import STANDIN, AgentProcess, end_jobs, prepare_baseline
from tests.support.loaded_programs import run_program
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

PATIENCE_S = 240.0
SHORT_TIMES = ("--progress-interval-ms", "100", "--heartbeat-ms", "300")
"""Flags of a scheduler whose tests need not wait long."""


@dataclass
class LiveCluster:
    """A scheduler and its agents; their folder is that of the command line as well.

    Attributes:
        patience_s: How long a test waits for what must come.
        agents: By the name of the folder in which each keeps its state.
        agent_program: Module that is run as the agent.
    """

    folder: Path
    client: SchedulerClient
    scheduler: SchedulerProcess
    patience_s: float = PATIENCE_S
    agents: dict[str, AgentProcess] = field(default_factory=dict)
    agent_program: str = "cotenant_agent"

    def start_agent(self, name: str, *flags: str, devices: Sequence[str] = STANDIN) -> None:
        """Start an agent on the state that it had before, if it had one."""
        self.agents[name] = AgentProcess(
            self.folder / name, self.scheduler, *flags, devices=devices, program=self.agent_program
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line against this scheduler."""
        addresses = {"COTENANT_SCHEDULER": self.scheduler.address, "COTENANT_PREDICTOR": "127.0.0.1:9"}
        environment = {**os.environ, **addresses, "XDG_CONFIG_HOME": str(self.folder), "COLUMNS": "200"}
        return run_program(
            "cotenant", arguments, folder=self.folder, environment=environment, timeout_s=self.patience_s
        )

    def cotenant(self, *arguments: str, status: int = 0) -> str:
        """Run a verb that ends with this status; returns what it printed, or the error where the status is one."""
        done = self.run(*arguments)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    def wait(self, job_id: str, phase: str) -> scheduling_pb2.Job:
        """Wait for a phase of a job."""
        return self.client.wait_for_phase(job_id, phase, timeout_s=self.patience_s)

    def wait_until(self, job_id: str, accept: Callable[[scheduling_pb2.Job], bool], what: str) -> scheduling_pb2.Job:
        """Wait until a job is as wanted."""

        def look() -> scheduling_pb2.Job | None:
            job = self.client.get(job_id)
            return job if accept(job) else None

        return wait_until(look, what=what, timeout_s=self.patience_s)

    def slow_down(self, job_id: str) -> Path:
        """Let a witness take 0.3 s for a step, so that it is not over before a verb has run; returns what does.

        Without that file it goes on at its own pace.
        """
        pace = self.folder / f"{job_id}.step_ms"
        pace.write_text("300")
        return pace

    def journal(self, job_id: str, rank: int | None = None) -> list[list[str]]:
        """Return the lines that a job, or one rank of it, wrote into its journal so far, each by its words."""
        path = self.folder / (f"{job_id}.journal" if rank is None else f"{job_id}.{rank}.journal")
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


Cluster = TypeVar("Cluster", bound=LiveCluster)


@contextmanager
def live_cluster(
    kind: Callable[[Path, SchedulerClient, SchedulerProcess], Cluster],
    folder: Path,
    states: Sequence[str],
    arguments: Sequence[str],
) -> Iterator[Cluster]:
    """Start a scheduler and prepare its agents' states; afterwards it, the agents and all their jobs are gone.

    Args:
        kind: The class of the cluster, whose user starts the agents.
        folder: Of everything.
        states: Names of the agents' folders.
        arguments: Of the scheduler.
    """
    for name in states:
        prepare_baseline(folder / name)
    with SchedulerProcess(folder, arguments=arguments) as scheduler, SchedulerClient(scheduler.address) as client:
        cluster = kind(folder, client, scheduler)
        try:
            yield cluster
        finally:
            for agent in cluster.agents.values():
                agent.kill()
            for name in states:
                end_jobs(folder / name)
