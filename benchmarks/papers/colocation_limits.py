"""How little GPU time a workload can take, whichever jobs share: what choosing partners can be worth at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from scipy.optimize import linprog

from benchmarks.papers.colocation_workloads import STEP_MS
from benchmarks.papers.summed_utilization import SummedUtilization
from cotenant_simulator.truth.trace import GIB, Trace

HOUR_MS = 3_600_000
Kind = tuple[float, int]
"""Utilization and bytes of memory of one job."""


def with_least_memory(trace: Trace, gib: float) -> Trace:
    """Return the same jobs, each with so much memory at least: how many fit on a GPU follows from it."""
    kinds = {
        place: replace(kind, memory_bytes=max(kind.memory_bytes, int(gib * GIB)))
        for place, kind in trace.truth.kinds.items()
    }
    return replace(trace, truth=replace(trace.truth, kinds=kinds))


def least_gpu_h(trace: Trace, settings: Mapping[str, Any], jobs_per_gpu: int) -> float:
    """Return the GPU hours that the jobs take with the best partners, in parts of any size and at any time.

    No policy takes less: the jobs need not come, wait or end, so that a linear program over all groups that fit on a
    GPU finds the best shares of time.

    Args:
        trace: Jobs of one GPU each.
        settings: Slowdown over summed utilization, and the GPUs' memory.
        jobs_per_gpu: Jobs that a GPU may hold.
    """
    law = SummedUtilization(**settings["slowdown"])
    kind_of = {key: (kind.utilization_ratio, kind.memory_bytes) for (key, _), kind in trace.truth.kinds.items()}
    work_ms: Counter[Kind] = Counter()
    for job in trace.jobs:
        work_ms[kind_of[job.request.key]] += round(job.request.steps_total * STEP_MS)
    kinds = sorted(work_ms)
    columns = []
    for colocation in _colocations(kinds, int(settings["gpu_memory_gib"] * GIB), jobs_per_gpu):
        slowdown = law.slowdown_ratio(sum(kinds[one][0] for one in colocation)) if len(colocation) > 1 else 0.0
        columns.append(np.bincount(colocation, minlength=len(kinds)) / (1.0 + slowdown))
    speeds, needed = np.array(columns).T, np.array([work_ms[kind] for kind in kinds]) / HOUR_MS
    found = linprog(np.ones(speeds.shape[1]), A_ub=-speeds, b_ub=-needed, method="highs")
    if not found.success:
        raise RuntimeError(f"the least GPU time was not found: {found.message}")
    return float(found.fun)


def _colocations(kinds: list[Kind], memory_bytes: int, jobs_per_gpu: int) -> Iterator[tuple[int, ...]]:
    """Yield which jobs may be together on a GPU, by position."""
    for size in range(1, jobs_per_gpu + 1):
        for colocation in combinations_with_replacement(range(len(kinds)), size):
            if size == 1 or sum(kinds[one][1] for one in colocation) <= memory_bytes:
                yield colocation
