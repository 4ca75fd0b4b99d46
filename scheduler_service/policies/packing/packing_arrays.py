"""GPUs in use as arrays for packing: sums of demands, the jobs there, and how much each of them is slowed down.

One expression over all GPUs keeps Eq. 1-7 for a worker that would come and ranks those that stay; without it every job
of a round looks at every GPU in use, and a thousand jobs look a million times.

Why both forms: a round of 1,000 jobs takes .8 s of CPU, and 8.7 s where each GPU is looked at, with a bar of 1 s
(`python -m benchmarks.decisions ojpp_1000_jobs_of_1_to_10_workers`, then with `--without-arrays`). Looking at each GPU
shows why a job waits, which no array does, and serves GPUs of several kinds and limits of nodes.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    Eq. 1-7, Algorithm 2 line 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from typing import overload

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.records import Gpu, Share
from scheduler_service.core.sharing.colocation_slowdown import (
    expected_slowdown,
    mutual_wait_ratio,
    takes_turns,
    utilization_of,
    with_mutual_waits,
)
from scheduler_service.policies.packing.device_offer import Device
from scheduler_service.policies.packing.opportunistic_memory import Demand
from scheduler_service.policies.packing.packing_rules import (
    ROUNDING_DIGITS,
    ROUNDING_RATIO,
    Best,
    MemoryModel,
    PackingRules,
)

TYPES_MAX = 300
"""Different workers in a round beyond which their pairs are too many for a table."""

Column = NDArray[np.float64]


class RankedDevices(Sequence[Device]):
    """Devices, best first, of which only those are made that are looked at.

    Args:
        count: How many there are.
        make: Makes the one of a rank.
    """

    def __init__(self, count: int, make: Callable[[int], Device]) -> None:
        self._count, self._make = count, make
        self._made: list[Device] = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Device]:
        for rank in range(self._count):
            if rank == len(self._made):
                self._made.append(self._make(rank))
            yield self._made[rank]

    @overload
    def __getitem__(self, rank: int) -> Device: ...

    @overload
    def __getitem__(self, rank: slice) -> Sequence[Device]: ...

    def __getitem__(self, rank: int | slice) -> Device | Sequence[Device]:
        return tuple(self)[rank]


class PackingArrays:
    """One round on GPUs of one kind.

    Args:
        ledger: The cluster before this round gives anything away.
        gpu: Any GPU of the kind.
        rules: The constraints.
        demand_of: What a worker asks of a GPU of the kind.
    """

    def __init__(self, ledger: Ledger, gpu: Gpu, rules: PackingRules, demand_of: Callable[[Resident], Demand]) -> None:
        self._ledger, self._gpu, self._rules, self._demand_of = ledger, gpu, rules, demand_of
        self._gpus = ledger.view.index.arrays.for_one_round()
        entries = [ledger.view.gpus[gpu_id] for gpu_id in self._gpus.gpu_ids]
        in_use = [
            position
            for position, entry in enumerate(entries)
            if entry.job_ids or entry.memory_reserved_bytes or entry.is_releasing
        ]
        # Only GPUs in use have a column, which on a large cluster may be few, and those that the jobs that wait take.
        count = min(len(in_use) + sum(job.request.gpus for job in ledger.view.pending), len(entries))
        self._column_of = {position: column for column, position in enumerate(in_use)}
        self._positions = np.zeros(count, dtype=np.intp)
        self._positions[: len(in_use)] = in_use
        self._types: dict[object, int] = {}
        self._has_trials = False
        self._examples: list[Resident] = []
        # The last row and column of pairs stand for no job, which is what empty places refer to. What is known of the
        # jobs on a GPU stands in its column, a job a row: reducing over few long rows is fast.
        self._pairs, self._doubts = np.zeros((TYPES_MAX + 1, TYPES_MAX + 1)), np.zeros((TYPES_MAX + 1,) * 2, dtype=bool)
        self._utilizations, self._waits = np.zeros(TYPES_MAX + 1), np.zeros((TYPES_MAX + 1,) * 2)
        # Of the square of all types the pairs that meet on a GPU are filled in, and those of types that are asked about
        # with all that came before: most jobs that run never meet.
        self._met: set[tuple[int, int]] = set()
        self._met_all: dict[int, int] = {}
        self._there = np.full((4, count), TYPES_MAX, dtype=np.intp)
        self._slowed, self._limits = np.zeros((4, count)), np.full((4, count), inf)
        # The sum of `mutual_wait_ratio` of every two others, of each job there and of an incoming job.
        self._waits_of_co_located, self._waits_of_all = np.zeros((4, count)), np.zeros(count)
        self._careful = np.zeros((4, count), dtype=bool)
        self._jobs = np.zeros(count, dtype=np.intp)
        self._is_closed = np.zeros(count, dtype=bool)
        self._sums = np.zeros((4, count))  # compute, base, largest surge, peak
        self._states = np.stack((np.ones(count), np.zeros(count), np.zeros(count)))  # none, one, several in high state
        self._free_bytes = np.full(count, float(gpu.memory_bytes))
        # The same as lists, since single values are read from these several times faster.
        self._slowed_lists: list[list[float]] = [[] for _ in range(count)]
        self._there_lists: list[list[int]] = [[] for _ in range(count)]
        self._places_of: dict[str, list[tuple[str, int, int]]] = {}
        self.is_usable = all(self._put_gpu(column, entries[position]) for column, position in enumerate(in_use))

    def _put_gpu(self, column: int, entry: GpuView) -> bool:
        self._free_bytes[column] = entry.gpu.memory_bytes - entry.memory_reserved_bytes
        self._is_closed[column] = entry.is_releasing
        return all(self._join(one, column) for one in self._ledger.residents(entry.gpu.gpu_id))

    def _column(self, position: int) -> int:
        """Return the column of a GPU, a new one where nothing used it yet."""
        column = self._column_of.get(position)
        if column is None:
            column = self._column_of[position] = len(self._column_of)
            self._positions[column] = position
        return column

    def place(self, worker: Resident, gpu_ids: Sequence[str]) -> None:
        """Let a job's workers join these GPUs."""
        positions = [self._gpus.position_of[gpu_id] for gpu_id in gpu_ids]
        self._gpus.place(worker, positions)
        for column in map(self._column, positions):
            self._free_bytes[column] -= worker.memory_reserved_bytes
            self.is_usable &= self._join(worker, column)

    def devices(self, worker: Resident) -> RankedDevices | None:
        """Return every GPU in use that keeps Eq. 1-7 with this worker, best first; None = the table is too small."""
        kind = self._asked_type_of(worker)
        if kind is None:
            return None
        gpus, request = self._gpus, worker.request
        is_valid, own, worst = self._slowdowns(worker, kind)
        is_valid &= (self._jobs > 0) & ~self._is_closed & (self._free_bytes >= worker.memory_reserved_bytes)
        room = gpus.hosts_with_room(request, 1)
        if room is not None:
            is_valid &= room[gpus.node_of[self._positions]]
        leftover = self._leftover(self._demand_of(worker), is_valid)
        valid = np.flatnonzero(is_valid)
        score, tie = leftover[valid], np.zeros(len(valid))
        if self._rules.best is Best.LEAST_INTERFERENCE:
            score, tie = np.round(worst[valid], ROUNDING_DIGITS), leftover[valid]
        order = np.lexsort((self._positions[valid], tie, score))
        return RankedDevices(
            len(order),
            lambda rank: self._device(int(valid[order[rank]]), float(score[order[rank]]), float(tie[order[rank]]), own),
        )

    def slowdowns_of(
        self, job_id: str, incoming_job: Resident, gpu_ids: Collection[str]
    ) -> Sequence[tuple[str, float]] | None:
        """Return the slowdown of each worker of a job by GPU, when an incoming job has these GPUs too.

        None = the table of pairs is too small for the incoming job.
        """
        kind = self._asked_type_of(incoming_job)
        if kind is None:
            return None
        found = []
        for gpu_id, column, place in self._places_of.get(job_id, ()):
            ratio = self._slowed_lists[column][place]
            if gpu_id in gpu_ids:
                ratio += self._pairs.item(self._there_lists[column][place], kind)
            found.append((gpu_id, ratio))
        return found

    def _slowdowns(self, worker: Resident, kind: int) -> tuple[NDArray[np.bool_], Column, Column]:
        """Return where consent and Eq. 7 let a worker come, its own pairwise sum and the largest one on each GPU."""
        request, there = worker.request, self._there
        own, others = self._pairwise_sums(kind)
        worst = np.maximum(own, others.max(axis=0))
        own_ratio, other_ratios = self._with_mutual_waits(kind, own, others)
        is_valid = (own_ratio <= request.max_slowdown_ratio) & (other_ratios <= self._limits).all(axis=0)
        is_valid &= ~(self._careful & self._doubts[:, kind][there]).any(axis=0)
        if request.share is Share.SAFE:
            is_valid &= ~self._doubts[kind][there].any(axis=0)
        if request.share is Share.NEVER:
            is_valid[:] = False
        if self._rules.theta_max is not None:
            is_valid &= worst <= self._rules.theta_max + ROUNDING_RATIO
        return is_valid, own, worst

    def colocation_slowdowns(self, worker: Resident) -> Mapping[str, tuple[float, Sequence[float]]] | None:
        """Return the `colocation_slowdown_ratio` of every GPU in use with this worker too, for consent.

        Returns:
            By GPU: of the worker, and of each place for a job there; None = the table of pairs is too small.
        """
        kind = self._asked_type_of(worker)
        if kind is None:
            return None
        own, others = self._with_mutual_waits(kind, *self._pairwise_sums(kind))
        return {
            self._gpus.gpu_ids[position]: (own.item(column), others[:, column].tolist())
            for position, column in self._column_of.items()
        }

    def _pairwise_sums(self, kind: int) -> tuple[Column, Column]:
        return self._pairs[kind][self._there].sum(axis=0), self._slowed + self._pairs[:, kind][self._there]

    def _with_mutual_waits(self, kind: int, own: Column, others: Column) -> tuple[Column, Column]:
        there, waits = self._there, self._waits[kind][self._there]
        own_utilization: Column = self._utilizations[kind : kind + 1]
        of_others = self._waits_of_co_located + waits.sum(axis=0) - waits
        return (
            with_mutual_waits(own, own_utilization, self._waits_of_all),
            with_mutual_waits(others, self._utilizations[there], of_others),
        )

    def _leftover(self, demand: Demand, is_valid: NDArray[np.bool_]) -> Column:
        """Drop from the valid GPUs those that break Eq. 1-5, and return what is left of compute and memory."""
        compute = self._sums[0] + demand.compute_ratio
        peaks = self._sums[3] + demand.peak_ratio
        one_surge = self._sums[1] + demand.base_ratio + np.maximum(self._sums[2], demand.surge_ratio)
        memory = one_surge if self._rules.memory is MemoryModel.ONE_SURGE else peaks
        is_valid &= compute <= 1.0 + ROUNDING_RATIO
        if self._rules.memory is not MemoryModel.RESERVED:
            is_valid &= memory <= 1.0 + ROUNDING_RATIO
        if self._rules.tau_max is not None:
            _, one, several = self._states
            is_valid &= several + one * demand.surge_probability_ratio <= self._rules.tau_max + ROUNDING_RATIO
        leftover: Column = np.round(2.0 - compute - memory, ROUNDING_DIGITS)
        return leftover

    def _device(self, column: int, score: float, tie: float, own: Column) -> Device:
        position = int(self._positions[column])
        gpu_id = self._gpus.gpu_ids[position]
        return Device(
            gpu_id=gpu_id,
            node_id=self._gpus.node_ids[self._gpus.node_of[position]],
            index=self._ledger.view.gpus[gpu_id].gpu.index,
            score=score,
            tie_breaker=tie,
            own_slowdown_ratio=float(own[column]),
            is_new=False,
        )

    def _join(self, worker: Resident, column: int) -> bool:
        """Add one worker to a GPU's arrays; False = the table of pairs is too small for it."""
        kind = self._type_of(worker)
        if kind is None:
            return False
        place = int(self._jobs[column])
        if place == len(self._there):
            self._widen()
        if place and not self._join_others(kind, place, column):
            return False
        self._there[place, column], self._jobs[column] = kind, place + 1
        self._limits[place, column] = worker.request.max_slowdown_ratio
        self._careful[place, column] = worker.request.share is Share.SAFE
        self._is_closed[column] |= worker.request.share is Share.NEVER or worker.is_on_trial
        places = self._places_of.setdefault(worker.request.job_id, [])
        places.append((self._gpus.gpu_ids[self._positions[column]], column, place))
        self._there_lists[column].append(kind)
        self._slowed_lists[column] = self._slowed[: place + 1, column].tolist() if place else [0.0]
        demand = self._demand_of(worker)
        self._sums[:, column] += (demand.compute_ratio, demand.base_ratio, 0.0, demand.peak_ratio)
        self._sums[2, column] = max(self._sums[2, column], demand.surge_ratio)
        none, one, several = self._states[:, column].tolist()
        high = demand.surge_probability_ratio
        self._states[:, column] = none * (1 - high), one * (1 - high) + none * high, several + one * high
        return True

    def _join_others(self, kind: int, place: int, column: int) -> bool:
        """Let a worker of a type and those before it slow each other down; False = they may share on trial."""
        if not all(self._meet(kind, other) for other in self._there_lists[column]):
            return False
        there = self._there[:place, column]
        waits = self._waits[there, kind]
        self._waits_of_co_located[:place, column] += waits.sum() - waits
        self._waits_of_co_located[place, column] = self._waits_of_all[column]
        self._waits_of_all[column] += waits.sum()
        self._slowed[:place, column] += self._pairs[there, kind]
        self._slowed[place, column] = self._pairs[kind, there].sum()
        return True

    def _widen(self) -> None:
        """Have places for twice as many jobs per GPU."""
        more = self._there.shape
        self._there = np.vstack((self._there, np.full(more, TYPES_MAX, dtype=np.intp)))
        self._slowed = np.vstack((self._slowed, np.zeros(more)))
        self._waits_of_co_located = np.vstack((self._waits_of_co_located, np.zeros(more)))
        self._limits = np.vstack((self._limits, np.full(more, inf)))
        self._careful = np.vstack((self._careful, np.zeros(more, dtype=bool)))

    def _type_of(self, worker: Resident) -> int | None:
        """Return the number of workers with equal predictions, a new one where needed.

        None = there are too many, or some may share on trial: that depends on how many jobs a GPU holds, which the
        table of pairs does not tell.
        """
        if self._has_trials:
            return None
        signature = (worker.request.key, worker.micro_batch_size, worker.is_open_to_trial)
        number = self._types.get(signature)
        if number is None:
            number = len(self._types)
            if number == TYPES_MAX:
                return None
            self._types[signature] = number
            self._examples.append(worker)
            self._utilizations[number] = utilization_of(worker, self._gpu, self._ledger.view.predictions)
        return number

    def _asked_type_of(self, worker: Resident) -> int | None:
        """Return the same with all pairs of the type filled in."""
        kind = self._type_of(worker)
        if kind is None:
            return None
        met, count = self._met_all.get(kind, 0), len(self._examples)
        self._met_all[kind] = count
        return kind if all(self._meet(kind, other) for other in range(met, count)) else None

    def _meet(self, one: int, two: int) -> bool:
        """Fill in how much workers of two types slow each other down; False = they may share on trial."""
        place = (one, two) if one < two else (two, one)
        if place not in self._met:
            self._met.add(place)
            example, other = self._examples[one], self._examples[two]
            self._pairs[one, two], self._doubts[one, two] = self._pair(example, other)
            self._pairs[two, one], self._doubts[two, one] = self._pair(other, example)
            wait = 0.0
            if takes_turns(self._gpu, self._ledger.view.predictions):
                wait = mutual_wait_ratio(self._utilizations.item(one), self._utilizations.item(two))
            self._waits[one, two] = self._waits[two, one] = wait
        return not self._has_trials

    def _pair(self, victim: Resident, other: Resident) -> tuple[float, bool]:
        slowdown = expected_slowdown(victim, [other], self._gpu, self._ledger.view.predictions)
        self._has_trials |= slowdown.may_try
        return slowdown.ratio, slowdown.doubt is not None
