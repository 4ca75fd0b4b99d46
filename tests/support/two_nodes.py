"""A scheduler and two agents on this machine whose checkpoints lie in one folder: each process can be killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotenant.v1 import scheduling_pb2
from tests.support import gang_training
from tests.support.agent import REPOSITORY, AgentProcess, end_jobs, find_processes, prepare_baseline
from tests.support.real_cluster import COTENANT
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

NODES = ("node-a", "node-b")
PATIENCE_S = 120.0


@dataclass
class TwoNodes:
    """One stand-in device on each node, which is a core of this machine."""

    folder: Path
    client: SchedulerClient
    scheduler: SchedulerProcess
    flags: Sequence[str] = ("--shared-checkpoints",)
    agents: dict[str, AgentProcess] = field(default_factory=dict)

    def start_agent(self, node_id: str) -> None:
        """Start the agent of a node on its own state directory."""
        core = str(sorted(os.sched_getaffinity(0))[NODES.index(node_id) % len(os.sched_getaffinity(0))])
        flags = ("--node-id", node_id, "--checkpoint-dir", str(self.folder / "checkpoints"), *self.flags)
        self.agents[node_id] = AgentProcess(
            self.folder / node_id, self.scheduler, "--allow-any-command", *flags, devices=("--standin-cores", core)
        )

    def cotenant(self, *arguments: str, status: int = 0) -> str:
        """Run the command line against this scheduler; what it printed."""
        environment = {**os.environ, "COTENANT_SCHEDULER": self.scheduler.address, "COLUMNS": "200"}
        done = subprocess.run(
            [*COTENANT, *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    def submit(self, *command: str, **fields: object) -> str:
        """Hand in a gang of two across the nodes, unless the fields say otherwise."""
        whole: dict[str, Any] = {
            "working_directory": str(self.folder), "settings": {"global_batch_size": 8}, "gpus": 2, "ranks": 2,
            "across_nodes": True, "environment": {"PYTHONPATH": str(REPOSITORY)}, **fields,
        }  # fmt: skip
        return self.client.submit(name="gang", command=list(command), **whole).job_id

    def witness(self, *more: str, steps: int, step_ms: int, **fields: object) -> str:
        """Submit a gang of two that writes down what it does."""
        words = [sys.executable, gang_training.__file__, str(self.folder), str(steps), str(step_ms), *more]
        return self.submit(*words, steps_total=steps, **fields)

    def rank_processes(self) -> list[int]:
        """The living ranks of the witnesses of this cluster."""
        return find_processes(gang_training.__file__, str(self.folder))

    def journal(self, job_id: str, rank: int) -> list[list[str]]:
        """What a rank of the witness has written down."""
        path = self.folder / f"{job_id}.{rank}.journal"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, job_id: str, phase: str) -> scheduling_pb2.Job:
        """Wait for a phase of a job."""
        return self.client.wait_for_phase(job_id, phase, timeout_s=PATIENCE_S)

    def kill(self, victim: str, generator: random.Random) -> None:
        """Kill -9 a rank, a keeper, an agent or the scheduler; the latter two are started again."""
        if victim == "scheduler":
            self.scheduler.restart()
        elif victim == "agent":
            node_id = generator.choice(NODES)
            self.agents[node_id].kill()
            self.start_agent(node_id)
        else:
            wanted = gang_training.__file__ if victim == "rank" else "shim.py"
            pids = find_processes(wanted, str(self.folder))
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(generator.choice(pids), signal.SIGKILL)


def environment_of(pid: int) -> bytes:
    """The variables of a process, with a zero byte before each; that alone where it is gone."""
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b"\0"


@contextmanager
def two_nodes(
    folder: Path, *scheduler_flags: str, flags: Sequence[str] = ("--shared-checkpoints",)
) -> Iterator[TwoNodes]:
    """Run them; afterwards they and all their jobs are gone."""
    for node_id in NODES:
        prepare_baseline(folder / node_id)
    arguments = ("--policy", "fifo", "--progress-interval-ms", "100", "--heartbeat-ms", "300", *scheduler_flags)
    with SchedulerProcess(folder, arguments=arguments) as scheduler, SchedulerClient(scheduler.address) as client:
        cluster = TwoNodes(folder, client, scheduler, flags)
        try:
            for node_id in NODES:
                cluster.start_agent(node_id)
            nodes = scheduling_pb2.ListNodesRequest()
            wait_until(lambda: len(client.stub.ListNodes(nodes).nodes) == len(NODES), what="both nodes have joined")
            yield cluster
        finally:
            for agent in cluster.agents.values():
                agent.kill()
            for node_id in NODES:
                end_jobs(folder / node_id)
