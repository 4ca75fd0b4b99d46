"""GPUs that a job could have, alone or as the second one there, and gangs of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler_service.core.capacity import Resident
from scheduler_service.core.decisions import Candidate
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.step_times import passes_of
from scheduler_service.core.view import GpuView
from scheduler_service.policies.placement import alone_reason
from scheduler_service.policies.placement_reasons import start_reason
from scheduler_service.policies.sharing_spot import Spot


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One GPU that the job could have.

    Attributes:
        entry: The GPU.
        micro_batch_size: Samples per pass that suit it best.
        spot: The GPU with its job; None = it is free.
        cost_ms: Sum of the ends of both jobs; lower is better. 0 where nothing is weighed.
    """

    entry: GpuView
    micro_batch_size: int
    spot: Spot | None = None
    cost_ms: float = 0.0

    @property
    def order(self) -> tuple[bool, float, str, int, str]:
        """Shared ones by cost, then the free ones; ties never depend on luck."""
        return self.spot is None, self.cost_ms, self.entry.node_id, self.entry.gpu.index, self.entry.gpu.gpu_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """As many GPUs as a job needs, and the one micro-batch of all its workers."""

    offers: tuple[Offer, ...]
    micro_batch_size: int

    @property
    def spots(self) -> list[Spot]:
        """The GPUs among them that hold somebody."""
        return [offer.spot for offer in self.offers if offer.spot is not None]

    @property
    def order(self) -> tuple[float, tuple[str, ...]]:
        """The cheapest gang comes first."""
        return sum(offer.cost_ms for offer in self.offers), tuple(offer.entry.gpu.gpu_id for offer in self.offers)


def gang_reason(ledger: Ledger, resident: Resident, gang: Gang, gpu_ids: Sequence[str]) -> Reason:
    """Say with whom a job shares, in how many passes, and what it costs both sides at worst."""
    if not gang.spots:
        return alone_reason(ledger.view, resident.request, gpu_ids)
    passes = passes_of(resident.request, gpus=resident.request.gpus, micro_batch_size=gang.micro_batch_size)
    numbers: dict[str, float] = {"micro_batch_size": gang.micro_batch_size, "accumulation_steps": passes}
    code = "STARTS_SHARED" if passes == 1 else "STARTS_SHARED_IN_PASSES"
    return start_reason(ledger, resident, gpu_ids, numbers, shared_code=code)


def misfits(request: JobRequest, chosen: Sequence[Offer], micro_batch_size: int) -> Iterator[tuple[str, Reason]]:
    """Yield the GPUs among these that do not take this micro-batch of a job, and why; each takes the one it offered."""
    for offer in chosen:
        is_other = offer.spot is not None and offer.micro_batch_size != micro_batch_size
        admitted = offer.spot.admit(request, micro_batch_size) if offer.spot is not None and is_other else None
        if isinstance(admitted, Reason):
            yield offer.entry.gpu.gpu_id, admitted


def _feasible(offers: Sequence[Offer], chosen: set[str]) -> Iterator[Candidate]:
    for offer in offers:
        gpu_id = offer.entry.gpu.gpu_id
        cost = offer.cost_ms if offer.spot is not None else None
        reason = Reason(code="CANDIDATE", numbers={"micro_batch_size": offer.micro_batch_size}, gpu_ids=(gpu_id,))
        yield Candidate(gpu_id=gpu_id, feasible=True, reason=reason, cost=cost, chosen=gpu_id in chosen)


def _infeasible(obstacles: Mapping[str, Reason]) -> Iterator[Candidate]:
    for gpu_id, reason in obstacles.items():
        yield Candidate(gpu_id=gpu_id, feasible=False, reason=reason)


def candidate_table(
    offers: Sequence[Offer], obstacles: Mapping[str, Reason], gang: Gang | None
) -> tuple[Candidate, ...]:
    """Return how every GPU looked: those that could be had first, then the others."""
    chosen = {offer.entry.gpu.gpu_id for offer in gang.offers} if gang is not None else set()
    return (*_feasible(offers, chosen), *_infeasible(obstacles))
