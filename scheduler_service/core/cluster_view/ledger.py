"""What is left of a cluster while decisions are being taken: the view plus what this round has already given away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.replica_groups import host_share
from scheduler_service.core.cluster_view.view import GpuView, HostUse, RunningJob, SchedulingView
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge, claimed_bytes
from scheduler_service.core.records import Assignment, JobRequest, Node


class Ledger:
    """Running tally of one round.

    Args:
        view: The instant that the round started from; it is not changed.
    """

    def __init__(self, view: SchedulingView) -> None:
        self.view = view
        # Residents are asked for often, and nothing about them changes with time.
        self._running = view.index.reported
        self._free_before = view.index.free_gpu_ids
        self._residents: dict[str, Resident] = {}
        self._placed: dict[str, list[Resident]] = {}
        self._host_placed: dict[str, HostUse] = {}
        self._taken_free: dict[str, None] = {}
        self._grown_bytes: dict[str, int] = {}

    def residents(self, gpu_id: str) -> tuple[Resident, ...]:
        """Return the jobs on a GPU, those of this round last."""
        before = [self._residents.get(job_id) or self._resident(job_id) for job_id in self.view.gpus[gpu_id].job_ids]
        return (*before, *self._placed.get(gpu_id, ()))

    def _resident(self, job_id: str) -> Resident:
        job = self._running[job_id]
        self._residents[job_id] = resident = Resident(
            request=job.request,
            micro_batch_size=job.micro_batch_size,
            memory_reserved_bytes=job.memory_reserved_bytes,
            is_gang=len(job.assignments) > 1,
            is_on_trial=job.is_on_trial,
            memory_surge=job.memory_surge,
        )
        return resident

    def job_count(self, gpu_id: str) -> int:
        """Return how many jobs a GPU holds."""
        return len(self.view.gpus[gpu_id].job_ids) + len(self._placed.get(gpu_id, ()))

    def is_free(self, gpu_id: str) -> bool:
        """The GPU holds nothing and releases nothing."""
        return gpu_id in self._free_before and gpu_id not in self._taken_free

    def free_count(self) -> int:
        """Return the number of free GPUs."""
        return len(self._free_before) - len(self._taken_free)

    def taken_gpu_ids(self) -> Collection[str]:
        """Return the GPUs that were free and that this round has given away; more come as it goes on."""
        return self._taken_free.keys()

    def memory_used_bytes(self, gpu_id: str) -> int:
        """Return what is reserved on a GPU."""
        entry, placed = self.view.gpus[gpu_id], self._placed.get(gpu_id, ())
        return self._claimed_bytes(entry, placed) + self._grown_bytes.get(gpu_id, 0)

    def _claimed_bytes(self, entry: GpuView, more: Sequence[Resident]) -> int:
        if not more:
            return entry.memory_reserved_bytes
        before = entry.memory_reserved_bytes, _surge_in(entry)
        return claimed_bytes((before, *((one.memory_reserved_bytes, one.memory_surge) for one in more)))

    def memory_needed_bytes(self, resident: Resident, entry: GpuView) -> int:
        """Return what of a GPU's free memory a job would take: a surge only so far as it is the largest one there."""
        if resident.memory_surge is None:
            return resident.memory_reserved_bytes
        placed = self._placed.get(entry.gpu.gpu_id, ())
        return self._claimed_bytes(entry, (*placed, resident)) - self._claimed_bytes(entry, placed)

    def memory_free_bytes(self, view: GpuView) -> int:
        """Return what is left of a GPU's memory."""
        return view.gpu.memory_bytes - self.memory_used_bytes(view.gpu.gpu_id)

    def host_fits(
        self, node: Node, request: JobRequest, *, gpus_here: int, gpus: int, freed: HostUse | None = None
    ) -> bool:
        """Say whether a node's host has room for `gpus_here` of a job's `gpus`; a node that states nothing has room.

        Args:
            node: The node.
            request: The job.
            gpus_here: GPUs of the job on this node.
            gpus: All its GPUs.
            freed: What jobs that will have left by then still occupy.
        """
        if not request.cpu_cores and not request.host_memory_bytes:
            return True
        freed = freed or HostUse()
        used = self._host_used(node.node_id)
        need = host_share(request, gpus_here, gpus)
        cpu_fits = node.cpu_cores <= 0 or used.cpu_cores - freed.cpu_cores + need.cpu_cores <= node.cpu_cores + 1e-9
        memory_left = node.host_memory_bytes - used.host_memory_bytes + freed.host_memory_bytes
        return cpu_fits and (node.host_memory_bytes <= 0 or need.host_memory_bytes <= memory_left)

    def _host_used(self, node_id: str) -> HostUse:
        before, placed = self.view.host_use.get(node_id), self._host_placed.get(node_id)
        if before is None or placed is None:
            return before or placed or HostUse()
        return HostUse(
            cpu_cores=before.cpu_cores + placed.cpu_cores,
            host_memory_bytes=before.host_memory_bytes + placed.host_memory_bytes,
        )

    def place(self, resident: Resident, assignments: Sequence[Assignment]) -> None:
        """Give these GPUs to a job."""
        for assignment in assignments:
            self._take(resident, assignment.gpu_id)
        if not resident.request.cpu_cores and not resident.request.host_memory_bytes:
            return
        for node_id in self._node_ids(assignments):
            self._occupy_host(node_id, self.host_part(resident.request, assignments, node_id))

    def move(self, job: RunningJob, resident: Resident, assignments: Sequence[Assignment]) -> None:
        """Keep these GPUs for a running job, which holds its present ones until it has stopped.

        Args:
            job: The job where it is.
            resident: The job as it will be.
            assignments: Where it will be.
        """
        held = {part.gpu_id for part in job.assignments}
        for assignment in assignments:
            if assignment.gpu_id in held:
                more_bytes = max(resident.memory_reserved_bytes - job.memory_reserved_bytes, 0)
                self._grown_bytes[assignment.gpu_id] = self._grown_bytes.get(assignment.gpu_id, 0) + more_bytes
            else:
                self._take(resident, assignment.gpu_id)
        for node_id in self._node_ids(assignments):
            now = self.host_part(job.request, job.assignments, node_id)
            then = self.host_part(resident.request, assignments, node_id)
            more = HostUse(
                cpu_cores=max(then.cpu_cores - now.cpu_cores, 0.0),
                host_memory_bytes=max(then.host_memory_bytes - now.host_memory_bytes, 0),
            )
            self._occupy_host(node_id, more)

    def host_part(self, request: JobRequest, assignments: Sequence[Assignment], node_id: str) -> HostUse:
        """Return what the part of a job on one node occupies of its host; GPUs out of view count nowhere."""
        entries = (self.view.gpus.get(part.gpu_id) for part in assignments)
        gpus_here = sum(entry is not None and entry.node_id == node_id for entry in entries)
        return host_share(request, gpus_here, len(assignments))

    def _take(self, resident: Resident, gpu_id: str) -> None:
        if gpu_id in self._free_before:
            self._taken_free[gpu_id] = None
        self._placed.setdefault(gpu_id, []).append(resident)

    def _node_ids(self, assignments: Sequence[Assignment]) -> Iterable[str]:
        return dict.fromkeys(self.view.gpus[part.gpu_id].node_id for part in assignments)

    def _occupy_host(self, node_id: str, share: HostUse) -> None:
        placed = self._host_placed.get(node_id, HostUse())
        self._host_placed[node_id] = HostUse(
            cpu_cores=placed.cpu_cores + share.cpu_cores,
            host_memory_bytes=placed.host_memory_bytes + share.host_memory_bytes,
        )


def _surge_in(entry: GpuView) -> MemorySurge | None:
    """Return the largest surge on a GPU as it was, which is a part of what is reserved there."""
    largest_bytes = entry.memory_surge_bytes
    return MemorySurge(surge_bytes=largest_bytes, high_state_ratio=0.0) if largest_bytes else None
