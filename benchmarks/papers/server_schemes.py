"""How the schedulers of the Optimus paper choose numbers of workers and servers, and the nodes for them.

Numbers and places can be combined freely, as its section 6.4 does. Optimus' own are the functions that our policy uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.papers.server_beliefs import Counts
from benchmarks.papers.server_jobs import plan
from scheduler_service.policies.elasticity.optimus_allocation import Demands, Floats, Integers, allocate_tasks
from scheduler_service.policies.elasticity.optimus_placement import TaskGroup, place_evenly

Places = Mapping[int, Counts]
"""By node."""
NONE: Counts = (0, 0)
PAIRED = "optimus, a server beside every worker"


class Active(Protocol):
    """A job that has come and not ended, as schedulers see it."""

    @property
    def name(self) -> str:
        """Its own."""

    @property
    def submitted_s(self) -> float:
        """When it came."""

    @property
    def remaining_s(self) -> Floats:
        """The remaining time that is assumed, by workers and servers; infinite where there are none."""


Allocate = Callable[[Sequence[Active], int], dict[str, Counts]]
Place = Callable[[Sequence[int], Sequence[int], Counts], Places]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A scheduler.

    Attributes:
        allocate: Numbers of tasks, from the active jobs and the number of containers.
        place: Nodes for the tasks of one job, from what each node has and has left; empty = there are none.
        order: Which job is placed first, by job and its numbers.
    """

    allocate: Allocate
    place: Place
    order: Callable[[Active, Counts], tuple[object, ...]]


def allocate_by_gain(jobs: Sequence[Active], containers: int) -> dict[str, Counts]:
    """Algorithm 1: by marginal gain, after a worker and a server for every job."""
    return _by_gain(jobs, containers, is_paired=False)


def allocate_pairs_by_gain(jobs: Sequence[Active], containers: int) -> dict[str, Counts]:
    """Algorithm 1 with a server per worker, as under the live engine."""
    return _by_gain(jobs, containers, is_paired=True)


def _by_gain(jobs: Sequence[Active], containers: int, *, is_paired: bool) -> dict[str, Counts]:
    ordered = sorted(jobs, key=_shortest_first)
    most = plan()["tasks_max"]
    table = np.full((len(ordered), most + 2, most + 2), np.inf)
    for row, job in enumerate(ordered):
        table[row, : most + 1, : most + 1] = job.remaining_s

    def remaining_time_of(rows: Integers, workers: Integers, servers: Integers) -> Floats:
        return np.asarray(table[rows, workers, workers if is_paired else servers])

    one, capacity = np.ones((len(ordered), 1)), np.array([float(containers)])
    counts = allocate_tasks(
        Demands(
            capacity=capacity,
            available=capacity,
            worker=2 * one if is_paired else one,
            server=one,
            worker_counts=np.array([range(1, most + 1)] * len(ordered)),
            has_servers=np.full(len(ordered), not is_paired),
        ),
        remaining_time_of,
    )
    servers = counts.workers if is_paired else counts.servers
    found = zip(counts.workers.tolist(), servers.tolist(), strict=True)
    return {job.name: numbers for job, numbers in zip(ordered, found, strict=True)}


def allocate_fairly(jobs: Sequence[Active], containers: int) -> dict[str, Counts]:
    """DRF among equal demands: a pair for every job in turn until nothing is left."""
    ordered = sorted(jobs, key=lambda job: (job.submitted_s, job.name))
    pairs = dict.fromkeys((job.name for job in ordered), 0)
    left = containers // 2
    while left and (open_jobs := [name for name, count in pairs.items() if count < plan()["tasks_max"]]):
        pairs[min(open_jobs, key=lambda name: pairs[name])] += 1
        left -= 1
    return {name: (count, count) for name, count in pairs.items()}


def allocate_as_asked(jobs: Sequence[Active], containers: int) -> dict[str, Counts]:
    """Tetris: the shortest first, each with the pairs that its owner asks for."""
    left, found = containers, {}
    for job in sorted(jobs, key=_shortest_first):
        asked = plan()["asked_pairs"]
        found[job.name] = (asked, asked) if 2 * asked <= left else NONE
        left -= sum(found[job.name])
    return found


def place_in_equal_parts(capacity: Sequence[int], left: Sequence[int], counts: Counts) -> Places:
    """Theorem 1: in equal parts on the fewest nodes, the emptiest first."""
    del capacity
    group = TaskGroup(workers=counts[0], servers=counts[1], worker_demand=(1.0,), server_demand=(1.0,))
    (placed,) = place_evenly([(float(free),) for free in left], [group])
    return {part.node: (part.workers, part.servers) for part in placed}


def place_balanced(capacity: Sequence[int], left: Sequence[int], counts: Counts) -> Places:
    """Kubernetes by default: every task on the node of which the largest share is free."""
    return _one_by_one(left, counts, lambda node, free: (-free / capacity[node], node))


def place_packed(capacity: Sequence[int], left: Sequence[int], counts: Counts) -> Places:
    """Tetris: every task on the node of which least is left."""
    del capacity
    return _one_by_one(left, counts, lambda node, free: (free, node))


def shrunk(counts: Counts) -> Counts:
    """Return the numbers to try when these find no nodes: one task less of what there is more of."""
    workers, servers = counts
    if workers + servers <= 2:
        return NONE
    return (workers - 1, servers) if workers >= servers else (workers, servers - 1)


def _one_by_one(left: Sequence[int], counts: Counts, key: Callable[[int, int], tuple[float, int]]) -> Places:
    free = list(left)
    if sum(counts) > sum(free):
        return {}
    found: dict[int, Counts] = {}
    workers, servers = counts
    # A server per worker, then what is left of either: the order in which pairs are created.
    tasks = [(1, 0), (0, 1)] * min(counts) + [(1, 0)] * (workers - min(counts)) + [(0, 1)] * (servers - min(counts))
    for worker, server in tasks:
        node = min((node for node in range(len(free)) if free[node]), key=lambda node: key(node, free[node]))
        free[node] -= 1
        here = found.get(node, NONE)
        found[node] = (here[0] + worker, here[1] + server)
    return found


def _shortest_first(job: Active) -> tuple[float, float, str]:
    return float(job.remaining_s[1, 1]), job.submitted_s, job.name


def _smallest_first(job: Active, counts: Counts) -> tuple[object, ...]:
    return sum(counts), job.submitted_s, job.name


def _first_come(job: Active, counts: Counts) -> tuple[object, ...]:
    del counts
    return job.submitted_s, job.name


def _shortest_placed_first(job: Active, counts: Counts) -> tuple[object, ...]:
    del counts
    return _shortest_first(job)


ALLOCATIONS: Mapping[str, Allocate] = {
    "optimus": allocate_by_gain,
    PAIRED: allocate_pairs_by_gain,
    "drf": allocate_fairly,
    "tetris": allocate_as_asked,
}
PLACEMENTS: Mapping[str, tuple[Place, Callable[[Active, Counts], tuple[object, ...]]]] = {
    "optimus": (place_in_equal_parts, _smallest_first),
    "drf": (place_balanced, _first_come),
    "tetris": (place_packed, _shortest_placed_first),
}


def scheme(allocation: str, placement: str) -> Scheme:
    """Return the scheduler with one's numbers and another's places."""
    place, order = PLACEMENTS[placement]
    return Scheme(allocate=ALLOCATIONS[allocation], place=place, order=order)
