"""Kills and freezes of real processes under load: scheduler, two agents, shims; lost, cloned and restored states.

    python -m benchmarks.kills [EVENTS [SEED]]      (100 events, seed 0, by default: about ten minutes)

Jobs of two seconds write their steps into files of their own, which judge alone: a job is `twice` when two of its
processes lived at once, `without_steps` when it is FINISHED and some step was not done, `lost` when its answered
submission is unknown in the end, or it has ended without being FINISHED, and `stuck` when it has not ended ten minutes
after the last event (a job that was hit nine times waits for five). Lease and grace last 2 s each. Prints JSON.
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
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc

from benchmarks import kills_job
from benchmarks.kills_cluster import KilledCluster, KilledNode
from benchmarks.kills_evidence import read_evidence
from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support.interruptions import unwind_when_ended

STEPS = 40
STEP_MS = 50
UNENDED_JOBS = 8
STUCK_AFTER_S = 600.0
FREEZE_S = (0.5, 6.0)
_PHASES = scheduling_pb2.JobPhase
ENDED = frozenset({_PHASES.JOB_PHASE_FINISHED, _PHASES.JOB_PHASE_FAILED, _PHASES.JOB_PHASE_CANCELLED})
# The scheduler may be dead or frozen; the same request is made again later.
_PATIENCE_S = 4.0


class Killing:
    """One run: draws what happens, keeps jobs coming, and judges in the end."""

    def __init__(self, cluster: KilledCluster, generator: random.Random) -> None:
        self._cluster = cluster
        self._generator = generator
        self._submitted = 0
        self._job_ids: dict[str, str] = {}
        self._events: Counter[str] = Counter()
        self._thaws: list[threading.Timer] = []
        self._kinds: Mapping[str, Callable[[], None]] = {
            "scheduler_killed": cluster.scheduler.restart,
            "agent_killed": lambda: self._node().restart(),
            "shim_killed": self._kill_shim,
            "scheduler_frozen": lambda: self._freeze(cluster.scheduler_pid),
            "agent_frozen": lambda: self._freeze(self._node().agent.pid),
            "shim_frozen": self._freeze_shim,
            "wiped_node": lambda: self._node().wipe(),
            "cloned_node": self._clone,
            "restored_backup": lambda: cluster.restore(self._generator.uniform(0.5, 3.0)),
        }

    def run(self, events: int) -> dict[str, object]:
        """Let so many events happen under load, wait for every job, and judge."""
        began_s = time.monotonic()
        for number in range(events):
            self._keep_busy()
            time.sleep(self._generator.uniform(0.1, 1.5))
            # Every kind occurs about as often.
            kind = (
                list(self._kinds)[number % len(self._kinds)] if number % 2 else self._generator.choice([*self._kinds])
            )
            sys.stderr.write(f"{number + 1}/{events} {kind}\n")
            self._events[kind] += 1
            self._kinds[kind]()
        for thaw in self._thaws:
            thaw.join()
        jobs = self._wait()
        return {**self._judge(jobs), "seconds": round(time.monotonic() - began_s)}

    # --- what happens -------------------------------------------------------------------------------------------

    def _node(self) -> KilledNode:
        return self._generator.choice(self._cluster.nodes)

    def _shim(self) -> int | None:
        shims = [pid for node in self._cluster.nodes for pid in node.shims()]
        return self._generator.choice(shims) if shims else None

    def _kill_shim(self) -> None:
        _send(self._shim(), signal.SIGKILL)

    def _freeze_shim(self) -> None:
        self._freeze(self._shim())

    def _freeze(self, pid: int | None) -> None:
        """Stop a process and let it go on later, while other things happen."""
        _send(pid, signal.SIGSTOP)
        thaw = threading.Timer(self._generator.uniform(*FREEZE_S), lambda: _send(pid, signal.SIGCONT))
        thaw.start()
        self._thaws.append(thaw)

    def _clone(self) -> None:
        node = self._node()
        is_replaced, lives_s = self._generator.random() < 0.7, self._generator.uniform(3.0, 9.0)
        node.clone(is_replaced=is_replaced, lives_s=lives_s)

    # --- jobs ---------------------------------------------------------------------------------------------------

    def _keep_busy(self) -> None:
        """Submit as many jobs as have ended; what was not answered is submitted again under the same request."""
        with contextlib.suppress(grpc.RpcError):
            listed = {job.job_id: job for job in self._cluster.jobs(timeout_s=_PATIENCE_S)}
            unended = [job for job in listed.values() if job.phase not in ENDED]
            for _ in range(UNENDED_JOBS - len(unended)):
                name = f"witness-{self._submitted}"
                job = self._cluster.submit(self._spec(name), request_id=name, timeout_s=_PATIENCE_S)
                self._job_ids[name] = job.job_id
                self._submitted += 1

    def _spec(self, name: str) -> scheduling_pb2.JobSpec:
        return scheduling_pb2.JobSpec(
            name=name,
            command=[sys.executable, kills_job.__file__, str(self._file(name)), str(STEPS), str(STEP_MS)],
            working_directory=str(self._cluster.work),
            steps_total=STEPS,
            settings=resources_pb2.JobSettings(global_batch_size=8),
            # Far more than one job is hit.
            restart_limit=1_000,
        )

    def _file(self, name: str) -> Path:
        return self._cluster.work / f"{name}.steps"

    def _wait(self) -> Mapping[str, scheduling_pb2.Job]:
        until_s = time.monotonic() + STUCK_AFTER_S
        jobs: Mapping[str, scheduling_pb2.Job] = {}
        while time.monotonic() < until_s:
            with contextlib.suppress(grpc.RpcError):
                jobs = {job.job_id: job for job in self._cluster.jobs(timeout_s=_PATIENCE_S)}
                if all(job.phase in ENDED for job in jobs.values()):
                    break
            time.sleep(0.5)
        return jobs

    def _judge(self, jobs: Mapping[str, scheduling_pb2.Job]) -> dict[str, object]:
        found: dict[str, list[str]] = {"lost": [], "twice": [], "without_steps": [], "stuck": []}
        attempts = 0
        for name, job_id in self._job_ids.items():
            evidence = read_evidence(self._file(name), steps_total=STEPS)
            attempts += evidence.attempts
            phase = jobs[job_id].phase if job_id in jobs else None
            is_finished = phase == _PHASES.JOB_PHASE_FINISHED
            verdicts = {
                "lost": phase is None or (phase in ENDED and not is_finished),
                "stuck": phase is not None and phase not in ENDED,
                "twice": evidence.is_twice,
                "without_steps": is_finished and (evidence.missing_steps > 0 or not evidence.has_ended),
            }
            for verdict in (verdict for verdict, holds in verdicts.items() if holds):
                found[verdict].append(f"{name} ({job_id})")
        return {
            **{verdict: len(names) for verdict, names in found.items()},
            "kills": self._events.total(),
            "by_kind": dict(sorted(self._events.items())),
            "jobs": len(self._job_ids),
            "attempts": attempts,
            "found": {verdict: names for verdict, names in found.items() if names},
        }


def _send(pid: int | None, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main(events: int = 100, seed: int = 0) -> dict[str, object]:
    """Kill and freeze.

    Args:
        events: How often.
        seed: Of what happens when; the processes' own pace differs from run to run.

    Returns:
        lost, twice, without_steps and stuck, which must all be 0, and how many events of which kind happened.
    """
    with tempfile.TemporaryDirectory(prefix="cotenant-kills-") as folder, KilledCluster(Path(folder)) as cluster:
        found = Killing(cluster, random.Random(seed)).run(events)
        if found["found"]:
            cluster.keep_logs(Path.cwd() / f"kills-{seed}")
        return {"seed": seed, **found}


if __name__ == "__main__":
    unwind_when_ended()
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:])), indent=2) + "\n")
