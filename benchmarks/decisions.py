"""What one decision costs on large clusters: `python -m benchmarks.decisions [NAME ...] [--without-arrays]`, as JSON.

CPU seconds, best of five, at the size of each bar and at two, four and eight times that size. The index of a view,
which the engine keeps up to date from event to event, is made before: building it is not part of a decision.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.extraction import best_cpu_s
from benchmarks.large_clusters import LargeCluster
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.policies.packing import ojpp_packing
from scheduler_service.policies.pairing import sjf_sharing
from scheduler_service.policy_registry import make_policy

FACTORS = (1, 2, 4, 8)
WITHOUT_ARRAYS = "--without-arrays"
SLOWEST_S = 5.0
"""A size that takes longer than this is the last one of its curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One figure that we promise.

    Attributes:
        grows: The fields of the cluster that the factors multiply.
        limit_s: At factor 1.
    """

    name: str
    policy: str
    cluster: LargeCluster
    grows: tuple[str, ...]
    limit_s: float


BARS: Sequence[Bar] = (
    Bar(
        name="horus_f_10000_pending_on_1000x8",
        policy="horus_f",
        cluster=LargeCluster(nodes=1_000, pending=10_000),
        grows=("nodes", "pending"),
        limit_s=1.0,
    ),
    Bar(
        name="horus_one_arriving_on_16000x8",
        policy="horus",
        cluster=LargeCluster(nodes=16_000, pending=1),
        grows=("nodes",),
        limit_s=0.005,
    ),
    Bar(
        name="ojpp_1000_jobs_of_1_to_10_workers",
        policy="ojpp",
        cluster=LargeCluster(
            nodes=750, pending=1_000, gangs=tuple(range(1, 11)), running_ratio=0.0, nodes_per_job_max=0
        ),
        grows=("nodes", "pending"),
        limit_s=1.0,
    ),
    Bar(
        name="sjf_bsbf_one_gang_on_16_gpus",
        policy="sjf_bsbf",
        cluster=LargeCluster(nodes=2, pending=1, gangs=(4,), running_ratio=1.0),
        grows=("nodes",),
        limit_s=0.001,
    ),
    Bar(
        name="sjf_bsbf_one_gang_on_10000_gpus",
        policy="sjf_bsbf",
        cluster=LargeCluster(nodes=1_250, pending=1, gangs=(4,), running_ratio=1.0),
        grows=("nodes",),
        limit_s=0.020,
    ),
)


def main(names: Sequence[str] = (), *, without_arrays: bool = False) -> dict[str, object]:
    """Measure the named bars, or all; without arrays each GPU is looked at, which is what arrays are worth."""
    if without_arrays:
        sjf_sharing.GPUS_IN_ARRAYS_MIN = ojpp_packing.GPUS_IN_ARRAYS_MIN = sys.maxsize
    return {bar.name: measure(bar) for bar in BARS if not names or bar.name in names}


def measure(bar: Bar) -> dict[str, object]:
    """Measure one bar and its curve, and fit the exponent of growth."""
    curve: dict[int, float] = {}
    for factor in FACTORS:
        grown = {name: getattr(bar.cluster, name) * factor for name in bar.grows}
        view, policy = _prepared(replace(bar.cluster, **grown)), make_policy(bar.policy, {})
        curve[factor] = best_cpu_s(partial(_decide, policy, view))
        sys.stderr.write(f"{bar.name} x{factor}: {curve[factor]:.4f} s\n")
        if curve[factor] > SLOWEST_S:
            break
    return {
        "policy": bar.policy,
        "cpu_s": {f"x{factor}": round(cpu_s, 5) for factor, cpu_s in curve.items()},
        "growth_exponent": fitted_exponent(curve),
        "limit_s": bar.limit_s,
        "met": curve[1] <= bar.limit_s,
    }


def fitted_exponent(curve: dict[int, float]) -> float | None:
    """Return e of cost ~ size ** e by least squares on the logarithms; None = too few sizes."""
    if len(curve) < 2:
        return None
    points = [(math.log(factor), math.log(cpu_s)) for factor, cpu_s in curve.items()]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope: float = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return round(slope, 2)


def _decide(policy: Policy, view: SchedulingView) -> None:
    view.index.turn_memo.clear()  # as the engine does before every decision
    policy.decide(view)


def _prepared(cluster: LargeCluster) -> SchedulingView:
    view = cluster.view()
    for part in ("free_places", "free_gpu_ids", "single_job_gpu_ids", "inventory", "arrays", "remaining_times"):
        getattr(view.index, part)
    return view


if __name__ == "__main__":
    named = [name for name in sys.argv[1:] if name != WITHOUT_ARRAYS]
    print(json.dumps(main(named, without_arrays=len(named) < len(sys.argv[1:])), indent=2))
