"""Where workers and servers of a job go: evenly on as few nodes as suffice, the emptiest nodes first.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 4.2, Theorem 1
    and function PLACE of Algorithm 1. The listing ends at the first job that does not fit; here that job waits and the
    next is tried, as its text states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

_ROOM = 1e-9

Amounts = tuple[float, ...]
"""By resource; the first one, CPU in the paper, decides which node is emptiest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTasks:
    """What one node gets of a job."""

    node: int
    workers: int
    servers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """The tasks of one job.

    Attributes:
        workers: How many.
        servers: How many.
        worker_demand: What one worker takes.
        server_demand: What one server takes.
    """

    workers: int
    servers: int
    worker_demand: Amounts
    server_demand: Amounts

    def need(self, workers: int, servers: int) -> Amounts:
        """Return what so many of its tasks take."""
        pairs = zip(self.worker_demand, self.server_demand, strict=True)
        return tuple(workers * worker + servers * server for worker, server in pairs)


def even_shares(workers: int, servers: int, nodes: int) -> list[tuple[int, int]]:
    """Return (workers, servers) of each node: counts differ by one at most, and no node gets more of both than need be.

    Args:
        workers: To be spread.
        servers: To be spread.
        nodes: At least 1.
    """
    worker_part, more_workers = divmod(workers, nodes)
    server_part, more_servers = divmod(servers, nodes)
    return [
        (worker_part + (place < more_workers), server_part + (place >= nodes - more_servers)) for place in range(nodes)
    ]


def place_evenly(free: Sequence[Amounts], groups: Sequence[TaskGroup]) -> list[tuple[PlacedTasks, ...]]:
    """Place jobs one after the other, smallest first where the caller sorts them so.

    Args:
        free: What each node has left.
        groups: The jobs in the order of placing.

    Returns:
        The places of each job; empty = it does not fit anywhere now.
    """
    left = list(free)
    emptiest = [(-amounts[0], node) for node, amounts in enumerate(left)]
    heapify(emptiest)
    return [_place(group, left, emptiest) for group in groups]


def _place(group: TaskGroup, left: list[Amounts], emptiest: list[tuple[float, int]]) -> tuple[PlacedTasks, ...]:
    """Take nodes from the emptiest on until an even spread fits on them, and put them back with what is left."""
    tasks = group.workers + group.servers
    whole = group.need(group.workers, group.servers)
    nodes: list[int] = []
    placed: tuple[PlacedTasks, ...] = ()
    room = 0.0
    while emptiest and len(nodes) < tasks and not placed:
        key, node = heappop(emptiest)
        nodes.append(node)
        room -= key
        # Not before the nodes could hold it in sum is it worth looking closer.
        if room * (1 + _ROOM) >= whole[0]:
            placed = _spread(group, nodes, left)
    for part in placed:
        need = group.need(part.workers, part.servers)
        left[part.node] = tuple(have - take for have, take in zip(left[part.node], need, strict=True))
    for node in nodes:
        heappush(emptiest, (-left[node][0], node))
    return placed


def _spread(group: TaskGroup, nodes: Sequence[int], left: Sequence[Amounts]) -> tuple[PlacedTasks, ...]:
    shares = even_shares(group.workers, group.servers, len(nodes))
    needs = {share: group.need(*share) for share in set(shares)}
    for node, share in zip(nodes, shares, strict=True):
        # A task that needs nothing of a resource fits even where others took more of it than there is.
        if any(need > max(have + _ROOM * abs(have), 0.0) for need, have in zip(needs[share], left[node], strict=True)):
            return ()
    return tuple(
        PlacedTasks(node=node, workers=workers, servers=servers)
        for node, (workers, servers) in zip(nodes, shares, strict=True)
    )
