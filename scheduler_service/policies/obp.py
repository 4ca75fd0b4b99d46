"""OBP, opportunistic bin packing: any GPU with enough free memory, the one with most of it first.

What it does:
    Takes jobs in the order of submission and puts each on the GPUs with most free memory, whether others are there or
    not, if the estimate of the job's memory fits. A job that does not fit lets later ones pass. Running jobs are never
    touched.

Why:
    The baseline that uses memory and nothing else; what predicting utilization and slowdown adds is measured against
    it.

Source:
    The baseline OBP of Yeung et al., "Horus: Interference-Aware and Prediction-Based Scheduling in Deep Learning
    Systems", section 5.2: memory availability, least loaded first.

Where we differ:
    The estimate is the reserved 99 % bound of the predicted memory instead of the paper's formula, and every job's
    consent is asked as under every policy (share, max_slowdown_ratio); jobs with share: any and a large
    max_slowdown_ratio get the paper's policy.

Cost:
    One look at every GPU per different shape of job, on large clusters at every kind of load; equal jobs that failed
    cost nothing, and a long queue no more than its shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policies.packing.free_memory_placement import pack_by_free_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class OpportunisticBinPacking:
    """Most free memory first; nothing can be set."""

    decides_only_waiting: ClassVar[bool] = True

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        return pack_by_free_memory(view)
