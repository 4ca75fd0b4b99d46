"""The fewest GPUs on which OJPP's constraints admit all jobs: the ruler of ojpp and its baselines.

Devices are alike, so what counts is which sets of jobs share one: every feasible set is a pattern, used as often as
there are such devices. Eq. 8 forbids two patterns that slow one job's workers too differently to be used together.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    section 3.4: fewest devices subject to Eq. 1-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.exact_rulers.integer_program import IntegerProgram
from scheduler_service.policies.packing.opportunistic_memory import Demand
from scheduler_service.policies.packing.packing_rules import PackingRules


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedJob:
    """A job with equal workers, at most one of them on a device."""

    name: str
    workers: int
    demand: Demand


Slowdowns = Mapping[tuple[str, str], float]
"""(victim, other) -> slowdown ratio; absent = none. Among more than two jobs they are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """Jobs that share a device, and how much each of them is slowed down there."""

    slowdowns: Mapping[str, float]


def fewest_gpus(jobs: Sequence[PackedJob], slowdowns: Slowdowns, rules: PackingRules) -> int | None:
    """Return the fewest devices for all workers of all jobs; None = some job fits no device."""
    shared = share_fewest(jobs, slowdowns, rules)
    return None if shared is None else sum(shared.values())


def share_fewest(
    jobs: Sequence[PackedJob], slowdowns: Slowdowns, rules: PackingRules
) -> Mapping[tuple[str, ...], int] | None:
    """Return which jobs share a device, and on how many devices, where these are fewest; None = some job fits none.

    The number of patterns is exponential in the number of jobs on one device: meant for a dozen jobs, or for twenty of
    which few can share.
    """
    patterns = list(_feasible_patterns(jobs, slowdowns, rules))
    most = sum(job.workers for job in jobs)
    program = IntegerProgram()
    devices = [program.add(1.0, most) for _ in patterns]
    is_used = [program.add(0.0) for _ in patterns]
    for device, used in zip(devices, is_used, strict=True):
        program.require({device: 1.0, used: -float(most)}, most=0.0)
    for job in jobs:
        mine = {device: 1.0 for device, one in zip(devices, patterns, strict=True) if job.name in one.slowdowns}
        program.require(mine, least=job.workers, most=job.workers)
    for first, second in combinations(range(len(patterns)), 2):
        if _unbalanced(patterns[first], patterns[second], rules):
            program.require({is_used[first]: 1.0, is_used[second]: 1.0}, most=1.0)
    uses = program.solve()
    if uses is None:
        return None
    pairs = zip(patterns, devices, strict=True)
    return {tuple(one.slowdowns): uses[device] for one, device in pairs if uses[device]}


def _feasible_patterns(jobs: Sequence[PackedJob], slowdowns: Slowdowns, rules: PackingRules) -> Iterator[_Pattern]:
    """Yield every set of jobs that may share a device, grown job by job: a broken limit stays broken in larger sets."""
    grown: list[tuple[int, ...]] = [()]
    while grown:
        candidates = [(*places, new) for places in grown for new in range(places[-1] + 1 if places else 0, len(jobs))]
        grown = []
        for places in candidates:
            together = [jobs[place] for place in places]
            if rules.demand_obstacle("", [job.demand for job in together]) is not None:
                continue
            names = [job.name for job in together]
            suffered = {one: sum(slowdowns.get((one, other), 0.0) for other in names if other != one) for one in names}
            if rules.slowdown_obstacle("", names, list(suffered.values())) is None:
                grown.append(places)
                yield _Pattern(slowdowns=suffered)


def _unbalanced(first: _Pattern, second: _Pattern, rules: PackingRules) -> bool:
    """Say whether some job's workers would be slowed down too differently on devices of these two patterns."""
    shared = first.slowdowns.keys() & second.slowdowns.keys()
    apart = (abs(first.slowdowns[name] - second.slowdowns[name]) for name in shared)
    return any(rules.balance_obstacle("", "", difference) is not None for difference in apart)
