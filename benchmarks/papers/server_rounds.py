"""The discrete time of the Optimus paper (section 6.1): every 20 minutes numbers, places, and what they cost.

A job whose numbers stay keeps its places; every other active job is placed anew and pays a checkpoint and a restart.
One whose numbers find no nodes gets one task less until they do. Jobs that end leave their places idle until the next
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from statistics import fmean

from benchmarks.papers.parameter_servers import NodeTasks, ServerTraining
from benchmarks.papers.server_beliefs import Beliefs, Counts, fitted_step_s
from benchmarks.papers.server_jobs import ServerJob, plan
from benchmarks.papers.server_schemes import NONE, Places, Scheme, shrunk
from benchmarks.papers.server_stragglers import asynchronous_stragglers, synchronous_stragglers
from scheduler_service.policies.elasticity.optimus_allocation import Floats

ROUNDS_MAX = 10_000
HOUR_S = 3_600.0
DONE_RATIO = 1e-9
"""Part of a job that rounding may leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What one run is like apart from its jobs and its scheduler.

    Attributes:
        seed: Of all random draws.
        shares_links: The tasks on a node share its link; otherwise each has a part of its own.
        beliefs: What the scheduler assumes of the jobs.
        straggling: "" = no straggler, "ignored", or "replaced".
    """

    seed: int
    shares_links: bool = False
    beliefs: Beliefs = field(default_factory=Beliefs)
    straggling: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left.

    Attributes:
        jct_h: Mean completion time.
        makespan_h: First submission to last end.
        overhead_percent: Time spent on changes, of the time that jobs held places.
        tasks: Mean number of tasks that hold places.
        busy_ratio: Share of the workers' time in which they compute.
    """

    jct_h: float
    makespan_h: float
    overhead_percent: float
    tasks: float
    busy_ratio: float


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveJob:
    """A job between its submission and its end."""

    job: ServerJob
    steps_left: float
    assumed_steps_ratio: float
    assumed_step_s: Floats
    measured_s: dict[Counts, float] = field(default_factory=dict)
    places: Places = field(default_factory=dict)
    counts: Counts = NONE
    ratios: list[float] = field(default_factory=list)
    has_run: bool = False
    ended_s: float = -1.0

    @property
    def name(self) -> str:
        """Its own."""
        return self.job.name

    @property
    def submitted_s(self) -> float:
        """When it came."""
        return self.job.submitted_s

    @property
    def remaining_s(self) -> Floats:
        """The remaining time that is assumed, by workers and servers."""
        return self.assumed_step_s * (self.steps_left * self.assumed_steps_ratio)


@dataclass(slots=True, kw_only=True)
class Sums:
    """Seconds over all jobs."""

    held_s: float = 0.0
    changing_s: float = 0.0
    task_s: float = 0.0
    worker_s: float = 0.0
    computing_s: float = 0.0


def run(jobs: Sequence[ServerJob], scheme: Scheme, world: World) -> Outcome:
    """Run the jobs under a scheduler.

    Raises:
        RuntimeError: Some have not ended after very many rounds.
    """
    sums = Sums()
    waiting = [_begin(job, world) for job in jobs]
    active: list[ActiveJob] = []
    ended: list[ActiveJob] = []
    for number in range(ROUNDS_MAX):
        now_s = number * plan()["interval_s"]
        active += [one for one in waiting if one.submitted_s <= now_s]
        waiting = [one for one in waiting if one.submitted_s > now_s]
        if active:
            _advance_round(active, scheme, world, number, sums)
        ended += [one for one in active if one.ended_s >= 0]
        active = [one for one in active if one.ended_s < 0]
        if not active and not waiting:
            break
    else:
        raise RuntimeError(f"{len(active)} jobs have not ended after {ROUNDS_MAX} rounds")
    span_s = max(one.ended_s for one in ended) - min(one.submitted_s for one in ended)
    return Outcome(
        jct_h=fmean(one.ended_s - one.submitted_s for one in ended) / HOUR_S,
        makespan_h=span_s / HOUR_S,
        overhead_percent=100 * sums.changing_s / sums.held_s,
        tasks=sums.task_s / span_s,
        busy_ratio=sums.computing_s / sums.worker_s,
    )


def _begin(job: ServerJob, world: World) -> ActiveJob:
    return ActiveJob(
        job=job,
        steps_left=job.steps,
        assumed_steps_ratio=world.beliefs.steps_ratio(job, world.seed),
        assumed_step_s=world.beliefs.step_s(job, world.seed),
        measured_s=world.beliefs.preruns(job, world.seed),
    )


def _advance_round(active: Sequence[ActiveJob], scheme: Scheme, world: World, number: int, sums: Sums) -> None:
    changed = _place(active, scheme)
    colocations = _colocations(active) if world.shares_links else {}
    for one in active:
        if not one.places:
            continue
        nodes = [_node_tasks(counts, colocations.get(node, 0)) for node, counts in sorted(one.places.items())]
        if one.name in changed or not one.ratios:
            one.ratios = [1.0] * one.counts[0]
        intervals = [(float(plan()["change_s"]), 0.0)] if one.name in changed and one.has_run else []
        one.has_run = True
        _train(one, [*intervals, *_intervals(one, nodes, world, number)], number, sums)
        if world.beliefs.fits_speeds:
            one.measured_s[one.counts] = one.job.training.step_ms(nodes) / 1_000
            one.assumed_step_s = fitted_step_s(one.job.training, one.measured_s)


def _place(active: Sequence[ActiveJob], scheme: Scheme) -> set[str]:
    """Give every job its numbers and places; return those whose places are other ones than before."""
    capacity: Sequence[int] = plan()["nodes"]["containers"]
    wanted = scheme.allocate(active, sum(capacity))
    left = list(capacity)
    kept = {one.name for one in active if one.places and wanted[one.name] == one.counts}
    for one in active:
        if one.name in kept:
            _take(left, one.places)
    changed = set()
    for one in sorted(active, key=lambda one: scheme.order(one, wanted[one.name])):
        if one.name in kept:
            continue
        before, one.places, counts = one.places, {}, wanted[one.name]
        while counts != NONE and not one.places:
            one.places = scheme.place(capacity, left, counts)
            counts = counts if one.places else shrunk(counts)
        one.counts = counts
        _take(left, one.places)
        if one.places != before:
            changed.add(one.name)
    return changed


def _take(left: list[int], places: Places) -> None:
    for node, counts in places.items():
        left[node] -= sum(counts)


def _colocations(active: Sequence[ActiveJob]) -> dict[int, int]:
    """Return by node how many tasks exchange with other nodes."""
    found: dict[int, int] = {}
    for one in active:
        if len(one.places) > 1:
            for node, counts in one.places.items():
                found[node] = found.get(node, 0) + sum(counts)
    return found


def _node_tasks(counts: Counts, colocated: int) -> NodeTasks:
    """Return the tasks of a job on a node; of several each has its part of the link, else Table 2's."""
    ratio = plan()["containers_of_table_2"] / colocated if colocated else 1.0
    return NodeTasks(workers=counts[0], servers=counts[1], bandwidth_ratio=ratio)


def _intervals(one: ActiveJob, nodes: Sequence[NodeTasks], world: World, number: int) -> list[tuple[float, float]]:
    """Return how long the job takes for a step for how many seconds; 0 = it does not train; the last one lasts."""
    normal_s = one.job.training.step_ms(nodes) / 1_000
    if not world.straggling:
        return [(inf, normal_s)]
    rules = plan()["straggling"]
    generator = Random(f"{world.seed}/straggling/{one.name}/{number}")
    one.ratios = [
        rules["computing_ratio"] if generator.random() < rules["chance_per_interval"] else r for r in one.ratios
    ]
    slow_s = one.job.training.step_ms(nodes, computing_ratios=one.ratios) / 1_000
    slow = stragglers_of(one.job.training, nodes, one.ratios) if world.straggling == "replaced" else []
    if not slow:
        return [(inf, slow_s)]
    one.ratios = [1.0 if worker in slow else ratio for worker, ratio in enumerate(one.ratios)]
    after_s = one.job.training.step_ms(nodes, computing_ratios=one.ratios) / 1_000
    return [(float(rules["noticed_after_s"]), slow_s), (float(plan()["change_s"]), 0.0), (inf, after_s)]


def stragglers_of(training: ServerTraining, nodes: Sequence[NodeTasks], ratios: Sequence[float]) -> list[int]:
    """Return the workers that are found to straggle, by what can be measured of each of them."""
    usual_ms, exchange_ms = training.computing_ms(len(ratios)), training.exchange_ms(nodes)
    if training.is_synchronous:
        return synchronous_stragglers([usual_ms * ratio for ratio in ratios], [exchange_ms] * len(ratios))
    return asynchronous_stragglers([1_000 / (usual_ms * ratio + exchange_ms) for ratio in ratios])


def _train(one: ActiveJob, intervals: Sequence[tuple[float, float]], number: int, sums: Sums) -> None:
    interval_s, (workers, servers) = float(plan()["interval_s"]), one.counts
    computing_s = one.job.training.computing_ms(workers) / 1_000
    passed_s = 0.0
    for length_s, step_s in intervals:
        left_s = min(length_s, interval_s - passed_s)
        if step_s:
            left_s = min(left_s, one.steps_left * step_s)
            steps = left_s / step_s
            one.steps_left -= steps
            sums.computing_s += steps * computing_s * (workers if one.job.training.is_synchronous else 1)
        else:
            sums.changing_s += left_s
        passed_s += left_s
        if one.steps_left <= DONE_RATIO * one.job.steps:
            one.ended_s = number * interval_s + passed_s
            break
    sums.held_s += passed_s
    sums.task_s += passed_s * (workers + servers)
    sums.worker_s += passed_s * workers
