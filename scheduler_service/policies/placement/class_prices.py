"""What load classes cost shapes of jobs, kept from decision to decision."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, Positions
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.records import Reason
from scheduler_service.policies.placement.reasons import nearness_of

Order = tuple[float, float, str, int]
"""How near to a start a class was, the nearest first: rank, slowdown, the GPU that its reason names, its number."""
NearClass = tuple[Order, str]
"""A class by its order, and its first GPU."""
NEAREST_KEPT = 8
"""Classes of which is kept that they were nearest, so that another one is known when the first is gone."""
CHANGES_MAX = 32
"""Changes of load classes after which all of them are looked at again."""
CLASSES_FOLLOWED_MAX = 32
"""Classes that lose or get GPUs at once beyond which it costs less to look at all GPUs than for the first of each."""
REASONS_KEPT = 16
"""GPUs of which is kept why they refuse a shape of job."""
NO_RANK = 2**62
UNKNOWN_CLASS = -1
"""Of a GPU that was never followed."""
PRICES_MAX = 2_000_000
"""Prices that are kept; beyond them all are forgotten."""


class CostColumn:
    """Costs by the number of the class.

    Attributes:
        count: Classes that have been looked at.
    """

    def __init__(self) -> None:
        self.count = 0
        self._values = np.full(64, inf)

    @property
    def values(self) -> NDArray[np.float64]:
        """Of the classes that have been looked at."""
        return self._values[: self.count]

    def grow_to(self, count: int) -> NDArray[np.float64]:
        """Have room for so many classes, and return them; those without a price cost everything."""
        if count > len(self._values):
            self._values = np.concatenate((self._values, np.full(max(count, len(self._values)), inf)))
        self.count = count
        return self.values


class AlikeGpus:
    """One GPU of each load class that is left: what refuses a job there does on all of the class.

    Args:
        numbers: Of the classes.
        gpu_ids: Of each its GPU.

    Attributes:
        name_ranks: The places of the ids in their own order.
        most: The largest number.
    """

    def __init__(self, numbers: Positions, gpu_ids: Sequence[str]) -> None:
        self.numbers, self.gpu_ids, self.most = numbers, gpu_ids, int(numbers.max(initial=0))
        self.name_ranks = np.zeros(len(gpu_ids), dtype=np.intp)
        self.name_ranks[sorted(range(len(gpu_ids)), key=gpu_ids.__getitem__)] = np.arange(len(gpu_ids))


class AlikeChanges:
    """The load classes that are left and how they came, so that an answer about all of them is checked by the new ones.

    Attributes:
        version: Counts the changes.
    """

    def __init__(self) -> None:
        self.version = 0
        self._class_of: Positions = np.zeros(0, dtype=np.intp)
        self._alike: AlikeGpus | None = None
        self._moves: Sequence[int] | None = None
        self._moves_seen = 0
        self._firsts: dict[int, str] = {}
        self._first_positions: dict[int, int] = {}
        self._came: deque[Sequence[tuple[int, str]]] = deque(maxlen=CHANGES_MAX)
        self._came_since: dict[int, Sequence[tuple[int, str]]] = {}

    @property
    def alike(self) -> AlikeGpus:
        """The load classes that are left, each with its first GPU."""
        if self._alike is None:
            numbers = sorted(self._firsts)
            self._alike = AlikeGpus(np.array(numbers, dtype=np.intp), [self._firsts[number] for number in numbers])
        return self._alike

    def follow(self, columns: GpuArrays) -> None:
        """Note which load classes are left.

        Args:
            columns: The GPUs of a round, the same ones in every round; in one round nothing but `place` moves them.
        """
        moved = self._moved(columns)
        if not len(moved):
            return
        came: list[tuple[int, str]] = []
        for number, position in self._changed_firsts(columns, moved).items():
            if position >= len(columns.gpu_ids):
                self._firsts.pop(number, None)
                self._first_positions.pop(number, None)
                continue
            self._first_positions[number] = position
            if self._firsts.get(number) != columns.gpu_ids[position]:
                self._firsts[number] = columns.gpu_ids[position]
                came.append((number, columns.gpu_ids[position]))
        self._class_of[moved], self._alike = columns.class_of[moved], None
        self._came.append(came)
        self.version += 1
        self._came_since.clear()

    def _moved(self, columns: GpuArrays) -> Positions:
        """Return where GPUs are in another class than when they were last followed."""
        moves = columns.moved
        if moves is self._moves:
            moved = np.array(moves[self._moves_seen :], dtype=np.intp)
        else:
            if not len(self._class_of):
                self._class_of = np.full(len(columns.class_of), UNKNOWN_CLASS, dtype=np.intp)
            moved = np.flatnonzero(columns.class_of != self._class_of)
        self._moves, self._moves_seen = moves, len(moves)
        return moved

    def _changed_firsts(self, columns: GpuArrays, moved: Positions) -> dict[int, int]:
        """Return the first position of each load class that lost or got a GPU; beyond the last one = none is left.

        Between two starts these are few: to find the first GPU of all classes takes twenty times as long.
        """
        class_of, known, none = columns.class_of, self._first_positions, len(columns.class_of)
        lost, got = self._class_of[moved].tolist(), class_of[moved].tolist()
        numbers = {*lost, *got} - {UNKNOWN_CLASS}
        if len(numbers) > CLASSES_FOLLOWED_MAX:
            left, positions = np.unique(class_of, return_index=True)
            return dict.fromkeys(known, none) | dict(zip(left.tolist(), positions.tolist(), strict=True))
        starts = {number: known.get(number, none) for number in numbers}
        for number, position in zip(got, moved.tolist(), strict=True):
            starts[number] = min(starts[number], position)
        return {number: columns.first_of_class(number, start) for number, start in starts.items()}

    def is_forgotten(self, version: int) -> bool:
        """Say whether no classes can be told that came since then; versions to come change nothing about that."""
        return self.version - version > len(self._came)

    def left_of(self, nearest: Sequence[NearClass]) -> list[NearClass]:
        """Return those classes that are left with the same first GPU."""
        firsts = self._firsts
        return [one for one in nearest if firsts.get(one[0][3]) == one[1]]

    def came_since(self, version: int) -> Sequence[tuple[int, str]] | None:
        """Return the classes that came, or have another first GPU than then; None = that is too long ago to tell."""
        known = self._came_since.get(version)
        if known is None and not self.is_forgotten(version):
            newest = islice(self._came, len(self._came) - (self.version - version), None)
            came = dict.fromkeys(chain.from_iterable(newest))
            self._came_since[version] = known = [one for one in came if self._firsts.get(one[0]) == one[1]]
        return known


class NearestClasses(NamedTuple):
    """Where a shape of job was nearest to a start among all load classes of one version of `AlikeChanges`.

    Attributes:
        nearest: The classes that were nearest to a start, the nearest first; those that are left out are farther than
            `farthest`.
        farthest: The order of the last of them when all classes were looked at.
    """

    version: int
    nearest: Sequence[NearClass]
    farthest: Order


class ClassCosts:
    """What the load classes cost one shape of job, by number; grows with them.

    Attributes:
        costs: Infinite = the job may not come there, or the class has no price yet.
        unasked: The same where the jobs there were not asked for their consent, which most of the time goes into.
        nearness: How near to a start the job is on the classes that refuse it.
        joins: The classes that GPUs of others are in when such a job has started there.
        impossible: Why it could not start on the empty cluster either; None = not looked at, or it could.
        waited: The classes nearest to a start when it last waited; None = it did not, or that is not known.
    """

    def __init__(self) -> None:
        self.costs, self.unasked, self.nearness = CostColumn(), CostColumn(), Nearness()
        self.joins: dict[int, int] = {}
        self.impossible: tuple[Reason | None] | None = None
        self.waited: NearestClasses | None = None
        self._reasons: dict[str, tuple[int, GpuView, str, Reason]] = {}

    def reason_on(self, number: int, entry: GpuView, job_id: str) -> Reason | None:
        """Return why a GPU of a class refuses such a job, where one was asked about it and nothing has changed there.

        A reason may name the job that was asked about; it names this one instead.
        """
        known = self._reasons.get(entry.gpu.gpu_id)
        if known is None or known[:2] != (number, entry):
            return None
        _, _, asked_id, reason = known
        if asked_id not in reason.job_ids:
            return reason
        job_ids = tuple([job_id if one == asked_id else one for one in reason.job_ids])
        return Reason(code=reason.code, numbers=reason.numbers, job_ids=job_ids, gpu_ids=reason.gpu_ids)

    def keep_reason(self, number: int, entry: GpuView, job_id: str, reason: Reason) -> None:
        """Note why a GPU of a class refuses this job."""
        if len(self._reasons) >= REASONS_KEPT:
            self._reasons.clear()
        self._reasons[entry.gpu.gpu_id] = number, entry, job_id, reason


class Nearness:
    """How near to a start a shape of job is on the classes that refuse it, by number (`nearness_of`)."""

    def __init__(self) -> None:
        self._ranks, self._ratios = np.full((2, 64), inf)
        self._names_gpu = np.zeros(64, dtype=bool)

    def put(self, number: int, reason: Reason) -> None:
        """Note why a class refuses the job; a reason that names the GPU names the first of those that are as near."""
        self._reach(number)
        self._ranks[number], self._ratios[number] = nearness_of(reason)
        self._names_gpu[number] = bool(reason.gpu_ids)

    def order(self, number: int, gpu_id: str) -> Order | None:
        """Return where a class with this first GPU stands in the order of `nearest`; None = nothing is known of it."""
        self._reach(number)
        rank = float(self._ranks[number])
        name = gpu_id if self._names_gpu[number] else ""
        return (rank, float(self._ratios[number]), name, number) if rank < inf else None

    def nearest_few(self, alike: AlikeGpus) -> Sequence[NearClass]:
        """Return the first of the classes that are as near as the nearest one; none = nothing is known of any."""
        places = np.argsort(orders := self._orders(alike), kind="stable")[:NEAREST_KEPT]
        found = [(int(alike.numbers[place]), alike.gpu_ids[place]) for place in places if orders[place] < NO_RANK]
        named = ((self.order(number, gpu_id), gpu_id) for number, gpu_id in found)
        return [(order, gpu_id) for order, gpu_id in named if order is not None]

    def unknown(self, alike: AlikeGpus) -> Sequence[int]:
        """Return the places of the classes about which nothing was noted."""
        self._reach(alike.most)
        found: list[int] = np.flatnonzero(self._ranks[alike.numbers] == inf).tolist()
        return found

    def nearest(self, alike: AlikeGpus) -> int | None:
        """Return the place of the class that was nearest to a start; None = nothing is known of any."""
        orders = self._orders(alike)
        place = int(orders.argmin())
        return place if orders[place] < NO_RANK else None

    def _orders(self, alike: AlikeGpus) -> NDArray[np.int64]:
        """Return by place the order of the classes that are as near as the nearest one, least first; else `NO_RANK`."""
        self._reach(alike.most)
        numbers = alike.numbers
        ranks = self._ranks[numbers]
        least = ranks.min(initial=inf)
        if least == inf:
            return np.full(len(numbers), NO_RANK)
        # Of the nearest the least slowdown; of equal ones a reason without a GPU, then that of the first GPU.
        ratios = np.where(ranks == least, self._ratios[numbers], inf)
        return np.where(ratios == ratios.min(), np.where(self._names_gpu[numbers], alike.name_ranks, -1), NO_RANK)

    def _reach(self, number: int) -> None:
        more = max(number + 1, 2 * len(self._ranks)) - len(self._ranks) if number >= len(self._ranks) else 0
        if more:
            self._ranks = np.concatenate((self._ranks, np.full(more, inf)))
            self._ratios = np.concatenate((self._ratios, np.full(more, inf)))
            self._names_gpu = np.concatenate((self._names_gpu, np.zeros(more, dtype=bool)))


class PricedClasses:
    """What the load classes cost all shapes, kept with the columns from decision to decision.

    Args:
        changes: Of the predictions; after any of them everything is priced anew.

    Attributes:
        alike_changes: The classes that are left and how they came.
    """

    def __init__(self, changes: ChangeLog) -> None:
        self._changes, self._count = changes, changes.count
        self._by_shape: dict[object, ClassCosts] = {}
        self.alike_changes = AlikeChanges()

    def of(self, shape: object, classes_count: int) -> ClassCosts:
        """Return what is known of a shape."""
        if self._count != self._changes.count or len(self._by_shape) * classes_count > PRICES_MAX:
            self._count = self._changes.count
            self._by_shape.clear()
        known = self._by_shape.get(shape)
        if known is None:
            known = self._by_shape[shape] = ClassCosts()
        return known
