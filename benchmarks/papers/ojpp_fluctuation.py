"""Fig. 10 of the OJPP paper: interference that rises for a moment and for good, with and without moving workers.

The simulator runs: the true slowdown is not what is predicted of starters or latecomers, the engine measures it
as it does on machines, and moves cost a checkpoint and a restart.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from benchmarks.papers.ojpp_workload import FILE, Matrix, draw_matrix
from cotenant_simulator.run.records import JobResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from cotenant_simulator.truth.trace import GPU_MEMORY_BYTES, Trace, TraceJob
from scheduler_service.core import commands, events
from scheduler_service.core.records import JobRequest, Share

MINUTE_MS = 60_000
UNSEEN_JOBS = ("starters", "latecomers")
"""Jobs of which something else is predicted than is true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fluctuation:
    """One workload of Fig. 10.

    Attributes:
        trace: Which jobs come when, with their true slowdowns.
        predicted: What is predicted.
        rise_at_ms: When the latecomers begin to come.
        report_interval_ms: Between two progress reports.
        judge_interval_ms: Between two looks at what is measured.
    """

    trace: Trace
    predicted: GroundTruth
    cluster: str
    rise_at_ms: int
    report_interval_ms: int
    judge_interval_ms: int


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen of one run; minutes are those of the simulated clock.

    Attributes:
        worst_by_minute: The largest moving average of any GPU with several jobs, as the trigger sees it.
        moves_by_minute: Jobs of which a worker was sent elsewhere.
        jobs: What became of every job.
    """

    worst_by_minute: dict[int, float] = field(default_factory=dict)
    moves_by_minute: dict[int, int] = field(default_factory=dict)
    jobs: Sequence[JobResult] = ()

    def moves(self, *, from_ms: int = 0, until_ms: int | None = None) -> int:
        """Return the moves of an interval of time."""
        minutes = range(from_ms // MINUTE_MS, 10**6 if until_ms is None else until_ms // MINUTE_MS)
        return sum(count for minute, count in self.moves_by_minute.items() if minute in minutes)

    def minutes_above(self, limit_ratio: float, *, from_ms: int, until_ms: int | None = None) -> int:
        """Return the minutes of an interval of time at whose end some GPU was above a limit."""
        minutes = range(from_ms // MINUTE_MS, 10**6 if until_ms is None else until_ms // MINUTE_MS)
        return sum(worst > limit_ratio for minute, worst in self.worst_by_minute.items() if minute in minutes)

    @property
    def slowdown_percent(self) -> float:
        """Mean over the jobs that were neither alone on purpose nor starters."""
        return self._slowdown_percent_of("jl")

    @property
    def known_slowdown_percent(self) -> float:
        """Mean over those of them that are no latecomers."""
        return self._slowdown_percent_of("j")

    def _slowdown_percent_of(self, letters: str) -> float:
        return 100 * fmean(job.slowdown_ratio for job in self.jobs if job.job_id[0] in letters)

    @property
    def cost_percent(self) -> float:
        """Share of its time with GPUs that a moved job did not train; 0 where no job was moved."""
        moved = [job for job in self.jobs if job.migrations]
        return 100 * fmean(1.0 - job.trained_ms / job.held_ms for job in moved) if moved else 0.0


def draw_fluctuation(seed: int) -> Fluctuation:
    """Draw one workload of Fig. 10."""
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    plan, types = data["fluctuation"], data["workloads"]["average"]
    generator = random.Random(f"fluctuation {seed}")
    predicted = _predicted(draw_matrix(data, random.Random(f"matrix {seed}"), lonely=False), types, generator, data)
    true = dict(predicted)
    for unseen, victim in product(UNSEEN_JOBS, (*types, *UNSEEN_JOBS)):
        true[victim, unseen] = generator.uniform(*plan[unseen]["slowdown"])
    average = {"at_min": plan["begin_min"], "jobs": plan["jobs"], "workers": data["workers"], **plan}
    jobs = [
        *_alone(plan, types, data["workers"]),
        *_group("j", average, types, generator, plan),
        *_group("s", plan["starters"], ["starters"], generator, plan),
        *_group("l", plan["latecomers"], ["latecomers"], generator, plan),
    ]
    kinds = _kinds(plan, (*types, *UNSEEN_JOBS), data["workers"])
    truth = GroundTruth(kinds=kinds, slowdowns=_on_every_device(true))
    return Fluctuation(
        trace=Trace(format="fig. 10", jobs=sorted(jobs, key=lambda one: one.submitted_at_ms), truth=truth),
        predicted=replace(truth, slowdowns=_on_every_device(predicted)),
        cluster=plan["gpus"],
        rise_at_ms=plan["latecomers"]["at_min"] * MINUTE_MS,
        report_interval_ms=plan["report_s"] * 1_000,
        judge_interval_ms=plan["judge_s"] * 1_000,
    )


def watch(workload: Fluctuation, policy: str) -> Watched:
    """Run a workload and watch what the trigger sees.

    Raises:
        RuntimeError: A job did not finish.
    """
    seen = Watched()
    parameters: dict[str, object] = {"compute_requirement": "zero"}
    if policy == "ojpap":
        # The paper's plan moves no job that stays within the limit, however many GPUs are idle.
        parameters |= {"interval_ms": workload.judge_interval_ms, "unshare": False}

    def observe(event: events.Event, orders: Sequence[commands.Command]) -> None:
        minute = event.at_ms // MINUTE_MS
        # A job on several nodes is stopped by an order to each of them.
        moves = len({one.job_id for one in orders if isinstance(one, commands.StopJob) and one.cause == "moved"})
        if moves:
            seen.moves_by_minute[minute] = seen.moves_by_minute.get(minute, 0) + moves
        if isinstance(event, events.JobProgressed):
            state = simulation.engine.state
            shared = [one.gpu.gpu_id for one in state.gpus.values() if len(one.job_ids) > 1]
            seen.worst_by_minute[minute] = max(
                (state.occupancy.slowdown_ewma_ratios.get(one, 0.0) for one in shared), default=0.0
            )

    simulation = Simulation(
        workload.trace,
        read_cluster(workload.cluster, device=workload.trace.device),
        TruthPredictor(workload.predicted, NoErrors()),
        RunSettings(
            policy=policy,
            parameters=parameters,
            report_interval_ms=workload.report_interval_ms,
        ),
        observe=observe,
    )
    result = simulation.run()
    if result.unfinished:
        raise RuntimeError(f"{result.unfinished} jobs did not finish under {policy}")
    seen.jobs = result.jobs
    return seen


def _predicted(matrix: Matrix, types: Sequence[str], generator: random.Random, data: Mapping[str, Any]) -> Matrix:
    """Return what is predicted of every job: unseen jobs are taken for jobs that disturb as the others do."""
    known = {(victim, other): matrix[victim, other] for victim, other in product(types, types)}
    pairs = product((*types, *UNSEEN_JOBS), (*types, *UNSEEN_JOBS))
    return {pair: known[pair] if pair in known else generator.uniform(*data["slowdowns"]["others"]) for pair in pairs}


def _alone(plan: Mapping[str, Any], types: Sequence[str], workers: Sequence[int]) -> list[TraceJob]:
    """Return a short training of each type and width that no job may join."""
    shapes = product(types, range(workers[0], workers[1] + 1))
    return [
        _job(
            f"a{number:02}",
            at_ms=0,
            kind=kind,
            gpus=gpus,
            length_min=plan["alone_min"],
            step_ms=plan["step_ms"],
            share=Share.NEVER,
        )
        for number, (kind, gpus) in enumerate(shapes)
    ]


def _group(
    letter: str, group: Mapping[str, Any], types: Sequence[str], generator: random.Random, plan: Mapping[str, Any]
) -> list[TraceJob]:
    """Draw jobs that come at one instant."""
    return [
        _job(
            f"{letter}{number:02}",
            at_ms=round(group["at_min"] * MINUTE_MS),
            kind=generator.choice(list(types)),
            gpus=generator.randint(*group["workers"]),
            length_min=generator.uniform(*group["length_min"]),
            step_ms=plan["step_ms"],
        )
        for number in range(group["jobs"])
    ]


def _job(
    name: str, *, at_ms: int, kind: str, gpus: int, length_min: float, step_ms: float, share: Share = Share.ANY
) -> TraceJob:
    request = JobRequest(
        job_id=name,
        key=kind,
        gpus=gpus,
        global_batch_size=gpus,
        steps_total=round(length_min * MINUTE_MS / step_ms),
        share=share,
        max_slowdown_ratio=100.0,
    )
    return TraceJob(submitted_at_ms=at_ms, request=request)


def _kinds(plan: Mapping[str, Any], types: Sequence[str], workers: Sequence[int]) -> dict[tuple[str, str], Kind]:
    kind = Kind(
        step_ms_by_gpus=dict.fromkeys(range(1, workers[1] + 1), plan["step_ms"]),
        memory_bytes=int(plan["memory_ratio"] * GPU_MEMORY_BYTES),
    )
    return {(one, EVERY_DEVICE): kind for one in types}


def _on_every_device(matrix: Matrix) -> dict[tuple[str, str, str], float]:
    return {(victim, other, EVERY_DEVICE): ratio for (victim, other), ratio in matrix.items()}
