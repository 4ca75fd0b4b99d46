"""What the benchmark `live_equals_simulated` measures beforehand: its kinds of jobs alone, in pairs, and moved.

Alone and moved they run as jobs of a real scheduler and agent, in pairs as plain processes on the cores of the
stand-in devices. Nothing of the workload itself is looked at.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import live_equals_simulated_job
from cotenant.v1 import resources_pb2, scheduling_pb2
from cotenant_agent.ranks.rendezvous_ports import choose_port
from cotenant_simulator.run.records import OverheadCosts
from tests.support.policy_cluster import PATIENCE_S, PolicyCluster
from tests.support.scheduler_process import wait_until

CORES = (0, 1)
BATCH = 2
_ENDLESS = 1_000_000
_WARM_UP_STEPS = 5
_MOVES = 6
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One kind of job.

    Attributes:
        cpu_ms: Computing of one step, which ranks divide.
        wait_ms: Waiting for input before it.
        counts: Numbers of devices that it may run on; more than one = as many ranks.
        computes: Otherwise it waits instead of computing, and a busy machine disturbs it little.
    """

    name: str
    cpu_ms: float
    wait_ms: float
    memory_mib: int = 200
    counts: tuple[int, ...] = (1,)
    computes: bool = True

    @property
    def graph_sha256(self) -> str:
        """Stands for its graph."""
        return self.name.encode().hex().rjust(64, "0")

    @property
    def has_ranks(self) -> bool:
        """It is a process per device."""
        return max(self.counts) > 1

    def command(self, steps: int, journal: Path) -> list[str]:
        """Return how it is started."""
        numbers = (steps, self.cpu_ms, self.wait_ms, self.memory_mib)
        form = "compute" if self.computes else "wait"
        return [sys.executable, "-m", live_equals_simulated_job.__name__, *map(str, numbers), str(journal), form]

    def spec(self, name: str, steps: int, journal: Path) -> scheduling_pb2.JobSpec:
        """Return what is submitted."""
        return scheduling_pb2.JobSpec(
            name=name,
            command=self.command(steps, journal),
            working_directory=str(_ROOT),
            graph_sha256=self.graph_sha256,
            settings=resources_pb2.JobSettings(global_batch_size=BATCH),
            steps_total=steps,
            gpus=max(self.counts),
            allowed_gpus=self.counts if len(self.counts) > 1 else (),
            ranks=max(self.counts) if self.has_ranks else 0,
            max_slowdown_ratio=1.0,
            no_trial=True,
        )


KINDS = (
    JobKind(name="waiting", cpu_ms=12.0, wait_ms=38.0),
    JobKind(name="even", cpu_ms=25.0, wait_ms=25.0),
    JobKind(name="busy", cpu_ms=45.0, wait_ms=5.0),
    JobKind(name="gang", cpu_ms=50.0, wait_ms=20.0, counts=(2,)),
    JobKind(name="elastic", cpu_ms=50.0, wait_ms=10.0, counts=(1, 2)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured.

    Attributes:
        kinds: Of which jobs.
        step_ms: By name of the kind and number of devices.
        slowdown_ratios: By victim and other.
        costs: Of starts and moves.
    """

    kinds: Sequence[JobKind]
    step_ms: Mapping[tuple[str, int], float]
    slowdown_ratios: Mapping[tuple[str, str], float]
    costs: OverheadCosts

    def one_device_step_ms(self, kind: JobKind) -> float:
        """Return the time of a step on one device; of a gang that has always two, what it would be without exchange."""
        return self.step_ms.get((kind.name, 1)) or self.step_ms[kind.name, max(kind.counts)] * max(kind.counts)


def read_journal(path: Path) -> dict[int, list[float]]:
    """Return when the steps of each attempt ended, in ms since 1970."""
    found: dict[int, list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        attempt, _, at_ns = line.split()
        found.setdefault(int(attempt), []).append(int(at_ns) / 1e6)
    return found


def mean_step_ms(ends_ms: Sequence[float]) -> float:
    """Return the mean time of a step without the first few."""
    return (ends_ms[-1] - ends_ms[_WARM_UP_STEPS]) / (len(ends_ms) - 1 - _WARM_UP_STEPS)


def measure_alone(
    cluster: PolicyCluster, kinds: Sequence[JobKind], length_s: float
) -> tuple[dict[tuple[str, int], float], int]:
    """Run every kind alone on each of its counts; return step times, and what a run takes beyond its steps, in ms."""
    step_ms: dict[tuple[str, int], float] = {}
    beyond_ms = []
    for kind in kinds:
        for count in kind.counts:
            journal = cluster.folder / f"alone-{kind.name}-{count}"
            steps = max(int(length_s * 1_000 / (kind.cpu_ms / count + kind.wait_ms)), 4 * _WARM_UP_STEPS)
            spec = kind.spec(f"{kind.name}-{count}", steps, journal)
            spec.gpus = count
            del spec.allowed_gpus[:]
            spec.ranks = count if kind.has_ranks else 0
            job = cluster.wait(submit(cluster, spec), "FINISHED")
            step_ms[kind.name, count] = mean_step_ms(read_journal(journal)[1])
            beyond_ms.append(job.attained_gpu_ms / count - steps * step_ms[kind.name, count])
    return step_ms, max(round(statistics.median(beyond_ms)), 0)


def submit(cluster: PolicyCluster, spec: scheduling_pb2.JobSpec) -> str:
    """Hand a job in; return its id."""
    request = scheduling_pb2.SubmitJobRequest(spec=spec)
    return str(cluster.client.stub.SubmitJob(request, timeout=30, wait_for_ready=True).job.job_id)


def measure_moves(cluster: PolicyCluster, kinds: Sequence[JobKind], launch_ms: int) -> OverheadCosts:
    """Reshape a job there and back; return what starts and moves cost, where the next attempt is prepared."""
    cluster.use("drf", "interval_ms=500")
    kind = next(kind for kind in kinds if len(kind.counts) > 1)
    journal = cluster.folder / "moves"
    wide, other = submit(cluster, kind.spec("wide", _ENDLESS, journal)), ""
    for number in range(_MOVES + 1):
        _wait_for_attempt(journal, number)
        if other:
            cluster.client.cancel(other)
            cluster.wait(other, "CANCELLED")
            other = ""
        elif number < _MOVES:
            spec = kinds[0].spec("other", _ENDLESS, cluster.folder / "other")
            spec.share = resources_pb2.SHARE_MODE_NEVER
            other = submit(cluster, spec)
    history = cluster.client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=wide), timeout=30).history
    for job_id in filter(None, (wide, other)):
        cluster.client.cancel(job_id)
        cluster.wait(job_id, "CANCELLED")
    return _costs_of(history, read_journal(journal), launch_ms)


def _wait_for_attempt(journal: Path, earlier: int) -> None:
    def has_steps() -> bool:
        attempts = sorted(read_journal(journal).items()) if journal.exists() else []
        return len(attempts) > earlier and len(attempts[earlier][1]) > 3 * _WARM_UP_STEPS

    wait_until(has_steps, what="steps of the next attempt", timeout_s=PATIENCE_S)


def _costs_of(
    history: Sequence[scheduling_pb2.JobEvent], journal: Mapping[int, Sequence[float]], launch_ms: int
) -> OverheadCosts:
    """Read the phases of each move off the job's story, and its first step off the journal."""
    prepare_ms, release_ms, begin_ms, moved_at_ms, told_at_ms = [], [], [], 0, 0
    launches = 0
    for line in history:
        if line.kind == "move":
            moved_at_ms = line.at_ms
        elif line.kind == "preparation":
            told_at_ms = line.at_ms
            prepare_ms.append(told_at_ms - moved_at_ms)
        elif line.kind == "launch":
            launches += 1
            ends_ms = journal.get(launches, ())
            if told_at_ms and len(ends_ms) > 2 * _WARM_UP_STEPS:
                release_ms.append(line.at_ms - told_at_ms)
                begin_ms.append(ends_ms[0] - mean_step_ms(ends_ms) - line.at_ms)
            told_at_ms = 0

    def median_ms(values: Sequence[float]) -> int:
        return max(round(statistics.median(values)), 0)

    return OverheadCosts(
        launch_ms=launch_ms,
        restart_ms=0,
        checkpoint_ms=median_ms(release_ms),
        checkpoint_interval_ms=0,
        prepared_restart_ms=median_ms(begin_ms),
        prepare_ms=median_ms(prepare_ms),
    )


def measure_pairs(
    kinds: Sequence[JobKind], step_ms: Mapping[tuple[str, int], float], length_s: float
) -> dict[tuple[str, str], float]:
    """Run every two kinds on one device, each rank of a gang on its own; return how much each was slowed down."""
    found: dict[tuple[str, str], float] = {}
    for one, other in itertools.combinations_with_replacement(kinds, 2):
        ratios = _run_pair(one, other, step_ms, length_s)
        found[one.name, other.name], found[other.name, one.name] = ratios
    return found


def _run_pair(
    one: JobKind, other: JobKind, step_ms: Mapping[tuple[str, int], float], length_s: float
) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="cotenant-pair-") as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for side, kind in enumerate((one, other)):
                processes += _start(kind, folder / f"journal-{side}", str(folder))
            time.sleep(length_s + 1.0)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        ends = [read_journal(folder / f"journal-{side}")[0] for side in (0, 1)]
    from_ms, until_ms = max(side[_WARM_UP_STEPS] for side in ends), min(side[-1] for side in ends)
    inside = [[at_ms for at_ms in side if from_ms <= at_ms <= until_ms] for side in ends]
    paced_ms = [(side[-1] - side[0]) / (len(side) - 1) for side in inside]
    alone_ms = [step_ms[kind.name, min(kind.counts)] for kind in (one, other)]
    first, second = (max(paced / alone - 1.0, 0.0) for paced, alone in zip(paced_ms, alone_ms, strict=True))
    return first, second


def _start(kind: JobKind, journal: Path, folder: str) -> list[subprocess.Popen[bytes]]:
    count = min(kind.counts)
    port = str(choose_port(str(journal), ()))
    started = []
    for rank in range(count):
        told = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        outside = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
        started.append(
            subprocess.Popen(
                ["taskset", "-c", str(CORES[rank]), *kind.command(_ENDLESS, journal)],
                cwd=_ROOT,
                env={**outside, "COTENANT_CHECKPOINT_DIR": folder, **(told if count > 1 else {})},
                # A rank whose peer is killed first complains.
                stderr=subprocess.DEVNULL,
            )
        )
    return started
