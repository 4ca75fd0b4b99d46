"""The rules of the Pollux artifact written down a second time, as literally and slowly as they can be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from cotenant_simulator.pollux_rules.applications import Application
from cotenant_simulator.pollux_rules.workload import SubmittedJob

NODES, GPUS_PER_NODE = 16, 4
Allocation = tuple[tuple[int, int], ...]


@dataclass(eq=False)
class LiteralJob:
    """A job of the literal run."""

    submitted: SubmittedJob
    order: int
    progress: float = 0.0
    epochs: int = 0
    pause_s: int = 0
    allocation: Allocation = ()
    finished_s: int | None = None
    executed_s: int = 0
    was_chosen: bool = False

    @property
    def application(self) -> Application:
        """What it trains."""
        return self.submitted.application

    @property
    def gpus_held(self) -> int:
        """GPUs of its allocation."""
        return sum(gpus for _, gpus in self.allocation)


@dataclass
class LiteralRun:
    """One run; `policy` is tiresias or optimus."""

    policy: str
    jobs: list[LiteralJob]
    queues: tuple[list[LiteralJob], list[LiteralJob]] = field(default_factory=lambda: ([], []))

    def finish_times_s(self) -> list[int]:
        """Run to the end."""
        now_s = 0
        while any(job.finished_s is None for job in self.jobs):
            for job in self.jobs:
                if job.finished_s is None and job.allocation:
                    _run_minute(job, now_s)
            now_s += 60
            active = [job for job in self.jobs if job.submitted.submit_s <= now_s and job.finished_s is None]
            if active:
                self._decide(active)
        return [job.finished_s or 0 for job in self.jobs]

    def _decide(self, active: Sequence[LiteralJob]) -> None:
        if self.policy == "tiresias":
            order = [(job, job.submitted.gpus) for job in self._walk(active)]
            keeps = [job for job, _ in order if job.allocation]
        else:
            counts = _marginal_gains(active)
            order = sorted(((job, counts[job.order]) for job in active), key=lambda one: (one[1], one[0].order))
            keeps = [job for job, gpus in order if job.gpus_held == gpus]
        free = [GPUS_PER_NODE] * NODES
        given = {job.order: job.allocation for job in keeps}
        for job in keeps:
            for node, gpus in job.allocation:
                free[node] -= gpus
        for job, gpus in order:
            if job not in keeps:
                given[job.order] = _fullest_free_first(free, gpus)
        for job in active:
            allocation = given.get(job.order, ())
            if allocation != job.allocation:
                job.allocation, job.pause_s = allocation, 30

    def _walk(self, active: Sequence[LiteralJob]) -> list[LiteralJob]:
        first, second = self.queues
        for queue in self.queues:
            queue[:] = [job for job in queue if job.finished_s is None]
        first += [job for job in active if job not in first and job not in second]
        for job in active:
            job.executed_s += 60 * job.was_chosen
            if job in first and job.executed_s * job.submitted.gpus >= 57_600:
                first.remove(job)
                second.append(job)
        left, chosen = NODES * GPUS_PER_NODE, []
        for job in [*first, *second]:
            job.was_chosen = job.submitted.gpus <= left
            if job.was_chosen:
                left -= job.submitted.gpus
                chosen.append(job)
        return chosen


def _run_minute(job: LiteralJob, now_s: int) -> None:
    application, left_s = job.application, 60
    pause_s = min(job.pause_s, left_s)
    job.pause_s -= pause_s
    left_s -= pause_s
    samples, passes = _split(application, job.submitted.batch, job.gpus_held)
    step_s = _step_s(application, [gpus for _, gpus in job.allocation], samples, passes)
    batch = samples * passes * job.gpus_held
    while left_s > 0 and job.finished_s is None:
        square, variance = application.gradient(batch, job.epochs)
        scale = batch / application.initial_batch
        rate = (variance + square) / (variance / scale + square) / step_s
        goal = min(training.progress[job.epochs] for training in application.trainings.values())
        if job.progress + rate * left_s < goal:
            job.progress += rate * left_s
            return
        spent_s = round((goal - job.progress) / rate)
        job.progress, job.epochs, left_s = goal, job.epochs + 1, left_s - spent_s
        if job.epochs == application.epochs:
            job.finished_s = now_s + 60 - left_s


def _split(application: Application, batch: int, gpus: int, *, foreseen: bool = False) -> tuple[int, int]:
    """Samples per GPU and pass, and passes (section 2); `foreseen` as Optimus reckons f(1)."""
    wanted = ceil(batch / gpus - 1e-8)
    extra = ceil(wanted / application.local_samples_max - 1e-8) - 1
    if gpus == 1 and (foreseen or batch > application.initial_batch):
        extra = max(extra, 1)
    samples = ceil(wanted / (extra + 1) - 1e-8)
    return min(samples, application.batch_max // (gpus * (extra + 1))), extra + 1


def _step_s(application: Application, shape: Sequence[int], samples: int, passes: int) -> float:
    step_s, sync_s = application.step_times.at(application.name, tuple(shape), samples)
    return step_s + (passes - 1) * (step_s - sync_s)


def _marginal_gains(active: Sequence[LiteralJob]) -> Mapping[int, int]:
    left = NODES * GPUS_PER_NODE
    counts = {job.order: int(place < left) for place, job in enumerate(active)}
    left -= sum(counts.values())
    gains = {job.order: _gain(job, counts[job.order]) for job in active}
    while left > 0:
        best = max(active, key=lambda job: (gains[job.order], -job.order))
        if gains[best.order] <= 0:
            break
        counts[best.order] += 1
        left -= 1
        gains[best.order] = _gain(best, counts[best.order])
    return counts


def _gain(job: LiteralJob, gpus: int) -> float:
    application, batch, epochs = job.application, job.submitted.batch, job.application.epochs
    largest = 1 if application.name == "ncf" else batch // application.local_samples_min
    if gpus == 0 or gpus + 1 > largest:
        return 0.0
    rest = 1.0
    if job.epochs < epochs - 1:
        rest = application.iterations(batch, epochs) - application.iterations(batch, job.epochs + 1)
    fewer_s, more_s = (
        _step_s(application, _packed(count), *_split(application, batch, count, foreseen=True))
        for count in (gpus, gpus + 1)
    )
    return (fewer_s - more_s) * rest


def _packed(gpus: int) -> list[int]:
    full, rest = divmod(gpus, GPUS_PER_NODE)
    return [GPUS_PER_NODE] * full + [rest] * (rest > 0)


def _fullest_free_first(free: list[int], gpus: int) -> Allocation:
    taken = []
    while gpus > 0:
        node = free.index(max(free))
        part = min(free[node], gpus)
        free[node] -= part
        gpus -= part
        taken.append((node, part))
    return tuple(taken)
