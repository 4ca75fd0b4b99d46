"""Why a job starts where it starts, for policies that let jobs share GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_service.core.capacity import Resident, expected_slowdown_ratio
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import Reason
from scheduler_service.core.view import SchedulingView
from scheduler_service.policies.placement import alone_reason


def full_reason(view: SchedulingView) -> Reason:
    """Return why nobody can start now."""
    if not view.gpus:
        return Reason(code="GPUS_NOT_IN_CLUSTER", numbers={"gpus_needed": 1, "gpus_in_cluster": 0})
    return Reason(code="CLUSTER_FULL", numbers={"gpus_in_cluster": len(view.gpus)})


def start_reason(ledger: Ledger, resident: Resident, gpu_ids: Sequence[str], numbers: Mapping[str, float]) -> Reason:
    """Say beside whom a job starts, with the worst slowdown over its GPUs, its own and the others', where it is known.

    Args:
        ledger: The cluster before the start.
        resident: The job.
        gpu_ids: Where it starts.
        numbers: What the policy adds, such as its cost.
    """
    view = ledger.view
    own, others, is_known = 0.0, 0.0, True
    neighbours: dict[str, None] = {}
    for gpu_id in gpu_ids:
        everyone = (resident, *ledger.residents(gpu_id))
        for victim in everyone:
            rest = [other for other in everyone if other is not victim]
            slowdown, doubt = expected_slowdown_ratio(victim, rest, view.gpus[gpu_id].gpu, view.predictions)
            is_known &= doubt is None or doubt.code != "PAIR_UNKNOWN"
            own, others = (max(own, slowdown), others) if victim is resident else (own, max(others, slowdown))
        neighbours.update(dict.fromkeys(other.request.job_id for other in everyone[1:]))
    if not neighbours:
        alone = alone_reason(view, resident.request, gpu_ids)
        return Reason(code=alone.code, numbers={**alone.numbers, **numbers}, gpu_ids=alone.gpu_ids)
    expected = {"slowdown_ratio": own, "neighbour_slowdown_ratio": others} if is_known else {}
    return Reason(
        code="STARTS_SHARED" if is_known else "STARTS_SHARED_BLINDLY",
        numbers={**expected, **numbers},
        job_ids=tuple(neighbours),
        gpu_ids=tuple(gpu_ids),
    )
