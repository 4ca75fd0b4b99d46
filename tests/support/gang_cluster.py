"""A live cluster with gangs of `gang_training`, which write down what they do; any of its processes can be killed."""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support import gang_training
from tests.support.agent import REPOSITORY, TWO_STANDINS, find_processes
from tests.support.live_cluster import LiveCluster


class GangCluster(LiveCluster):
    """One node with two stand-in devices."""

    def start_agents(self) -> None:
        """Start the agent, or start it again."""
        self.start_agent("agent", "--allow-any-command", devices=TWO_STANDINS)

    def submit(self, *command: str, **fields: object) -> str:
        """Hand in a job called gang; returns its id."""
        whole: dict[str, Any] = {
            "working_directory": str(self.folder), "settings": {"global_batch_size": 8},
            "environment": {"PYTHONPATH": str(REPOSITORY)}, **fields,
        }  # fmt: skip
        return self.client.submit(name="gang", command=list(command), **whole).job_id

    def witness(self, *more: str, steps: int, step_ms: int, **fields: object) -> str:
        """Hand in a gang of two that writes down what it does; returns its id."""
        words = [sys.executable, gang_training.__file__, str(self.folder), str(steps), str(step_ms), *more]
        return self.submit(*words, steps_total=steps, **{"gpus": 2, "ranks": 2, **fields})

    def rank_processes(self) -> list[int]:
        """Return the living ranks of the witnesses of this cluster."""
        return find_processes(gang_training.__file__, str(self.folder))

    def kill(self, victim: str, generator: random.Random) -> None:
        """Kill -9 a rank, a keeper, an agent or the scheduler; the latter two are started again."""
        if victim == "scheduler":
            self.scheduler.restart()
        elif victim == "agent":
            self.kill_agent(generator)
        else:
            wanted = gang_training.__file__ if victim == "rank" else "shim.py"
            pids = find_processes(wanted, str(self.folder))
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(generator.choice(pids), signal.SIGKILL)

    def kill_agent(self, generator: random.Random) -> None:
        """Kill one of the agents, and start it again."""
        self.agents["agent"].kill()
        self.start_agents()


def check_sums(cluster: LiveCluster, job_id: str, *, steps: int, processes: int = 2) -> None:
    """Check the journals of a gang of which one process was killed once, after some steps."""
    added = sum(range(processes + 1))
    for rank in range(processes):
        journal = cluster.journal(job_id, rank)
        starts = [line for line in journal if line[0] == "start"]
        assert [line[0] for line in journal].count("twice") == 0
        # As much is added in each step, by all ranks: nothing was lost, and no step counts twice.
        assert [int(line[3]) for line in starts] == [added * int(line[2]) for line in starts]
        assert int(starts[1][2]) >= 5
        assert journal[-1] == ["end", starts[1][1], str(added * steps)]


def environment_of(pid: int) -> bytes:
    """Return the variables of a process, with a zero byte before each; that alone where it is gone."""
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b"\0"
