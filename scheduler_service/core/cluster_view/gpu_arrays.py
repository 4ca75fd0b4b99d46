"""GPUs as numpy columns in addition to their records: which of them are loaded alike, and what is left of their hosts.

GPUs of one kind that hold equal jobs are in one load class: whatever a policy thinks about one of them holds for all.
A policy judges classes, of which there are few, and finds the GPUs of the best one in one expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.inventory import Kind
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.listed_gpus import ListedGpus, list_gpus
from scheduler_service.core.cluster_view.replica_groups import host_share
from scheduler_service.core.cluster_view.shared_ways import place_of
from scheduler_service.core.cluster_view.view import GpuView, HostUse, SchedulingView
from scheduler_service.core.records import Gpu, JobRequest, Node

Positions = NDArray[np.intp]
_Name = TypeVar("_Name", str, Kind, tuple[int, DeviceSharing])
NEAR_GPUS = 64
JOBS_WHILE_RELEASING = -1_000
"""Stands for a number of jobs that makes a GPU neither free nor one that a single job holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadClass:
    """GPUs of one kind that hold equal jobs.

    Attributes:
        gpu: One of them, for its kind.
        residents: The jobs of that one; the others hold equal ones.
        memory_used_bytes: Reserved on each of them.
        is_releasing: A job there is being stopped.
    """

    gpu: Gpu
    residents: tuple[Resident, ...]
    memory_used_bytes: int
    is_releasing: bool

    def joined_by(self, resident: Resident) -> LoadClass:
        """Return the class of such a GPU with one more job."""
        used_bytes = self.memory_used_bytes + resident.memory_reserved_bytes
        return LoadClass(
            gpu=self.gpu,
            residents=(*self.residents, resident),
            memory_used_bytes=used_bytes,
            is_releasing=self.is_releasing,
        )


class GpuArrays:
    """The GPUs of a view by position; positions are in node and index order, and so are nodes.

    Attributes:
        gpu_ids: By position.
        node_ids: By node number.
        node_of: The node's number, by position.
        slots: Positions by node number; -1 = the node has fewer GPUs.
        kind_of: The number of the kind, by position; kinds are numbered in the order of their names.
        rack_of: The number of the rack, by node number.
        class_of: The load class, by position.
        jobs_on: How many jobs a GPU holds, by position; far below zero where a job there is being stopped.
        moved: The positions that `place` has put into other classes, in this order; of a copy for a round its own.
        classes: By number.
        cpu_free: CPU cores left, by node number; a node that states none has any amount.
        host_memory_free: Bytes of host memory left, by node number.
        notes: What policies worked out about classes, each under a name of its own; it goes when the columns go.
    """

    def __init__(self, columns: ListedGpus, nodes: Mapping[str, Node]) -> None:
        gpu_ids, node_ids = columns.gpu_ids, sorted(nodes)
        self.position_of = dict(zip(gpu_ids, range(len(gpu_ids)), strict=True))
        self.number_of = dict(zip(node_ids, range(len(node_ids)), strict=True))
        numbers = map(self.number_of.__getitem__, columns.node_ids)
        node_of = np.fromiter(numbers, dtype=np.intp, count=len(gpu_ids))
        self.gpu_ids, self.node_ids, self.node_of = gpu_ids, node_ids, node_of
        self.kind_of = _numbered(columns.kinds)
        self.rack_of = _numbered([nodes[node_id].rack_id for node_id in node_ids])
        self.slots = _slots(node_of, len(node_ids))
        self.class_of, self.jobs_on = np.zeros((2, len(gpu_ids)), dtype=np.intp)
        self.classes: list[LoadClass] = []
        self.moved: list[int] = []
        self._numbers: dict[object, int] = {}
        self.notes: dict[object, object] = {}
        in_order = [nodes[node_id] for node_id in node_ids]
        self.cpu_free = _stated_or_any([node.cpu_cores for node in in_order])
        self.host_memory_free = _stated_or_any([node.host_memory_bytes for node in in_order])

    def put_class(self, gpu_id: str, number: int) -> None:
        """Put a GPU into the class of what it holds."""
        position = self.position_of[gpu_id]
        self.class_of[position] = number
        self.jobs_on[position] = _jobs_of(self.classes[number])

    def put_counts(self, entries: Mapping[str, GpuView]) -> None:
        """Note how many jobs GPUs hold, by their ids; their classes are left as they were."""
        jobs_on, position_of = self.jobs_on, self.position_of
        for gpu_id, entry in entries.items():
            jobs_on[position_of[gpu_id]] = JOBS_WHILE_RELEASING if entry.is_releasing else len(entry.job_ids)

    def put_loads(self, view: SchedulingView, entries: Sequence[GpuView]) -> None:
        """Put GPUs that hold or release something into their classes."""
        if not entries:
            return
        ledger, running, known = Ledger(view), view.index.reported, dict[object, int]()
        numbers = list[int]()
        for entry in entries:
            # Cheaper than the class of each: the GPUs of a cluster are in few of them.
            jobs = [running[job_id] for job_id in entry.job_ids]
            alike = (*_OF_ENTRY(entry), *map(_OF_JOB, jobs), *[len(job.assignments) for job in jobs])
            number = known.get(alike)
            if number is None:
                load = load_of(entry, ledger.residents(entry.gpu.gpu_id))
                number = known[alike] = self.number_of_class(load)
            numbers.append(number)
        positions = [self.position_of[entry.gpu.gpu_id] for entry in entries]
        self.class_of[positions] = numbers
        self.jobs_on[positions] = [_jobs_of(self.classes[number]) for number in numbers]

    def number_of_class(self, load: LoadClass) -> int:
        """Return the number of a class, a new one where nothing was loaded alike yet."""
        signature = _signature(load)
        number = self._numbers.get(signature)
        if number is None:
            number = self._numbers[signature] = len(self.classes)
            self.classes.append(load)
        return number

    def first_of_class(self, number: int, start: int) -> int:
        """Return the first position, from one on, of a GPU in a load class; the count of all GPUs = there is none."""
        class_of, first = self.class_of, start
        # The next one is mostly near: to look at some costs a tenth of a look at all.
        for end in (start + NEAR_GPUS, len(class_of)):
            if first >= len(class_of) or class_of[first] == number:
                return first
            first += int((class_of[first:end] == number).argmax())
        return first if class_of[first] == number else len(class_of)

    def put_host(self, node: Node, use: HostUse) -> None:
        """Note what is left of a node's host."""
        number = self.number_of[node.node_id]
        self.cpu_free[number] = node.cpu_cores - use.cpu_cores if node.cpu_cores > 0 else inf
        left_bytes = node.host_memory_bytes - use.host_memory_bytes
        self.host_memory_free[number] = left_bytes if node.host_memory_bytes > 0 else inf

    def put_hosts(self, view: SchedulingView) -> None:
        """Note what is left of every host that a view says is used."""
        for node_id, use in view.host_use.items():
            if node_id in self.number_of:
                self.put_host(view.nodes[node_id], use)

    def hosts_with_room(self, request: JobRequest, gpus_here: int) -> NDArray[np.bool_] | None:
        """Return by node number whether its host has room for so many GPUs of a job; None = everywhere."""
        if request.cpu_cores <= 0 and request.host_memory_bytes <= 0:
            return None
        need = host_share(request, gpus_here, request.gpus)
        return (need.cpu_cores <= self.cpu_free + 1e-9) & (need.host_memory_bytes <= self.host_memory_free)

    def for_one_round(self) -> GpuArrays:
        """Return a copy that a round may change; classes that the round invents stay known."""
        copy = self._with_loads()
        copy.classes, copy._numbers, copy.notes = self.classes, self._numbers, self.notes
        return copy

    def for_one_view(self) -> GpuArrays:
        """Return a copy with classes of its own: whatever happens to it, nothing of it is known here."""
        copy = self._with_loads()
        copy.classes, copy._numbers, copy.notes = [*self.classes], dict(self._numbers), {}
        return copy

    def _with_loads(self) -> GpuArrays:
        copy = GpuArrays.__new__(GpuArrays)
        copy.gpu_ids, copy.node_ids, copy.node_of = self.gpu_ids, self.node_ids, self.node_of
        copy.kind_of, copy.rack_of = self.kind_of, self.rack_of
        copy.position_of, copy.number_of, copy.slots = self.position_of, self.number_of, self.slots
        copy.class_of, copy.jobs_on, copy.moved = self.class_of.copy(), self.jobs_on.copy(), []
        copy.cpu_free, copy.host_memory_free = self.cpu_free.copy(), self.host_memory_free.copy()
        return copy

    def place(self, resident: Resident, positions: Iterable[int], joins: dict[int, int] | None = None) -> None:
        """Let a job occupy one share of each of these GPUs and of their hosts.

        Args:
            resident: The job.
            positions: The GPUs.
            joins: The numbers of the classes that equal jobs made of others; more are noted.
        """
        request, joined = resident.request, {} if joins is None else joins
        takes_host = bool(request.cpu_cores or request.host_memory_bytes)
        for position in positions:
            before = int(self.class_of[position])
            if before not in joined:
                joined[before] = self.number_of_class(self.classes[before].joined_by(resident))
            self.class_of[position] = joined[before]
            self.jobs_on[position] += 1
            self.moved.append(position)
            if takes_host:
                node = self.node_of[position]
                self.cpu_free[node] -= request.cpu_cores / request.gpus
                self.host_memory_free[node] -= -(-request.host_memory_bytes // request.gpus)


_OF_ENTRY = attrgetter("gpu.device", "gpu.sharing", "gpu.memory_bytes", "memory_reserved_bytes", "is_releasing")
_OF_JOB = attrgetter(
    "request.key",
    "request.share",
    "request.max_slowdown_ratio",
    "request.memory_request_bytes",
    "request.memory_floor_bytes",
    "request.no_trial",
    "request.gpus",
    "is_on_trial",
    "micro_batch_size",
    "memory_reserved_bytes",
)
"""With the number of its GPUs all of a running job that its load class follows from."""


def build_arrays(view: SchedulingView) -> GpuArrays:
    """Build the columns of a view from its records."""
    columns = build_empty_arrays(list_gpus(view.gpus.values()), view.nodes)
    columns.put_loads(view, [entry for entry in view.gpus.values() if _is_loaded(entry)])
    columns.put_hosts(view)
    return columns


def build_empty_arrays(columns: ListedGpus, nodes: Mapping[str, Node]) -> GpuArrays:
    """Build the arrays of GPUs as if they held nothing.

    Args:
        columns: The GPUs.
        nodes: Theirs, and others, by id.
    """
    arrays = GpuArrays(columns, nodes)
    # Those of one kind that are shared alike are in one class; if all are, the first class is that of all.
    ways = [gpu.sharing for gpu in columns.gpus]
    alike = arrays.kind_of if len({*ways}) <= 1 else _numbered([*zip(arrays.kind_of.tolist(), ways, strict=True)])
    is_mixed = bool(alike.any())
    firsts = np.unique(alike, return_index=True)[1] if is_mixed else range(min(len(columns.gpus), 1))
    empty = [GpuView(gpu=columns.gpus[position], node_id="") for position in firsts]
    numbers = [arrays.number_of_class(load_of(entry, ())) for entry in empty]
    if is_mixed:
        arrays.class_of = np.array(numbers, dtype=np.intp)[alike]
    return arrays


def _stated_or_any(amounts: Sequence[float]) -> NDArray[np.float64]:
    """Return what nodes state of their hosts; one that states nothing has any amount."""
    stated = np.array(amounts, dtype=np.float64)
    return np.where(stated > 0, stated, inf)


def _is_loaded(entry: GpuView) -> bool:
    return bool(entry.job_ids or entry.memory_reserved_bytes or entry.is_releasing)


def _jobs_of(load: LoadClass) -> int:
    return JOBS_WHILE_RELEASING if load.is_releasing else len(load.residents)


def load_of(entry: GpuView, residents: Sequence[Resident]) -> LoadClass:
    """Return what a GPU holds as a class."""
    return LoadClass(
        gpu=entry.gpu,
        residents=tuple(residents),
        memory_used_bytes=entry.memory_reserved_bytes,
        is_releasing=entry.is_releasing,
    )


def _signature(load: LoadClass) -> object:
    """Return all that makes a policy or the plan check judge GPUs differently."""
    gpu = load.gpu
    jobs = [
        (
            one.request.key,
            one.request.share.value,
            one.request.max_slowdown_ratio,
            one.request.memory_request_bytes,
            one.request.memory_floor_bytes,
            one.is_open_to_trial,
            one.is_on_trial,
            one.micro_batch_size,
            one.memory_reserved_bytes,
        )
        for one in load.residents
    ]
    return place_of(gpu), gpu.memory_bytes, load.memory_used_bytes, load.is_releasing, tuple(sorted(jobs))


def _numbered(names: Sequence[_Name]) -> Positions:
    """Return the place of each name in the order of all; mostly they are all the same."""
    distinct = set(names)
    if len(distinct) <= 1:
        return np.zeros(len(names), dtype=np.intp)
    numbers = {name: number for number, name in enumerate(sorted(distinct))}
    return np.array([numbers[name] for name in names], dtype=np.intp)


def _slots(node_of: Positions, nodes: int) -> Positions:
    counts = np.bincount(node_of, minlength=nodes) if len(node_of) else np.zeros(nodes, dtype=np.intp)
    slots = np.full((nodes, int(counts.max(initial=0))), -1, dtype=np.intp)
    first = np.concatenate(([0], np.cumsum(counts)[:-1])) if nodes else counts
    positions = np.arange(len(node_of))
    slots[node_of, positions - first[node_of]] = positions
    return slots
