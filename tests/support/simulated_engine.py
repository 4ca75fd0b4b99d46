"""An engine in memory that keeps its own ledger, and complains where an order would break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cotenant.engines.errors import EngineRefusedError, EngineUnreachableError
from cotenant.engines.job_tag import read_tag
from cotenant.engines.placement_notes import planned_gpu
from cotenant.engines.port import order_each
from cotenant.engines.records import EngineGpu, EngineJob, EngineNode, EnginePhase, EngineState, Placement

GIB = 2**30


class SimulatedEngine:
    """Jobs and GPUs by id.

    Args:
        nodes: How many; with two GPUs each, named as a Slurm with one gres type per GPU names them.
        slots: Parts of each GPU.
    """

    def __init__(self, *, nodes: int = 1, slots: int = 4) -> None:
        self._nodes = tuple(
            EngineNode(
                node_id=f"n{number}",
                cpu_cores=16,
                host_memory_bytes=64 * GIB,
                queues=("gpu",),
                gpus=tuple(
                    EngineGpu(gpu_id=f"n{number}/g{index}", device="NVIDIA A10", memory_bytes=24 * GIB, slots=slots)
                    for index in range(2)
                ),
            )
            for number in range(1, nodes + 1)
        )
        self.jobs: dict[str, EngineJob] = {}
        self.orders: list[str] = []
        self.is_away = False
        self.fails_after: int | None = None

    def submit(self, job_id: str, comment: str, *, phase: EnginePhase = EnginePhase.HELD, gpus: int = 1) -> None:
        """Hand a job in, as a user does."""
        self.jobs[job_id] = EngineJob(
            job_id=job_id,
            phase=phase,
            tag=read_tag(comment),
            gpus=gpus,
            queues=("gpu",),
            submitted_at_ms=len(self.jobs) + 1,
        )

    def run_elsewhere(self, job_id: str, gpu_id: str, slots: int = 0) -> None:
        """Let a job run that cotenant did not place."""
        self.jobs[job_id] = EngineJob(job_id=job_id, phase=EnginePhase.RUNNING, held_slots={gpu_id: slots})

    def finish(self, job_id: str) -> None:
        """Let a job end; what waits for its GPU starts."""
        del self.jobs[job_id]
        self._start_what_fits()

    def read(self) -> EngineState:
        """See `Engine.read`."""
        if self.is_away:
            raise EngineUnreachableError("the engine is away")
        return EngineState(nodes=self._nodes, jobs=tuple(self.jobs.values()))

    def annotate(self, job_id: str, note: str) -> None:
        """See `Engine.annotate`."""
        self._order(f"annotate {job_id}")
        self.jobs[job_id] = replace(self._job(job_id), note=note)

    def place(self, placement: Placement) -> None:
        """See `Engine.place`."""
        self._order(f"place {placement.job_id} {placement.gpu_id} {placement.slots}")
        job = self._job(placement.job_id)
        if job.phase is not EnginePhase.HELD or job.held_slots:
            raise EngineRefusedError(f"job {job.job_id} has GPUs already, or is not held")
        if placement.gpu_id not in EngineState(nodes=self._nodes).gpus:
            raise EngineRefusedError(f"there is no {placement.gpu_id}")
        held = {placement.gpu_id: placement.slots}
        self.jobs[job.job_id] = replace(job, phase=EnginePhase.INTERRUPTED, held_slots=held, note=placement.note)

    def release(self, job_id: str) -> None:
        """See `Engine.release`."""
        self._order(f"release {job_id}")
        job = self._job(job_id)
        if job.phase is EnginePhase.INTERRUPTED:
            self.jobs[job_id] = replace(job, phase=EnginePhase.PLACED)
        self._start_what_fits()

    def release_all(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """See `Engine.release_all`."""
        return order_each(self.release, job_ids)

    def hold(self, job_id: str) -> None:
        """See `Engine.hold`."""
        self._order(f"hold {job_id}")
        job = self._job(job_id)
        if job.phase is EnginePhase.RUNNING:
            raise EngineRefusedError(f"job {job_id} runs")
        self.jobs[job_id] = replace(job, phase=EnginePhase.INTERRUPTED if job.held_slots else EnginePhase.HELD)

    def stop(self, job_id: str, *, grace_s: int) -> None:
        """See `Engine.stop`."""
        self._order(f"stop {job_id} {grace_s}")
        self._job(job_id)
        self.finish(job_id)

    def requeue(self, job_id: str, *, grace_s: int) -> None:
        """See `Engine.requeue`."""
        self._order(f"requeue {job_id} {grace_s}")
        job = self._job(job_id)
        self.finish(job_id)
        self.jobs[job_id] = replace(job, phase=EnginePhase.HELD, held_slots={}, note="", started_at_ms=0)

    def faults(self) -> list[str]:
        """Return what is given twice, or runs elsewhere than its note says."""
        used: Counter[str] = Counter()
        for job in self.jobs.values():
            for gpu_id, slots in job.held_slots.items() if job.phase is EnginePhase.RUNNING else ():
                used[gpu_id] += slots or self._whole(gpu_id)
        over = [f"{gpu_id} is given {count} times" for gpu_id, count in used.items() if count > self._whole(gpu_id)]
        elsewhere = [
            f"{job.job_id} runs on {[*job.held_slots]}, planned {planned_gpu(job.note)}"
            for job in self.jobs.values()
            if planned_gpu(job.note) and [*job.held_slots] != [planned_gpu(job.note)]
        ]
        return over + elsewhere

    def _order(self, order: str) -> None:
        if self.fails_after is not None:
            if self.fails_after <= 0:
                raise KeyboardInterrupt
            self.fails_after -= 1
        self.orders.append(order)

    def _job(self, job_id: str) -> EngineJob:
        if job_id not in self.jobs:
            raise EngineRefusedError(f"there is no job {job_id}")
        return self.jobs[job_id]

    def _whole(self, gpu_id: str) -> int:
        return max(EngineState(nodes=self._nodes).gpus[gpu_id].slots, 1)

    def _start_what_fits(self) -> None:
        for job_id, job in self.jobs.items():
            if job.phase is EnginePhase.PLACED:
                self.jobs[job_id] = replace(job, phase=EnginePhase.RUNNING, started_at_ms=1)
                if self.faults():
                    self.jobs[job_id] = job
