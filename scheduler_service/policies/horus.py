"""Horus: interference-aware placement by predicted utilization and memory.

What it does:
    Takes pending jobs in the order of weighted fair queues and puts each on the GPUs of least cost, where the cost of a
    job on a GPU is the share of memory that would then be in use plus the slowdown expected at the summed utilization.
    GPUs may hold several jobs if all of them consent. Running jobs are never touched, unless `unshare` moves them.

Why:
    Jobs that use little of a GPU lose little by sharing it; knowing utilization and memory before a job runs, the
    queue shortens without trying placements out. Fair queues keep one kind of job from starving another.

Source:
    Yeung et al., "Horus: Interference-Aware and Prediction-Based Scheduling in Deep Learning Systems", sections
    4.2.1-4.2.3, Eq. 7-10, Algorithm 1. k = 1 is Horus, k = 3 is Horus-f.

Where we differ:
    Every job's consent is asked (share, max_slowdown_ratio), with pairwise predictions, besides the cost. The text's
    k + 1 queues are k, its endless loop considers every pending job at most once per round of decisions, and it
    ends when no GPU could take any job. The fitted functions F are not printed in the paper; the
    default curve goes through the ranges of section 3.2: 1.5 times as long at 100 %, 3 times at 200 %, linear below and
    quadratic above 100 %. Both slopes are fitted to the pairs measured on a device type
    (core/cluster_view/interference_curves.py).

Cost:
    Clustering is O(k x jobs); each different shape of job costs one look at every GPU; equal ones that failed cost
    nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from scheduler_service.core.cluster_view.capacity import is_reliable, memory_point, samples_per_gpu
from scheduler_service.core.cluster_view.remaining_time_queue import GroupedQueue
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.planning.policy_parameters import (
    TRIAL_MOVES_DESCRIPTION,
    TRIAL_PAUSES_DESCRIPTION,
    UNSHARE_DESCRIPTION,
)
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.ordering.fair_queues import fair_order, k_medians
from scheduler_service.policies.placement import length_queue
from scheduler_service.policies.placement.horus_costs import CostModel, Curve
from scheduler_service.policies.placement.horus_placement import HorusPlacement
from scheduler_service.policies.placement.sharing_round import SharingRound
from scheduler_service.policies.placement.unsharing import with_jobs_apart

DEFAULT_CURVE = Curve(linear=(0.0, 0.5), quadratic=(0.0, 0.0, 0.5))
"""Slowdown 0.5 at utilization 1 and 2.0 at 2: the upper ends of the ranges in Horus 3.2 (1-1.5x, 1.5-3x)."""


_SUBMISSION = attrgetter("submitted_at_ms", "request.job_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Horus:
    """Least cost by predicted utilization and memory, in the order of weighted fair queues."""

    queues: int = field(default=1, metadata={"description": "number of fair queues k; 3 = Horus-f"})
    buffer_jobs: int = field(default=15, metadata={"description": "jobs per round over all queues (beta)"})
    weight_memory: float = field(default=0.5, metadata={"description": "weight w1 of the memory cost (Eq. 7)"})
    weight_utilization: float = field(default=0.5, metadata={"description": "weight w2 of the utilization cost"})
    max_jobs_per_gpu: int = field(default=2, metadata={"description": "jobs that one GPU may hold"})
    memory_max_ratio: float = field(
        default=1.0, metadata={"description": "share of a GPU's memory that may be reserved"}
    )
    utilization_max_ratio: float = field(
        default=2.0, metadata={"description": "summed predicted utilization that one GPU may reach; 1 = 100 %"}
    )
    locality_gpus: int = field(
        default=8, metadata={"description": "jobs of this many GPUs or more look for one node, then one rack, first"}
    )
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(
        default_factory=dict,
        metadata={
            "description": "slowdown over summed utilization by device type: "
            '{"DEVICE": {"linear": [c0, c1], "quadratic": [c0, c1, c2]}}; others use the curve fitted to the '
            "pairs measured here, or linear [0, 0.5], quadratic [0, 0, 0.5]"
        },
    )

    trial_moves: bool = field(default=True, metadata={"description": TRIAL_MOVES_DESCRIPTION})
    trial_pauses: bool = field(default=True, metadata={"description": TRIAL_PAUSES_DESCRIPTION})
    unshare: bool = field(default=False, metadata={"description": UNSHARE_DESCRIPTION})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        for name in ("queues", "buffer_jobs", "max_jobs_per_gpu", "locality_gpus"):
            if getattr(self, name) < 1:
                raise PolicyParameterError(f"{name} must be at least 1, not {getattr(self, name)}")
        if min(self.weight_memory, self.weight_utilization) < 0:
            raise PolicyParameterError("weight_memory and weight_utilization must not be negative")
        if not 0 < self.memory_max_ratio <= 1 or self.utilization_max_ratio <= 0:
            raise PolicyParameterError("memory_max_ratio must be in (0, 1], utilization_max_ratio above 0")
        _ = self._curves()

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job, and moves of running jobs apart where that is wanted."""
        placement = HorusPlacement(view, self._costs(view))
        round_, has_room = SharingRound(view, placement), placement.closed() is None
        queue = self._kept_queue(view)
        if queue is not None:
            decisions = round_.decide_by_shape(queue)
        else:
            decisions = round_.decide_all(self._ordered(view, has_room=has_room))
        return with_jobs_apart(view, decisions) if self.unshare else decisions

    def _kept_queue(self, view: SchedulingView) -> GroupedQueue | None:
        """Return the jobs in the order of submission by shape, where the queue is long and has no other order."""
        is_long = len(view.pending) >= length_queue.QUEUE_LONG_MIN and not view.explain
        return view.index.by_service() if is_long and self.queues == 1 else None

    def _ordered(self, view: SchedulingView, *, has_room: bool) -> Iterable[PendingJob]:
        """Return the jobs in the order of the fair queues; where no job can start, order does not matter."""
        jobs = view.pending
        if not has_room:
            return jobs
        if self.queues == 1:
            return sorted(jobs, key=_SUBMISSION)
        clusters = k_medians(features_of(view, jobs), self.queues)
        return fair_order(jobs, clusters, now_ms=view.now_ms, k=self.queues, slots=self.buffer_jobs)

    def _curves(self) -> Mapping[str, Curve]:
        try:
            return {device: Curve.of(**curve) for device, curve in self.curves.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise PolicyParameterError(
                'curves must look like {"DEVICE": {"linear": [c0, c1], "quadratic": [c0, c1, c2]}}'
            ) from error

    def _costs(self, view: SchedulingView) -> CostModel:
        stated = self._curves()
        learned = {device: one for device, one in view.interference_curves.items() if device not in stated}
        fitted = {
            device: Curve(linear=(0.0, one.linear_ratio), quadratic=(0.0, 0.0, one.quadratic_ratio))
            for device, one in learned.items()
        }
        return CostModel(
            weight_memory=self.weight_memory,
            weight_utilization=self.weight_utilization,
            max_jobs_per_gpu=self.max_jobs_per_gpu,
            memory_max_ratio=self.memory_max_ratio,
            utilization_max_ratio=self.utilization_max_ratio,
            locality_gpus=self.locality_gpus,
            curves={**fitted, **stated},
            curve_pairs={device: one.pairs for device, one in learned.items()},
            default_curve=DEFAULT_CURVE,
        )


def features_of(view: SchedulingView, jobs: Sequence[PendingJob]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return (tasks, utilization, GPUs per task, memory in bytes) of every job, a row each; unknown = a whole GPU."""
    devices = sorted({entry.gpu.device for entry in view.gpus.values()})
    by_key: dict[tuple[str, int, int], tuple[float, float]] = {}
    rows = np.empty((len(jobs), 4))
    for row, job in enumerate(jobs):
        request = job.request
        shape = (request.key, request.gpus, request.global_batch_size)
        if shape not in by_key:
            by_key[shape] = _utilization_and_memory(view, request, devices)
        utilization_ratio, memory_bytes = by_key[shape]
        gpus_per_task = max(request.worker_demand.gpus, 1) if request.worker_demand is not None else 1
        rows[row] = (-(-request.gpus // gpus_per_task), utilization_ratio, gpus_per_task, memory_bytes)
    return rows


def _utilization_and_memory(view: SchedulingView, request: JobRequest, devices: Sequence[str]) -> tuple[float, float]:
    for device in devices:
        prediction = view.predictions.job(request.key, device)
        if prediction is not None and is_reliable(prediction):
            point = memory_point(prediction, samples_per_gpu(request, request.gpus))
            return prediction.utilization_ratio, float(point.memory_bytes) if point is not None else 0.0
    return 1.0, float(max((entry.gpu.memory_bytes for entry in view.gpus.values()), default=0))
