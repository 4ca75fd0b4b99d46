"""Occupancy of the machines: which attempt trains on which GPU, and how fast when co-located.

Progress is counted in milliseconds of work alone on the job's GPUs. A gang goes at the pace of its slowest GPU; on a
GPU the slowdowns by every other job that trains there add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from cotenant_simulator.errors import BrokenSimulationError
from cotenant_simulator.truth.kinds import DOES_NOT_FIT, GroundTruth
from scheduler_service.core.records import Gpu

ROUNDING = 1e-6
"""Work in ms that counts as none: sums of divisions end close to whole numbers."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One launch of a job.

    Attributes:
        device: Device type of its GPUs.
        step_ms: One optimizer step alone, all passes, at this shape.
        steps_total: Of the job.
        memory_bytes: On each of its GPUs.
        utilization_ratio: Of each of its GPUs while it trains.
        work_left_ms: Alone; valid at `settled_at_ms`.
        pace: 1 alone, 1.5 where the co-located jobs slow it down by half.
        turn: Raised with every change of pace; makes older appointments void.
        is_paused: It stands still, and keeps its memory.
        reported_at_ms: Start of the window that the next report measures.
        reported_steps: Steps done then.
        checkpoint_left_ms: Work left at the newest checkpoint.
        trained_ms: Time spent training.
        alone_ms: Time that the same work needs alone.
    """

    job_id: str
    key: str
    attempt: int
    fence: int
    gpu_ids: tuple[str, ...]
    device: str
    step_ms: float
    steps_total: int
    memory_bytes: int
    utilization_ratio: float
    work_left_ms: float
    launched_at_ms: int
    memory_limit_bytes: int = 0
    settled_at_ms: int = 0
    pace: float = 1.0
    turn: int = 0
    is_training: bool = False
    is_stopping: bool = False
    is_paused: bool = False
    reported_at_ms: int = 0
    reported_steps: int = 0
    reports_left: int = 0
    checkpoint_left_ms: float = 0.0
    checkpoint_at_ms: int = 0
    trained_ms: int = 0
    alone_ms: float = 0.0

    @property
    def steps_done(self) -> int:
        """Whole optimizer steps since the job's first start."""
        return self.steps_at(self.work_left_ms)

    def steps_at(self, work_left_ms: float) -> int:
        """Return the whole steps behind the job when so much work is left."""
        return self.steps_total - ceil(max(work_left_ms - ROUNDING, 0.0) / self.step_ms)

    @property
    def end_at_ms(self) -> int:
        """When it ends at the present pace, on a whole millisecond."""
        return self.settled_at_ms + max(ceil(self.work_left_ms * self.pace - ROUNDING), 0)


@dataclass(slots=True, kw_only=True)
class GpuOccupancy:
    """GPUs with the attempts on them.

    Attributes:
        truth: Ground truth of the jobs.
        gpus: Every GPU of the cluster by id.
        checkpoint_interval_ms: Work is safe up to so long ago; 0 = only what a stop stores.
    """

    truth: GroundTruth
    gpus: Mapping[str, Gpu]
    checkpoint_interval_ms: int
    attempts: dict[str, Attempt] = field(default_factory=dict)
    dead_gpu_ids: set[str] = field(default_factory=set)
    held_gpus: int = 0
    job_gpus: int = 0
    utilization: float = 0.0
    _on_gpu: dict[str, list[Attempt]] = field(default_factory=dict)
    _shared_gpu_ids: set[str] = field(default_factory=set)

    def put(self, attempt: Attempt) -> None:
        """Give an attempt its GPUs; it does not train yet.

        Raises:
            BrokenSimulationError: It runs already, or a GPU is lost or overcommitted.
        """
        if attempt.job_id in self.attempts:
            raise BrokenSimulationError(f"{attempt.job_id} was launched while it runs")
        self.attempts[attempt.job_id] = attempt
        for gpu_id in attempt.gpu_ids:
            here = self._on_gpu.setdefault(gpu_id, [])
            here.append(attempt)
            self.held_gpus += len(here) == 1
            if len(here) > 1:
                self._shared_gpu_ids.add(gpu_id)
            if gpu_id in self.dead_gpu_ids:
                raise BrokenSimulationError(f"{attempt.job_id} was launched on {gpu_id}, which is down")
            # As on nearly all GPUs there is no other: here and below that takes a third of the time.
            reserved = attempt.memory_limit_bytes if len(here) == 1 else sum(one.memory_limit_bytes for one in here)
            if reserved > self.gpus[gpu_id].memory_bytes:
                raise BrokenSimulationError(f"{reserved} bytes are reserved on {gpu_id}, more than it has")
        self.job_gpus += len(attempt.gpu_ids)

    def remove(self, attempt: Attempt) -> None:
        """Take an attempt off its GPUs; it must not train any more."""
        del self.attempts[attempt.job_id]
        for gpu_id in attempt.gpu_ids:
            here = self._on_gpu[gpu_id]
            here.remove(attempt)
            if not here:
                self.held_gpus -= 1
                del self._on_gpu[gpu_id]
            elif len(here) == 1:
                self._shared_gpu_ids.remove(gpu_id)
        self.job_gpus -= len(attempt.gpu_ids)

    def on_gpu(self, gpu_id: str) -> tuple[Attempt, ...]:
        """Return the attempts on a GPU, in the order of their launches."""
        return tuple(self._on_gpu.get(gpu_id, ()))

    def neighbours(self, attempt: Attempt) -> list[Attempt]:
        """Return the other attempts that train on any of its GPUs, in the order of their launches."""
        if self._shared_gpu_ids.isdisjoint(attempt.gpu_ids):  # as nearly always
            return []
        found: dict[str, Attempt] = {}
        for gpu_id in attempt.gpu_ids:
            here = self._on_gpu[gpu_id]
            if len(here) > 1:
                found.update((other.job_id, other) for other in here if other.is_training and other is not attempt)
        return list(found.values())

    def memory_available_bytes(self, attempt: Attempt) -> int | None:
        """Return what the GPU that is too small has left for an attempt, or None when memory suffices everywhere."""
        for gpu_id in attempt.gpu_ids:
            here, free = self._on_gpu[gpu_id], self.gpus[gpu_id].memory_bytes
            others: list[Attempt] = []
            if len(here) > 1:
                others = [one for one in here if one is not attempt and (one.is_training or one.is_paused)]
                free -= sum(other.memory_bytes for other in others)
            if attempt.memory_bytes > free or (others and any(self._is_too_much(attempt, one) for one in others)):
                return max(free, 0)
        return None

    def _is_too_much(self, attempt: Attempt, other: Attempt) -> bool:
        """Return whether two jobs were seen not to fit on one GPU."""
        return self.truth.true_slowdown_ratio(attempt.key, other.key, attempt.device) >= DOES_NOT_FIT

    def settle(self, attempt: Attempt, now_ms: int) -> None:
        """Count the work done until now."""
        elapsed_ms = now_ms - attempt.settled_at_ms
        if attempt.is_training and elapsed_ms:
            done_ms = min(elapsed_ms / attempt.pace, attempt.work_left_ms)
            self._store_checkpoints(attempt, now_ms)
            attempt.work_left_ms -= done_ms
            attempt.trained_ms += elapsed_ms
            attempt.alone_ms += done_ms
        attempt.settled_at_ms = now_ms

    def _store_checkpoints(self, attempt: Attempt, now_ms: int) -> None:
        """Note the newest checkpoint that lies between the last settling and now."""
        interval_ms = self.checkpoint_interval_ms
        if not interval_ms:
            return
        whole = (now_ms - attempt.checkpoint_at_ms) // interval_ms
        if whole:
            attempt.checkpoint_at_ms += whole * interval_ms
            since_ms = attempt.checkpoint_at_ms - attempt.settled_at_ms
            attempt.checkpoint_left_ms = max(attempt.work_left_ms - since_ms / attempt.pace, 0.0)

    def train(self, attempt: Attempt, now_ms: int) -> None:
        """Let an attempt train from now on."""
        attempt.is_training = True
        attempt.settled_at_ms = attempt.checkpoint_at_ms = now_ms
        attempt.checkpoint_left_ms = attempt.work_left_ms
        self._change_utilization(attempt, +1.0)

    def pause(self, attempt: Attempt, now_ms: int) -> None:
        """Let an attempt train no more."""
        if attempt.is_training:
            self.settle(attempt, now_ms)
            self._change_utilization(attempt, -1.0)
            attempt.is_training = False
            attempt.turn += 1

    def resume(self, attempt: Attempt, now_ms: int) -> None:
        """Let a paused attempt train again; what it stood still counts for no checkpoint."""
        attempt.is_paused, attempt.is_training = False, True
        attempt.checkpoint_at_ms += now_ms - attempt.settled_at_ms
        attempt.settled_at_ms = now_ms
        self._change_utilization(attempt, +1.0)

    def _change_utilization(self, attempt: Attempt, sign: float) -> None:
        """Keep the sum over all GPUs of the utilization, at most 1 each."""
        for gpu_id in attempt.gpu_ids:
            here, others = self._on_gpu[gpu_id], 0.0
            if len(here) > 1:
                others = sum(one.utilization_ratio for one in here if one.is_training and one is not attempt)
            both = min(others + attempt.utilization_ratio, 1.0) - min(others, 1.0)
            self.utilization += sign * both

    def refresh_pace(self, attempt: Attempt) -> None:
        """Compute the pace among the jobs that train now; the work until now must be settled."""
        straggling = self.truth.straggling
        attempt.pace = 1.0
        if straggling or not self._shared_gpu_ids.isdisjoint(attempt.gpu_ids):  # as it rarely is
            paces = [(1.0 + self._slowdown(attempt, one)) * straggling.get(one, 1.0) for one in attempt.gpu_ids]
            attempt.pace = max(paces, default=1.0)
        attempt.turn += 1

    def _slowdown(self, attempt: Attempt, gpu_id: str) -> float:
        here = self._on_gpu[gpu_id]
        if len(here) == 1:
            return 0.0
        others = [other.key for other in here if other is not attempt and other.is_training]
        return self.truth.colocated_slowdown_ratio(attempt.key, others, attempt.device) if others else 0.0
