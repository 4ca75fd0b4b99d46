"""As many GPUs as a job needs, of those that it could have: the one gang that is cheapest, and its start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.step_times import passes_of
from scheduler_service.core.decisions import Candidate, Start
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu
from scheduler_service.policies.pairing.offers import Offer
from scheduler_service.policies.placement.reasons import host_reason, nearest_obstacle
from scheduler_service.policies.placement.starts import start_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """As many GPUs as a job needs, and the one micro-batch of all its workers."""

    offers: tuple[Offer, ...]
    micro_batch_size: int

    @property
    def occupied_gpus(self) -> list[OccupiedGpu]:
        """The GPUs among them that hold a job."""
        return [offer.occupied_gpu for offer in self.offers if offer.occupied_gpu is not None]

    @property
    def order(self) -> tuple[float, tuple[str, ...]]:
        """The cheapest gang comes first."""
        return sum(offer.cost_ms for offer in self.offers), tuple(offer.entry.gpu.gpu_id for offer in self.offers)


def start_gang(ledger: Ledger, resident: Resident, gang: Gang, candidates: tuple[Candidate, ...]) -> Start:
    """Start a job; its reason names the co-located jobs, the number of passes and the worst cost for both sides."""
    request, gpu_ids = resident.request, [offer.entry.gpu.gpu_id for offer in gang.offers]
    passes = passes_of(request, gpus=request.gpus, micro_batch_size=gang.micro_batch_size)
    numbers = {"micro_batch_size": gang.micro_batch_size, "accumulation_steps": passes} if gang.occupied_gpus else {}
    return start_on(
        ledger,
        resident,
        gpu_ids,
        numbers=numbers,
        shared_code="STARTS_SHARED" if passes == 1 else "STARTS_SHARED_IN_PASSES",
        accumulation_steps=passes,
        candidates=candidates,
    )


def misfits(request: JobRequest, chosen: Sequence[Offer], micro_batch_size: int) -> Iterator[tuple[str, Reason]]:
    """Yield the GPUs among these that do not take this micro-batch of a job, and why; each takes the one it offered."""
    for offer in chosen:
        is_other = offer.occupied_gpu is not None and offer.micro_batch_size != micro_batch_size
        admitted = (
            offer.occupied_gpu.admit(request, micro_batch_size) if offer.occupied_gpu is not None and is_other else None
        )
        if isinstance(admitted, Reason):
            yield offer.entry.gpu.gpu_id, admitted


def _feasible(offers: Sequence[Offer], chosen: set[str]) -> Iterator[Candidate]:
    for offer in offers:
        gpu_id = offer.entry.gpu.gpu_id
        cost = offer.cost_ms if offer.occupied_gpu is not None else None
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


class GangSearch:
    """Puts offers together to gangs.

    Args:
        ledger: The cluster with what this round has given away; for the room on the hosts.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._view = ledger, ledger.view

    def find(self, request: JobRequest, offers: Sequence[Offer]) -> tuple[list[Gang], list[Reason]]:
        """Return one gang per place that has one, the cheapest first (lines 16-18), and why other places have none."""
        most_first = sorted(self._groups(offers).values(), key=len, reverse=True)
        found = [self._gang(request, group) for group in most_first]
        gangs = [one for one in found if isinstance(one, Gang)]
        return sorted(gangs, key=lambda gang: gang.order), [one for one in found if isinstance(one, Reason)]

    def _groups(self, offers: Iterable[Offer]) -> Mapping[tuple[str, Kind], list[Offer]]:
        """GPUs of one kind, on one node where a job may not span nodes."""
        groups: dict[tuple[str, Kind], list[Offer]] = {}
        for offer in offers:
            place = offer.entry.node_id if self._view.nodes_per_job_max == 1 else ""
            groups.setdefault((place, kind_of(offer.entry.gpu)), []).append(offer)
        return groups

    def _gang(self, request: JobRequest, offers: Sequence[Offer]) -> Gang | Reason:
        """Take the first GPUs; where one does not take the others' smaller micro-batch, try without it."""
        left = list(offers)
        refusals: dict[str, Reason] = {}
        while len(left) >= request.gpus:
            chosen = self._first(request, left)
            if chosen is None:
                return host_reason(request)
            micro_batch_size = min(offer.micro_batch_size for offer in chosen)
            refused = dict(misfits(request, chosen, micro_batch_size))
            if not refused:
                return Gang(offers=tuple(chosen), micro_batch_size=micro_batch_size)
            refusals |= refused
            left = [offer for offer in left if offer.entry.gpu.gpu_id not in refused]
        too_few = Reason(code="NO_FREE_GPU", numbers={"gpus_needed": request.gpus, "gpus_free": len(left)})
        return nearest_obstacle(refusals.values()) if refusals else too_few

    def _first(self, request: JobRequest, offers: Sequence[Offer]) -> list[Offer] | None:
        """Return the first GPUs in order that the hosts and the limit of nodes allow."""
        chosen: list[Offer] = []
        on_node: dict[str, int] = {}
        nodes_max = self._view.nodes_per_job_max
        for offer in offers:
            node_id = offer.entry.node_id
            if node_id not in on_node and nodes_max and len(on_node) >= nodes_max:
                continue
            if self._ledger.host_fits(
                self._view.nodes[node_id], request, gpus_here=on_node.get(node_id, 0) + 1, gpus=request.gpus
            ):
                on_node[node_id] = on_node.get(node_id, 0) + 1
                chosen.append(offer)
            if len(chosen) == request.gpus:
                return chosen
        return None
