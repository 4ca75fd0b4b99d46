"""A plug-in policy that starts each job on the GPU that its one parameter names, and stops what it no longer names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Start, Stop
from scheduler_service.core.records import Assignment, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPlanned:
    """Decides nothing itself."""

    shares_gpus: ClassVar[bool] = True
    touches_running: ClassVar[bool] = True
    plan: str = field(default="{}", metadata={"description": "JSON: by job id what was ordered, its gpu_id among it"})

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return a start for what has a GPU, a hold for what has none, and stops for what has lost its own."""
        gpus = {job_id: str(order.get("gpu_id", "")) for job_id, order in json.loads(self.plan).items()}
        stopped = Reason(code="PREEMPTED")
        stops = [
            Stop(job_id=job_id, reason=stopped)
            for job_id, job in sorted(view.running.items())
            if not gpus.get(job_id) and not job.is_stopping
        ]
        return [*(_decision(job, gpus.get(job.request.job_id, "")) for job in view.pending), *stops]


def _decision(job: PendingJob, gpu_id: str) -> Decision:
    request = job.request
    if not gpu_id:
        return Hold(job_id=request.job_id, reason=Reason(code="OTHERS_GAIN_MORE", numbers={"gpus_needed": 1}))
    return Start(
        job_id=request.job_id,
        reason=Reason(code="STARTS_ALONE", numbers={"gpus_count": 1}),
        assignments=(Assignment(gpu_id=gpu_id),),
        micro_batch_size=request.global_batch_size,
    )
