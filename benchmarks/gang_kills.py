"""Kills and freezes while gangs train across two agents of this machine, whose checkpoints lie in one folder.

    python -m benchmarks.gang_kills [KILLS [SEED]]      (60 kills, seed 0, by default: about three minutes)

Ranks, their keepers (shims), agents and the scheduler are killed (-9), and agents frozen for longer than a lease, while
gangs of two keep coming. The ranks of a gang write what they do into journals, which judge alone: a gang is `doubled`
when a rank lived twice at once, a step counted twice or was lost, or one part went on without the other; `unfinished`
when it has not FINISHED with all its steps. `left_ranks` live on after the last one. Lease and grace last 2 s each.
Prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import grpc

from cotenant.v1 import scheduling_pb2
from tests.support.gang_journals import check_gang
from tests.support.two_nodes import NODES, TwoNodes, two_nodes

KILLS, STEPS, STEP_MS = 60, 60, 25
VICTIMS = ("rank", "keeper", "agent", "scheduler", "frozen_agent")
RANKS, UNENDED_GANGS = 2, 6
FREEZE_S = (0.5, 7.0)
PATIENCE_S = 20.0
STUCK_AFTER_S = 300.0
ENDED = frozenset(
    {scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED}
)


class GangKilling:
    """One run: keeps one gang training, kills, and judges in the end."""

    def __init__(self, cluster: TwoNodes, seed: int) -> None:
        self._cluster, self._generator = cluster, random.Random(seed)
        self._job_ids: list[str] = []
        self._events: Counter[str] = Counter()
        self._in_training = 0
        self._thaws: list[threading.Timer] = []

    def run(self, kills: int) -> dict[str, object]:
        """Kill so often, wait for every gang, and judge."""
        began_s = time.monotonic()
        victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
        self._generator.shuffle(victims)
        for victim in victims:
            self._keep_busy()
            self._wait_for_ranks()
            time.sleep(self._generator.uniform(0.1, 2.0))
            self._in_training += bool(self._ranks())
            self._events[victim] += 1
            if victim == "frozen_agent":
                self._freeze()
            else:
                self._cluster.kill(victim, self._generator)
        for thaw in self._thaws:
            thaw.join()
        jobs = self._wait()
        return {**self._judge(jobs), "seconds": round(time.monotonic() - began_s)}

    def _ranks(self) -> list[int]:
        return self._cluster.rank_processes()

    def _wait_for_ranks(self) -> None:
        """Let a gang train, where one can: a node that was lost comes back first, and restarts wait ever longer."""
        until_s = time.monotonic() + PATIENCE_S
        while len(self._ranks()) < RANKS and time.monotonic() < until_s:
            self._keep_busy()
            time.sleep(0.1)

    def _freeze(self) -> None:
        """Stop an agent and let it go on later, while other things happen; the one that is killed meanwhile is gone."""
        pid = self._cluster.agents[self._generator.choice(NODES)].pid
        os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        timer = threading.Timer(self._generator.uniform(*FREEZE_S), thaw)
        timer.start()
        self._thaws.append(timer)

    def _keep_busy(self) -> None:
        """Let one gang run and others wait; a scheduler that is away is asked before the next kill."""
        with contextlib.suppress(grpc.RpcError):
            unended = [job for job in self._cluster.client.list_all() if job.phase not in ENDED]
            for _ in range(UNENDED_GANGS - len(unended)):
                form = ["sharded"] if len(self._job_ids) % 2 else []
                job_id = self._cluster.witness(*form, steps=STEPS, step_ms=STEP_MS, restart_limit=1_000)
                self._job_ids.append(job_id)

    def _wait(self) -> Mapping[str, scheduling_pb2.Job]:
        until_s = time.monotonic() + STUCK_AFTER_S
        jobs: Mapping[str, scheduling_pb2.Job] = {}
        while time.monotonic() < until_s:
            with contextlib.suppress(grpc.RpcError):
                jobs = {job.job_id: job for job in self._cluster.client.list_all()}
                if all(job.phase in ENDED for job in jobs.values()):
                    break
            time.sleep(0.5)
        return jobs

    def _judge(self, jobs: Mapping[str, scheduling_pb2.Job]) -> dict[str, object]:
        doubled, unfinished = [], []
        for job_id in self._job_ids:
            job = jobs.get(job_id, scheduling_pb2.Job())
            if job.phase != scheduling_pb2.JOB_PHASE_FINISHED or job.steps_done != STEPS:
                unfinished.append(job_id)
                continue
            try:
                check_gang(self._cluster.folder, job_id, ranks=RANKS, steps=STEPS)
            except (AssertionError, OSError) as finding:
                doubled.append(str(finding)[:200])
        return {
            "events": dict(sorted(self._events.items())),
            "while_a_gang_trained": self._in_training,
            "gangs": len(self._job_ids),
            "restarts": sum(job.restarts for job in jobs.values()),
            "unfinished": unfinished,
            "doubled": doubled,
            "left_ranks": len(self._ranks()),
        }


def main(kills: int = KILLS, seed: int = 0, *, folder: Path | None = None) -> dict[str, object]:
    """Run in a folder of its own; what is found is kept in the folder where one is given."""
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(two_nodes(place, "--lease-ms", "2000", "--grace-ms", "2000"))
        return {"kills": kills, "seed": seed, **GangKilling(cluster, seed).run(kills)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:3])), indent=2) + "\n")
