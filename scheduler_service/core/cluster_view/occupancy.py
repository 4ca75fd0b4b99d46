"""What every GPU and host holds, and which of them are usable, free, or hold one job."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from types import MappingProxyType

from scheduler_service.core.cluster_view.inventory import Inventory, count_gpus
from scheduler_service.core.cluster_view.open_gpus import FreePlaces, OpenGpus
from scheduler_service.core.cluster_view.replica_groups import host_share
from scheduler_service.core.cluster_view.view import GpuView, HostUse
from scheduler_service.core.jobs.job_records import AbandonedAttempt, JobRecord
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge, claimed_bytes, largest_surge_bytes
from scheduler_service.core.records import Assignment, Node

_NOTHING = HostUse()
_INDEX_AND_ID = attrgetter("index", "gpu_id")
LEFT_JOBS_MAX = 1_000
"""With more jobs that run no more since `touched_job_ids` was read, it names none of them any more."""


class Occupancy:
    """Nodes and GPUs with what is on them; kept up to date by the state that owns it.

    Args:
        jobs: Every job by id, as the owner keeps them.

    Attributes:
        nodes: Every node ever joined, by id; `connected` says whether it is there.
        gpus: Every GPU of every node with what it holds, by id.
        usable_nodes: Connected and schedulable nodes that are not cordoned.
        usable_gpus: Healthy GPUs of usable nodes, in node and index order.
        free_gpu_ids: Usable GPUs that hold nothing and release nothing.
        single_job_gpu_ids: Usable GPUs that hold exactly one job and release nothing.
        free_places: The free GPUs by kind and node.
        host_use: What jobs occupy of each node's host, by node id.
        abandoned_attempts: Attempts given up whose end was not confirmed, by (job, attempt, fence, node).
        slowdown_ewma_ratios: Moving average of the slowdowns measured on each GPU, by its id; absent = 0.
        layout: Counts the changes of nodes.
        touched_gpu_ids: GPUs that events have touched; their reader empties it.
        touched_job_ids: Jobs that events have touched while they ran, or that run no more; their reader empties it.
    """

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        self._jobs = jobs
        self._nodes: dict[str, Node] = {}
        self.nodes: Mapping[str, Node] = MappingProxyType(self._nodes)
        self._gpus: dict[str, GpuView] = {}
        self.gpus: Mapping[str, GpuView] = MappingProxyType(self._gpus)
        self._usable_nodes: dict[str, Node] = {}
        self.usable_nodes: Mapping[str, Node] = MappingProxyType(self._usable_nodes)
        self._usable_gpus: dict[str, GpuView] = {}
        self.usable_gpus: Mapping[str, GpuView] = MappingProxyType(self._usable_gpus)
        self._host_use: dict[str, HostUse] = {}
        self.host_use: Mapping[str, HostUse] = MappingProxyType(self._host_use)
        self._abandoned_attempts: dict[tuple[str, int, int, str], AbandonedAttempt] = {}
        self.abandoned_attempts: Mapping[tuple[str, int, int, str], AbandonedAttempt] = MappingProxyType(
            self._abandoned_attempts
        )
        self._abandoned_of_jobs: dict[str, int] = {}
        self._slowdown_ewma_ratios: dict[str, float] = {}
        self.slowdown_ewma_ratios: Mapping[str, float] = MappingProxyType(self._slowdown_ewma_ratios)
        self._inventory: Inventory | None = None
        self._open = OpenGpus()
        self.free_gpu_ids, self.single_job_gpu_ids = self._open.free_ids, self._open.single_job_ids
        self.free_places: FreePlaces = self._open.free_places
        self._holders: dict[str, list[str]] = {}
        self._neighbours: dict[str, tuple[Sequence[Assignment], tuple[str, ...]]] = {}
        self._kept_gpu_ids = frozenset[str]()
        self.layout = 0
        self.touched_gpu_ids: set[str] = set()
        self.touched_job_ids: set[str] = set()

    @property
    def inventory(self) -> Inventory:
        """What the usable nodes have."""
        if self._inventory is None:
            self._inventory = count_gpus(self._usable_gpus.values())
        return self._inventory

    def jobs_on_gpu(self, gpu_id: str) -> tuple[str, ...]:
        """Return the jobs that hold a GPU or will move there, in the order of their present attempts."""
        return tuple(self._holders.get(gpu_id, ()))

    def jobs_on_node(self, node_id: str) -> tuple[str, ...]:
        """Return the jobs that hold any GPU of a node or will move to one."""
        gpus = self._nodes[node_id].gpus if node_id in self._nodes else ()
        return tuple(dict.fromkeys(job_id for gpu in gpus for job_id in self._holders.get(gpu.gpu_id, ())))

    def neighbours(self, job: JobRecord) -> tuple[str, ...]:
        """Return the other jobs on any GPU of a job."""
        known = self._neighbours.get(job.request.job_id)
        if known is None or known[0] is not job.assignments:
            known = job.assignments, self._find_neighbours(job)
            if job.assignments and job.request.job_id in self._holders.get(job.assignments[0].gpu_id, ()):
                self._neighbours[job.request.job_id] = known
        return known[1]

    def _find_neighbours(self, job: JobRecord) -> tuple[str, ...]:
        job_id, found = job.request.job_id, dict[str, None]()
        for part in job.assignments:
            here = self._holders.get(part.gpu_id, ())
            if len(here) > 1 or job_id not in here:
                found.update(dict.fromkeys(here))
        found.pop(job_id, None)
        return tuple(found)

    def update(self, job: JobRecord, before: JobRecord | None) -> None:
        """Bring what a job holds up to date."""
        held_before = before.occupied_bytes if before is not None else {}
        held_now = job.occupied_bytes
        if not held_before and not held_now:
            return
        if before is not None and held_before.keys() == held_now.keys() and before.fence == job.fence:
            touched = held_now  # a job that is told to stop, or of which more or less is kept: who is where stays
        else:
            touched = self._move(job, held_before, held_now)
        nodes = self._refresh_gpus(touched)
        if job.request.cpu_cores or job.request.host_memory_bytes:
            self._refresh_hosts(nodes)

    def _move(self, job: JobRecord, held_before: dict[str, int], held_now: dict[str, int]) -> dict[str, int]:
        """Note where a job is now; return the GPUs that it held or holds."""
        job_id, holders = job.request.job_id, self._holders
        touched = held_before | held_now
        for gpu_id in held_before:
            holders[gpu_id].remove(job_id)
        for gpu_id in held_now:
            here = holders.setdefault(gpu_id, [])
            if here:
                insort(here, job_id, key=lambda other_id: self._jobs[other_id].fence)
            else:
                here.append(job_id)
        self._neighbours.pop(job_id, None)
        for gpu_id in touched:
            here = holders[gpu_id]
            if len(here) > 1 or here != [job_id]:
                for neighbour_id in here:
                    self._neighbours.pop(neighbour_id, None)
        return touched

    @property
    def kept_gpu_ids(self) -> AbstractSet[str]:
        """GPUs that are kept back: they look as if they released something."""
        return self._kept_gpu_ids

    def keep_back(self, gpu_ids: Iterable[str]) -> None:
        """Keep these GPUs back from now on, and no others."""
        before, self._kept_gpu_ids = self._kept_gpu_ids, frozenset(gpu_ids)
        changed = before ^ self._kept_gpu_ids
        if changed:
            self._refresh_gpus(sorted(changed))

    def put_abandoned(self, abandoned: AbandonedAttempt) -> None:
        """Remember an unwanted attempt that must still end."""
        key = abandoned.job_id, abandoned.attempt, abandoned.fence, abandoned.node_id
        is_new = key not in self._abandoned_attempts
        self._abandoned_of_jobs[abandoned.job_id] = self.abandoned_of(abandoned.job_id) + is_new
        self._abandoned_attempts[key] = abandoned
        self._refresh_gpus(abandoned.gpu_ids)

    def drop_abandoned(self, job_id: str, attempt: int, fence: int, node_id: str) -> bool:
        """Forget a ghost whose end was confirmed; False when there was none. An older log names no node."""
        if not self._abandoned_attempts:
            return False
        named = [(job_id, attempt, fence, node_id)] if node_id else self._keys_of(job_id, attempt, fence)
        found = [one for one in map(self._abandoned_attempts.pop, named, [None] * len(named)) if one is not None]
        for abandoned in found:
            self._refresh_gpus(abandoned.gpu_ids)
        left = self.abandoned_of(job_id) - len(found)
        if left:
            self._abandoned_of_jobs[job_id] = left
        else:
            self._abandoned_of_jobs.pop(job_id, None)
        return bool(found)

    def abandoned_of(self, job_id: str) -> int:
        """Return how many attempts of a job were given up and have not ended."""
        return self._abandoned_of_jobs.get(job_id, 0)

    def _keys_of(self, job_id: str, attempt: int, fence: int) -> list[tuple[str, int, int, str]]:
        return [key for key in self._abandoned_attempts if key[:3] == (job_id, attempt, fence)]

    def touch_left(self, job_id: str, running: AbstractSet[str]) -> None:
        """Note that a job does not run, for readers that keep something of it; bounded, as none may come for long."""
        self.touched_job_ids.add(job_id)
        if len(self.touched_job_ids) > LEFT_JOBS_MAX + len(running):
            self.touched_job_ids.intersection_update(running)

    def put_node(self, node: Node) -> None:
        """Store a node with its GPUs."""
        before = self._nodes.get(node.node_id)
        self._nodes[node.node_id] = node
        kept = {gpu.gpu_id for gpu in node.gpus}
        for gpu in before.gpus if before is not None else ():
            if gpu.gpu_id not in kept:
                del self._gpus[gpu.gpu_id]
                self._slowdown_ewma_ratios.pop(gpu.gpu_id, None)
        for gpu in node.gpus:
            self._gpus[gpu.gpu_id] = GpuView(gpu=gpu, node_id=node.node_id)
        if before is None and node.node_id > next(reversed(self._usable_nodes), ""):
            self._append_usable(node)
        else:
            self._rebuild_usable()
        self._refresh_hosts(self._refresh_gpus(kept))

    def drop_node(self, node_id: str) -> None:
        """Forget a node with its GPUs."""
        for gpu in self._nodes.pop(node_id).gpus:
            del self._gpus[gpu.gpu_id]
            self._slowdown_ewma_ratios.pop(gpu.gpu_id, None)
            self.touched_gpu_ids.add(gpu.gpu_id)
        self._host_use.pop(node_id, None)
        self._rebuild_usable()

    def put_slowdown_ewma(self, gpu_id: str, ratio: float) -> None:
        """Store the moving average of the slowdowns seen on a GPU."""
        self._slowdown_ewma_ratios[gpu_id] = ratio

    def _rebuild_usable(self) -> None:
        """Keep the order by node and index; nodes change rarely."""
        nodes = sorted(self._nodes.values(), key=lambda node: node.node_id)
        self._usable_nodes.clear()
        self._usable_gpus.clear()
        for node in nodes:
            self._append_usable(node)
        self._open.rebuild(self._usable_gpus.values())

    def _append_usable(self, node: Node) -> None:
        """Note a node that comes after all others that are noted; nodes that join one by one in order cost no more."""
        self.layout += 1
        self._inventory = None
        if _is_usable(node):
            self._usable_nodes[node.node_id] = node
            in_order = sorted(node.gpus, key=_INDEX_AND_ID)
            self._usable_gpus.update((gpu.gpu_id, self._gpus[gpu.gpu_id]) for gpu in in_order if gpu.healthy)

    def _refresh_gpus(self, gpu_ids: Collection[str]) -> Collection[str]:
        """Bring what GPUs hold up to date; return their nodes."""
        kept_back, given_up = self._kept_gpu_ids, self._abandoned_attempts
        if given_up:
            kept_back = kept_back.union(*[one.gpu_ids for one in given_up.values()])
        touched_nodes: dict[str, None] = {}
        gpus, usable_gpus = self._gpus, self._usable_gpus
        self.touched_gpu_ids.update(gpu_ids)
        for gpu_id in gpu_ids:
            view = gpus.get(gpu_id)
            if view is None:
                continue
            gpus[gpu_id] = view = self._occupied(view, gpu_id, is_kept_back=gpu_id in kept_back)
            touched_nodes[view.node_id] = None
            if gpu_id in usable_gpus:
                usable_gpus[gpu_id] = view
                self._open.put(view)
                self.touched_job_ids.update(view.job_ids)
        return touched_nodes

    def _refresh_hosts(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            jobs = (self._jobs[job_id] for job_id in self.jobs_on_node(node_id))
            self._host_use[node_id] = host_use_of(jobs, self._nodes[node_id])

    def _occupied(self, view: GpuView, gpu_id: str, *, is_kept_back: bool) -> GpuView:
        job_ids = self._holders.get(gpu_id)
        if not job_ids:
            return GpuView(gpu=view.gpu, node_id=view.node_id, is_releasing=is_kept_back)
        if len(job_ids) == 1:  # as on nearly all GPUs, in a third of the time
            job = self._jobs[job_ids[0]]
            surge, held_bytes = job.shape.memory_surge, job.shape.memory_reserved_bytes
            if job.moves.target is not None:
                surge, held_bytes = _surge_on(job, gpu_id), job.bytes_on(gpu_id)
            return GpuView(
                gpu=view.gpu,
                node_id=view.node_id,
                job_ids=(job_ids[0],),
                memory_reserved_bytes=held_bytes if surge is None else claimed_bytes([(held_bytes, surge)]),
                is_releasing=is_kept_back or job.closes_gpus,
                memory_surge_bytes=surge.surge_bytes if surge is not None else 0,
            )
        jobs = [self._jobs[job_id] for job_id in job_ids]
        kept = [(job.bytes_on(gpu_id), _surge_on(job, gpu_id)) for job in jobs]
        return GpuView(
            gpu=view.gpu,
            node_id=view.node_id,
            job_ids=tuple(job_ids),
            memory_reserved_bytes=claimed_bytes(kept),
            is_releasing=is_kept_back or any(job.closes_gpus for job in jobs),
            memory_surge_bytes=largest_surge_bytes(surge for _, surge in kept),
        )


def _surge_on(job: JobRecord, gpu_id: str) -> MemorySurge | None:
    """Return what of its memory on one GPU a job needs now and then, there or where it moves to."""
    target = job.moves.target
    return (job.shape if target is None or gpu_id in job.gpu_ids else target.shape).memory_surge


def _is_usable(node: Node) -> bool:
    return node.connected and node.schedulable and not node.is_cordoned


def host_use_of(jobs: Iterable[JobRecord], node: Node) -> HostUse:
    """Return what these jobs occupy of a node; one that moves keeps the larger of its two parts."""
    asking = [job for job in jobs if job.request.cpu_cores or job.request.host_memory_bytes]
    if not asking:
        return _NOTHING
    gpu_ids = {gpu.gpu_id for gpu in node.gpus}
    cpu_cores, host_memory_bytes = 0.0, 0
    for job in asking:
        parts = [_share_on(gpu_ids, job, job.assignments)]
        if job.moves.target is not None:
            parts.append(_share_on(gpu_ids, job, job.moves.target.assignments))
        cpu_cores += max(part.cpu_cores for part in parts)
        host_memory_bytes += max(part.host_memory_bytes for part in parts)
    return HostUse(cpu_cores=cpu_cores, host_memory_bytes=host_memory_bytes)


def _share_on(gpu_ids: Collection[str], job: JobRecord, assignments: Sequence[Assignment]) -> HostUse:
    return host_share(job.request, sum(part.gpu_id in gpu_ids for part in assignments), len(assignments))
