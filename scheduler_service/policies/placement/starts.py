"""What a start reports and leaves behind, the same wherever a policy found the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.decisions import Candidate, Start
from scheduler_service.core.records import Reason
from scheduler_service.core.sharing.colocation_slowdown import (
    ALONE,
    PlacementSlowdown,
    expected_slowdowns,
    placement_slowdown,
    ways_of_sharing,
)
from scheduler_service.policies.placement.free_gpus import ranked
from scheduler_service.policies.placement.reasons import alone_reason


def start_on(
    ledger: Ledger,
    resident: Resident,
    gpu_ids: Sequence[str],
    *,
    numbers: Mapping[str, float] | None = None,
    shared_code: str = "STARTS_SHARED",
    accumulation_steps: int = 1,
    candidates: tuple[Candidate, ...] = (),
) -> Start:
    """Return the start of a job on these GPUs, which are its own from now on.

    Args:
        ledger: The cluster before the start; what the job takes is gone afterwards.
        resident: The job.
        gpu_ids: Where it starts, by rank.
        numbers: What the policy adds to the reason, such as its cost.
        shared_code: Of a start on shared GPUs with known slowdowns.
        accumulation_steps: Passes of one optimizer step.
        candidates: How every GPU looked.
    """
    view = ledger.view
    shared = [
        expected_slowdowns((resident, *there), view.gpus[gpu_id].gpu, view.predictions)
        for gpu_id in gpu_ids
        if not ledger.is_free(gpu_id) and (there := ledger.residents(gpu_id))
    ]
    slowdown = placement_slowdown(resident, shared) if shared else ALONE
    if slowdown.neighbour_ids:
        ways = ways_of_sharing((view.gpus[gpu_id].gpu for gpu_id in gpu_ids), view.predictions)
        reason = _shared_reason(slowdown, gpu_ids, {**(numbers or {}), **ways}, shared_code)
    else:
        reason = alone_reason(view, resident.request, gpu_ids, numbers or {})
        if accumulation_steps > 1 and reason.code == "STARTS_ALONE":
            passes = {"micro_batch_size": resident.micro_batch_size, "accumulation_steps": accumulation_steps}
            reason = replace(reason, code="STARTS_ALONE_IN_PASSES", numbers={**reason.numbers, **passes})
    assignments = ranked(gpu_ids)
    ledger.place(resident, assignments)
    return Start(
        job_id=resident.request.job_id,
        reason=reason,
        assignments=assignments,
        predicted_slowdown_ratio=slowdown.own_ratio if slowdown.neighbour_ids else None,
        micro_batch_size=resident.micro_batch_size,
        accumulation_steps=accumulation_steps,
        candidates=candidates,
    )


def code_of_shared_start(slowdown: PlacementSlowdown, shared_code: str) -> str:
    """Return the code of a start on shared GPUs: on trial, with known slowdowns, or blindly."""
    if slowdown.is_on_trial:
        return "STARTS_ON_TRIAL"
    return shared_code if slowdown.is_known else "STARTS_SHARED_BLINDLY"


def _shared_reason(
    slowdown: PlacementSlowdown, gpu_ids: Sequence[str], numbers: Mapping[str, float], shared_code: str
) -> Reason:
    """Return with which jobs one shares, and the worst slowdown over its GPUs, its own and the others', where known."""
    ratios = {"slowdown_ratio": slowdown.own_ratio, "neighbour_slowdown_ratio": slowdown.neighbour_ratio}
    return Reason(
        code=code_of_shared_start(slowdown, shared_code),
        numbers={**{name: ratio for name, ratio in ratios.items() if ratio is not None}, **numbers},
        job_ids=slowdown.neighbour_ids,
        gpu_ids=tuple(gpu_ids),
    )
