"""Jobs that allow other numbers of GPUs than their own, where no trace says how fast they would be: an assumption.

n GPUs are n to a stated power times as fast as one; 0.8 gives 1.7 on two and 3.0 on four. What was measured at a number
of GPUs stays, and so does what a job needs at its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotenant_simulator.truth.kinds import Kind
from cotenant_simulator.truth.trace import Trace

SPEEDUP_POWER = 0.8
GPU_COUNT_MAX = 100_000


def with_gpu_counts(trace: Trace, counts: Sequence[int], *, speedup_power: float = SPEEDUP_POWER) -> Trace:
    """Return a trace whose jobs allow these numbers of GPUs beside their own.

    Args:
        trace: Jobs that allow several numbers already keep theirs.
        counts: Each at least 1.
        speedup_power: From 0 (more GPUs gain nothing) to 1 (n are n times as fast).
    """
    jobs = [
        job
        if len(job.request.allowed_gpus) > 1
        else replace(job, request=replace(job.request, allowed_gpus=tuple(sorted({job.request.gpus, *counts}))))
        for job in trace.jobs
    ]
    kinds = {place: _with_counts(kind, counts, speedup_power) for place, kind in trace.truth.kinds.items()}
    return replace(trace, jobs=jobs, truth=replace(trace.truth, kinds=kinds))


def _with_counts(kind: Kind, counts: Sequence[int], speedup_power: float) -> Kind:
    if len(kind.step_ms_by_gpus) > 1:
        return kind
    ((own, step_ms),) = kind.step_ms_by_gpus.items()
    assumed = {count: step_ms * (own / count) ** speedup_power for count in counts}
    fewest = min(own, *counts)
    # On fewer GPUs each has more of the batch: the part of the memory that grows with it is so many times larger there.
    fixed_bytes = kind.memory_bytes * kind.fixed_memory_ratio
    memory_bytes = fixed_bytes + (kind.memory_bytes - fixed_bytes) * own / fewest
    return replace(
        kind,
        step_ms_by_gpus=dict(sorted({**assumed, own: step_ms}.items())),
        memory_bytes=round(memory_bytes),
        fixed_memory_ratio=fixed_bytes / memory_bytes if memory_bytes else kind.fixed_memory_ratio,
    )
