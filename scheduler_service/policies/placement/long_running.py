"""How long the jobs run that would have to make room, for every width of job at once, found in columns.

Any other measure by which jobs make room, the largest first, does as well as the remaining time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.gpu_arrays import Positions
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.service_measures import KeptServiceMeasures
from scheduler_service.core.cluster_view.view import SchedulingView

GPUS_IN_COLUMNS_MIN: Final = 64
"""On smaller clusters looking at each GPU costs less than columns, but before a long queue."""


class LongRunning:
    """Which jobs are too long to have room made for them, whatever else is true of them.

    It never says so of a job for which room could be made: hosts, kinds of GPU and ages of jobs are not looked at.

    Args:
        ledger: Of the round; free GPUs that it has given away count as held by jobs that make no room.
        measures: Of the one job on each GPU, by position, instead of its remaining time; -inf = it makes no room. Or
            such numbers as are kept, which this round takes a copy of.
    """

    def __init__(self, ledger: Ledger, measures: NDArray[np.float64] | KeptServiceMeasures | None = None) -> None:
        self._view: SchedulingView = ledger.view
        self._taken = ledger.taken_gpu_ids()  # which grows as the round gives GPUs away
        self._given_away = 0
        self._promised: list[str] = []
        arrays = self._view.index.counted_arrays
        self._position_of = arrays.position_of
        self._gpu_ids, self._number_of = arrays.gpu_ids, arrays.number_of
        self._node_ids, self._node_of, self._slots = arrays.node_ids, arrays.node_of, arrays.slots
        self._in_order: list[float] | None = None
        if isinstance(measures, KeptServiceMeasures):
            self._least_ms = measures.least.copy()
            self._in_order = [*measures.in_order] if self._view.nodes_per_job_max != 1 else None
        else:
            measures = self._view.index.remaining_times.remaining_ms if measures is None else measures
            # The last one stands for the GPUs that a node does not have.
            self._least_ms = np.empty(len(measures) + 1)
            self._least_ms[:-1], self._least_ms[-1] = measures, -inf
            np.copyto(self._least_ms[:-1], inf, where=arrays.jobs_on != 1)
        self._by_node: NDArray[np.float64] | None = None
        self._reaches_ms: dict[int, float] = {}
        self._unheld: dict[str, list[str]] | None = None
        if self._view.protected_job_ids:
            self._in_order = None
            self._least_ms[:-1][self._protected(arrays.jobs_on)] = -inf
        if self._view.kept_gpu_ids:
            self._close(self._view.kept_gpu_ids & self._position_of.keys())

    def reach_ms(self, gpus: int) -> float:
        """Return the longest remaining time of jobs that run on so many GPUs: no longer job has room made for it."""
        # Asked here too: this is called several times in every round.
        if self._promised or len(self._taken) > self._given_away:
            self._close_given_away()
        in_order = self._in_order
        if in_order is not None:
            return in_order[-gpus] if gpus <= len(in_order) else -inf
        reach_ms = self._reaches_ms.get(gpus)
        if reach_ms is None:
            self._reaches_ms[gpus] = reach_ms = self._find_reach_ms(gpus)
        return reach_ms

    def _find_reach_ms(self, gpus: int) -> float:
        if gpus == 1:
            return float(self._least_ms.max())
        if self._view.nodes_per_job_max == 1:
            return float(self._of_nodes(gpus).max(initial=-inf))
        in_order = self._least_ms.copy()
        in_order.sort()  # numpy's function of this name costs three calls more, in every round
        self._in_order = in_order.tolist()
        return self.reach_ms(gpus)

    def nodes(self, gpus: int, remaining_ms: float) -> Iterator[tuple[float, str]]:
        """Yield the nodes with so many GPUs whose jobs run as long, those that run longest first, and how long."""
        known: list[int] = []
        if gpus == 1 and self._by_node is None and len(self._least_ms) > 1:
            # A job of one GPU rarely wants to know more than the first two, which take a tenth of the time.
            self._close_given_away()
            left = self._least_ms
            for _ in range(2):
                position = int(left.argmax())
                limit_ms = float(left[position])
                if limit_ms < remaining_ms or limit_ms == -inf:
                    return
                known.append(int(self._node_of[position]))
                yield limit_ms, self._node_ids[known[-1]]
                left = self._least_ms.copy()
                left[self._slots[known[0]]] = -inf
        limits_ms = self._of_nodes(gpus)
        (numbers,) = (limits_ms >= remaining_ms).nonzero()
        numbers = numbers[(-limits_ms[numbers]).argsort(kind="stable")]
        for number, limit_ms in zip(numbers.tolist(), limits_ms[numbers].tolist(), strict=True):
            if number not in known:
                yield limit_ms, self._node_ids[number]

    def longest(self) -> tuple[float, Sequence[str]]:
        """Return how long the jobs run that run longest, and their GPUs; none where some are held by no one job."""
        self._close_given_away()
        longest_ms = self._in_order[-1] if self._in_order else float(self._least_ms.max())
        if not -inf < longest_ms < inf:
            return longest_ms, ()
        return longest_ms, [
            self._gpu_ids[position] for position in (self._least_ms == longest_ms).nonzero()[0].tolist()
        ]

    def unheld(self, node_id: str) -> Sequence[str]:
        """Return the GPUs of a node that no one job holds that stays: none does, or several do; in no order."""
        return self._unheld_by_node().get(node_id, ())

    def unheld_anywhere(self) -> Iterable[str]:
        """Return the same of all nodes, until the next change."""
        return chain.from_iterable(self._unheld_by_node().values())

    def unheld_nodes(self) -> Collection[str]:
        """Return the nodes with such GPUs."""
        return self._unheld_by_node()

    def _unheld_by_node(self) -> Mapping[str, Sequence[str]]:
        self._close_given_away()
        if self._unheld is None:
            self._unheld = {}
            for position in (self._least_ms == inf).nonzero()[0].tolist():
                node = self._node_ids[self._node_of[position]]
                self._unheld.setdefault(node, []).append(self._gpu_ids[position])
        return self._unheld

    def held(self, node_id: str, remaining_ms: float) -> Sequence[str]:
        """Return the GPUs of a node whose one job runs as long, and all that are held by others than one job."""
        self._close_given_away()
        slots = self._slots[self._number_of[node_id]]
        return [self._gpu_ids[position] for position in slots[self._least_ms[slots] >= remaining_ms].tolist()]

    def held_anywhere(self, remaining_ms: float) -> Sequence[str]:
        """Return the same of all nodes."""
        self._close_given_away()
        return [self._gpu_ids[position] for position in (self._least_ms[:-1] >= remaining_ms).nonzero()[0].tolist()]

    def least_ms(self, gpu_ids: Iterable[str]) -> float:
        """Return how long the jobs on these GPUs run at least; infinite = no job is known to hold any of them."""
        return float(self._least_ms[[self._position_of[gpu_id] for gpu_id in gpu_ids]].min(initial=inf))

    def promise(self, gpu_ids: Sequence[str]) -> None:
        """Note that vacant GPUs are promised: several at once, when something is asked again."""
        self._promised += gpu_ids

    def change(self, *, left: Iterable[str], promised: Iterable[str]) -> None:
        """Note which GPUs are left by jobs that will be stopped, and which of all GPUs are promised to others."""
        opened = [self._position_of[gpu_id] for gpu_id in dict.fromkeys(left)]  # jobs that leave may share one
        if opened:
            self._take_out(opened)
            self._least_ms[opened] = inf
            if self._unheld is not None:
                for position in opened:
                    self._unheld.setdefault(self._node_ids[self._node_of[position]], []).append(self._gpu_ids[position])
            if self._in_order is not None:
                self._in_order += [inf] * len(opened)
        closed = self._close(promised)
        if self._by_node is not None:
            self._sort_nodes([*opened, *closed])

    def _of_nodes(self, gpus: int) -> NDArray[np.float64]:
        """Return by node number how long the jobs on so many of its GPUs run at least."""
        self._close_given_away()
        if self._by_node is None:
            self._by_node = self._by_slot(self._slots)
        columns = self._by_node.shape[1]
        return self._by_node[:, columns - gpus] if gpus <= columns else np.full(len(self._node_ids), -inf)

    def _by_slot(self, slots: Positions) -> NDArray[np.float64]:
        """Return how long the jobs on the GPUs of nodes run, those of each node in order."""
        found: NDArray[np.float64] = self._least_ms[slots]
        found.sort(axis=1)
        return found

    def _close_given_away(self) -> None:
        """Have the GPUs that this round has given away count as held by jobs that make no room."""
        gone, self._promised = self._promised, []
        if len(self._taken) > self._given_away:
            gone += islice(self._taken, self._given_away, None)
            self._given_away = len(self._taken)
        if gone:
            self._sort_nodes(self._close(gone))

    def _close(self, gpu_ids: Iterable[str]) -> list[int]:
        closed = [self._position_of[gpu_id] for gpu_id in gpu_ids]
        if closed:
            self._take_out(closed)
            self._least_ms[closed if len(closed) > 1 else closed[0]] = -inf  # one in a tenth of the time
        return closed

    def _take_out(self, positions: Sequence[int]) -> None:
        """Forget how long jobs on a few GPUs run: to put 512 GPUs in order again costs as much as seventy of them."""
        in_order, unheld = self._in_order, self._unheld
        self._reaches_ms.clear()
        if in_order is None and unheld is None:
            return
        for position in positions:
            least_ms = self._least_ms.item(position)
            if in_order is not None and least_ms > -inf:
                del in_order[bisect_left(in_order, least_ms)]
            if unheld is not None and least_ms == inf:
                node_id, gpu_id = self._node_ids[self._node_of[position]], self._gpu_ids[position]
                unheld[node_id].remove(gpu_id)
                if not unheld[node_id]:
                    del unheld[node_id]

    def _sort_nodes(self, positions: Sequence[int]) -> None:
        if self._by_node is None:
            return
        nodes = [*{*self._node_of[positions].tolist()}]
        self._by_node[nodes] = self._by_slot(self._slots[nodes])

    def _protected(self, jobs_on: Positions) -> NDArray[np.bool_]:
        """Return by position whether a job is there that stays and makes no room.

        In a cluster of several classes or tenants most jobs make none: those that do are looked at.
        """
        running, protected = self._view.index.reported, self._view.protected_job_ids
        found: NDArray[np.bool_] = jobs_on == 1
        others = chain.from_iterable(running[job_id].assignments for job_id in running if job_id not in protected)
        positions = (self._position_of.get(part.gpu_id) for part in others)
        found[[position for position in positions if position is not None]] = False
        for position in np.flatnonzero((jobs_on != 0) & (jobs_on != 1)).tolist():
            there = self._view.gpus[self._gpu_ids[position]].job_ids
            found[position] = any(job_id in protected and not running[job_id].is_stopping for job_id in there)
        return found
