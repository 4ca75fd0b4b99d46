"""Small packing instances as plain numbers, and OJPP's constraints written down a second time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Start, unfolded
from scheduler_service.core.records import MemoryTriple, Share
from tests.support.scheduling import job, node, pair, pending, prediction, running, store, view

MIB = 2**20
ROUNDING = 1e-9
Placement = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A job as the OJPP paper sees it; every fraction is of one device."""

    name: str
    workers: int = 1
    alpha: float = 0.1
    gamma: float = 0.1
    delta: float = 0.0
    p: float = 0.0

    @property
    def beta(self) -> float:
        """Memory of Eq. 2."""
        return self.gamma + self.delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Jobs in order of arrival, and how much each slows another down; absent = not at all.

    Attributes:
        gpus: Equal devices g0, g1 ... on one node.
        held: Where running jobs are.
        request_bytes: What every job reserves per device of 8 GiB; as good as nothing unless it matters.
    """

    jobs: tuple[Packed, ...]
    gpus: int
    slowdowns: Mapping[tuple[str, str], float] = field(default_factory=dict)
    held: Placement = field(default_factory=dict)
    request_bytes: int = MIB

    def named(self, name: str) -> Packed:
        """Return a job."""
        return next(one for one in self.jobs if one.name == name)

    def slowdown(self, victim: str, others: Sequence[str]) -> float:
        """Return the summed slowdown of a job with co-located jobs."""
        return sum(self.slowdowns.get((victim, other), 0.0) for other in others)

    def view(self) -> SchedulingView:
        """Return the instance as a policy sees it: every job consents, and only `request_bytes` are reserved."""
        machine = node("n0", self.gpus)
        names = [one.name for one in self.jobs]
        predictions = store(
            [
                prediction(
                    one.name,
                    utilization_ratio=one.alpha,
                    memory_triple=MemoryTriple(gamma_ratio=one.gamma, delta_ratio=one.delta, high_state_ratio=one.p),
                )
                for one in self.jobs
            ],
            [pair(one, two, self.slowdowns.get((one, two), 0.0)) for one in names for two in names],
        )
        requests = {
            one.name: job(
                one.name,
                key=one.name,
                gpus=one.workers,
                global_batch_size=one.workers,
                share=Share.ANY,
                max_slowdown_ratio=100.0,
                memory_request_bytes=self.request_bytes,
            )
            for one in self.jobs
        }
        return view(
            nodes=[machine],
            waiting=[pending(requests[name], position) for position, name in enumerate(names) if name not in self.held],
            holding=[running(requests[name], [f"n0.{gpu[1:]}" for gpu in gpus]) for name, gpus in self.held.items()],
            predictions=predictions,
            now_ms=1_000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which constraints count in addition to Eq. 1 and 2, or Eq. 3 with `one_surge`; None = this one does not."""

    one_surge: bool = True
    tau_max: float | None = None
    theta_max: float | None = None
    theta_diff: float | None = None


def placement_of(instance: Instance, decisions: Sequence[Decision]) -> dict[str, list[str]]:
    """Return where every job is after the decisions, running jobs included."""
    started = {
        one.job_id: [part.gpu_id.replace("n0.", "g") for part in one.assignments]
        for one in unfolded(decisions)
        if isinstance(one, Start)
    }
    return {**{name: list(gpus) for name, gpus in instance.held.items()}, **started}


def collision_by_enumeration(probabilities: Sequence[float]) -> float:
    """Return the probability of two high states or more, summed over all 2^n states (Eq. 4)."""
    total = 0.0
    for states in product((False, True), repeat=len(probabilities)):
        if sum(states) > 1:
            chance = 1.0
            for is_high, p in zip(states, probabilities, strict=True):
                chance *= p if is_high else 1.0 - p
            total += chance
    return total


def violations(instance: Instance, placement: Placement, limits: Limits) -> list[str]:
    """Return every constraint that a placement breaks."""
    tau_max, theta_max, theta_diff = limits.tau_max, limits.theta_max, limits.theta_diff
    on_gpu: dict[str, list[Packed]] = {}
    for name, gpus in placement.items():
        for gpu in gpus:
            on_gpu.setdefault(gpu, []).append(instance.named(name))
    found = []
    slowdowns: dict[str, list[float]] = {name: [] for name in placement}
    for gpu, there in sorted(on_gpu.items()):
        surge = max(one.delta for one in there) if limits.one_surge else sum(one.delta for one in there)
        found += [f"Eq. 1 on {gpu}"] if sum(one.alpha for one in there) > 1 + ROUNDING else []
        found += [f"Eq. 3 on {gpu}"] if sum(one.gamma for one in there) + surge > 1 + ROUNDING else []
        if tau_max is not None and collision_by_enumeration([one.p for one in there]) > tau_max + ROUNDING:
            found.append(f"Eq. 5 on {gpu}")
        for one in there:
            slowdown = instance.slowdown(one.name, [other.name for other in there if other is not one])
            slowdowns[one.name].append(slowdown)
            found += [f"Eq. 7 on {gpu}"] if theta_max is not None and slowdown > theta_max + ROUNDING else []
    if theta_diff is not None:
        apart = {name: max(own) - min(own) for name, own in slowdowns.items()}
        found += [f"Eq. 8 for {name}" for name, distance in apart.items() if distance > theta_diff + ROUNDING]
    return found


def random_instance(seed: int, *, jobs_max: int = 5, workers_max: int = 3, gpus: int = 5) -> Instance:
    """A random instance on an empty cluster; every job is narrow enough for it."""
    generator = random.Random(seed)
    jobs = tuple(
        Packed(
            name=f"j{index}",
            workers=generator.randint(1, min(workers_max, gpus)),
            alpha=generator.choice((0.1, 0.2, 0.35, 0.6)),
            gamma=generator.choice((0.1, 0.2, 0.3)),
            delta=generator.choice((0.0, 0.2, 0.5)),
            p=generator.choice((0.0, 0.1, 0.3, 0.5)),
        )
        for index in range(generator.randint(1, jobs_max))
    )
    names = [one.name for one in jobs]
    pairs = {(one, two): generator.choice((0.0, 0.05, 0.12, 0.3)) for one in names for two in names if one != two}
    return Instance(jobs=jobs, gpus=gpus, slowdowns=pairs)
