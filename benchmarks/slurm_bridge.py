"""The bridge beside a real Slurm: how much longer jobs take than under plain sbatch, and what kills lose or double.

    python -m benchmarks.slurm_bridge [--jobs 200] [--seeds 5] [--first-seed 0]

Needs Slurm's daemons and root rights (docs/slurm.md). Two nodes with two fake GPUs each; jobs of 0.2 to 1 s, half of
which may share. Plain jobs ask for a GPU each. Every job must begin and end once, on the GPU that was planned. Each run
has a Slurm of its own, which remembers its jobs for an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cotenant.engines.bridge import Bridge
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.placement_notes import planned_gpu
from cotenant.engines.records import Placement
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.commands import InstalledCommands
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.interruptions import unwind_when_ended
from tests.support.slurm_daemons import NODES, SlurmDaemons, missing_daemons

KILLS = ("slurmctld", "slurmd", "bridge")
LIMIT_S = 1_200.0
"""Of one run: on a busy machine 200 jobs took 390 s."""
_ROUNDS_PER_LOOK = 5
"""Whether all is over is the benchmark's question, not the bridge's."""
_LIGHT = "cotenant memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
_HEAVY = "cotenant memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"
_SCRIPT = 'echo "begin $SLURM_JOB_ID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"; sleep {seconds}; echo end'


class MortalEngine(SlurmEngine):
    """Slurm, told by a bridge that is killed once, after some orders."""

    orders_left = -1

    def place(self, placement: Placement) -> None:
        """See `Engine.place`."""
        super().place(placement)
        self._die_in_time()

    def release_all(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """See `Engine.release_all`."""
        refused = super().release_all(job_ids)
        self._die_in_time()
        return refused

    def _die_in_time(self) -> None:
        self.orders_left -= 1
        if self.orders_left == 0:
            raise KeyboardInterrupt


def main(jobs: int = 200, seeds: int = 5, first_seed: int = 0) -> dict[str, object]:
    """Return the times, and what went wrong by kill and seed; without Slurm why nothing was done."""
    if missing_daemons():
        return {"not_run": f"not installed: {', '.join(missing_daemons())}"}
    plain_s, placed_s = _times(jobs)
    found: dict[str, object] = {"jobs": jobs, "plain_s": plain_s, "placed_s": placed_s}
    found["placed_over_plain_ratio"] = round(placed_s / plain_s, 2)
    faults: dict[str, dict[int, list[str]]] = {kill: {} for kill in KILLS}
    for seed in range(first_seed, first_seed + seeds):
        for kill in KILLS:
            with _slurm() as daemons:
                told = _run_placed(daemons, jobs, seed=seed, kill=kill)
            sys.stderr.write(f"seed {seed}, killed {kill}: {len(told)} faults\n")
            faults[kill] |= {seed: told} if told else {}
    return found | {f"faults_with_killed_{kill}": one for kill, one in faults.items()}


def _times(jobs: int) -> tuple[float, float]:
    """Return how long jobs took under plain sbatch, and placed by us."""
    with _slurm() as daemons:
        plain_s = _timed(lambda: _run_plain(daemons, jobs))
    with _slurm() as daemons:
        return plain_s, _timed(lambda: _run_placed(daemons, jobs, seed=0))


@contextmanager
def _slurm() -> Iterator[SlurmDaemons]:
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    try:
        with SlurmDaemons(folder) as daemons:
            os.environ |= {name: daemons.environment[name] for name in ("PATH", "SLURM_CONF")}
            yield daemons
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _timed(run: object) -> float:
    began_s = time.monotonic()
    faults = run()  # type: ignore[operator]
    if faults:
        raise RuntimeError(f"without any kill: {faults[:3]}")
    return round(time.monotonic() - began_s, 1)


def _run_plain(daemons: SlurmDaemons, jobs: int) -> list[str]:
    generator = random.Random(0)
    for _ in range(jobs):
        daemons.submit("--gres=gpu:1", script=_SCRIPT.format(seconds=generator.choice((0.2, 0.5, 1))))
    while daemons.run(["squeue", "-h"]).strip():
        time.sleep(0.2)
    return []


def _run_placed(daemons: SlurmDaemons, jobs: int, *, seed: int, kill: str = "") -> list[str]:
    """Run jobs to their ends; return what was lost, doubled or elsewhere than planned."""
    generator = random.Random(seed)
    engine = MortalEngine(InstalledCommands(), [DeviceRule(nodes="n*", device="NVIDIA A10", memory_bytes=24 * 2**30)])
    submitted: list[str] = []
    # The bridge is there before the jobs, as under a site's own scheduler they begin while others are submitted.
    submitting = threading.Thread(target=_submit, args=(daemons, random.Random(seed), jobs, submitted))
    submitting.start()
    if kill:
        submitting.join()
    if kill == "slurmctld":
        # It loses what it accepted since it last saved its state; that is not ours to keep.
        daemons.wait_saved()
    kill_round, end_s = generator.randrange(1, 4), time.monotonic() + LIMIT_S
    engine.orders_left = generator.randrange(1, jobs) if kill == "bridge" else -1
    number = 0
    while (number % _ROUNDS_PER_LOOK or _is_busy(daemons, submitting)) and time.monotonic() < end_s:
        number += 1
        with suppress(KeyboardInterrupt, EngineUnreachableError):
            Bridge(engine, _ask, policy="horus", places=True).run_round(now_ms=1_000 * number, notes_max=1)
        if number == kill_round:
            _kill(daemons, kill, generator)
        time.sleep(0.1)
    submitting.join()
    return _faults(daemons, submitted)


def _submit(daemons: SlurmDaemons, generator: random.Random, jobs: int, submitted: list[str]) -> None:
    for _ in range(jobs):
        flags = ("--requeue", "--comment", generator.choice((_LIGHT, _HEAVY)))
        submitted.append(daemons.submit(*flags, script=_SCRIPT.format(seconds=generator.choice((0.2, 0.5, 1)))))


def _is_busy(daemons: SlurmDaemons, submitting: threading.Thread) -> bool:
    return submitting.is_alive() or bool(daemons.run_or_again(["squeue", "-h"]).strip())


def _kill(daemons: SlurmDaemons, kill: str, generator: random.Random) -> None:
    if kill == "slurmctld":
        daemons.wait_saved()
        daemons.stop("slurmctld", signal.SIGKILL)
        daemons.start_controller()
        daemons.wait_answering()
    elif kill == "slurmd":
        node = generator.choice(NODES)
        daemons.stop(node, signal.SIGKILL)
        daemons.start_node(node)


def _ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
    return asyncio.run(decide(request, predictor=None, seconds_left=60))


def _faults(daemons: SlurmDaemons, submitted: list[str]) -> list[str]:
    rows = {str(row["job_id"]): row for row in json.loads(daemons.run(["squeue", "--json"]))["jobs"]}
    faults = []
    for job_id in submitted:
        lines = daemons.output(job_id).splitlines()
        planned = planned_gpu(str(rows.get(job_id, {}).get("admin_comment", "")))
        node, _, type_name = planned.partition("/")
        if lines.count("end") != 1 or len(lines) != 2:
            faults.append(f"{job_id} printed {lines}")
        elif lines[0] != f"begin {job_id} {node} {type_name.removeprefix('g')}":
            faults.append(f"{job_id} was planned on {planned}: {lines[0]}")
    return faults


if __name__ == "__main__":
    unwind_when_ended()
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    print(json.dumps(main(asked.jobs, asked.seeds, asked.first_seed), indent=2))
