"""Why a job starts where it starts, for policies that let jobs share GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_service.core.capacity import Resident
from scheduler_service.core.colocation_slowdown import expected_slowdowns, placement_slowdown
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import Reason
from scheduler_service.core.view import SchedulingView
from scheduler_service.policies.placement import alone_reason


def full_reason(view: SchedulingView) -> Reason:
    """Return why nobody can start now."""
    if not view.gpus:
        return Reason(code="GPUS_NOT_IN_CLUSTER", numbers={"gpus_needed": 1, "gpus_in_cluster": 0})
    return Reason(code="CLUSTER_FULL", numbers={"gpus_in_cluster": len(view.gpus)})


def start_reason(
    ledger: Ledger,
    resident: Resident,
    gpu_ids: Sequence[str],
    numbers: Mapping[str, float],
    *,
    shared_code: str = "STARTS_SHARED",
) -> Reason:
    """Say with whom a job shares, with the worst slowdown over its GPUs, its own and the others', where it is known.

    Args:
        ledger: The cluster before the start.
        resident: The job.
        gpu_ids: Where it starts.
        numbers: What the policy adds, such as its cost.
        shared_code: Of a start whose slowdowns are known.
    """
    view = ledger.view
    shared = ((view.gpus[gpu_id].gpu, there) for gpu_id in gpu_ids if (there := ledger.residents(gpu_id)))
    slowdowns = (expected_slowdowns((resident, *there), gpu, view.predictions) for gpu, there in shared)
    slowdown = placement_slowdown(resident, slowdowns)
    if not slowdown.neighbour_ids:
        alone = alone_reason(view, resident.request, gpu_ids)
        return Reason(code=alone.code, numbers={**alone.numbers, **numbers}, gpu_ids=alone.gpu_ids)
    ratios = {"slowdown_ratio": slowdown.own_ratio, "neighbour_slowdown_ratio": slowdown.neighbour_ratio}
    return Reason(
        code=shared_code if slowdown.is_known else "STARTS_SHARED_BLINDLY",
        numbers={**{name: ratio for name, ratio in ratios.items() if ratio is not None}, **numbers},
        job_ids=slowdown.neighbour_ids,
        gpu_ids=tuple(gpu_ids),
    )
