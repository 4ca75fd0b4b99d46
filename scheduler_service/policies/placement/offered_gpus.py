"""GPUs that a job which waits could have, and which of them it gets."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.copied_record import slotted_record

_GPU_ID: Final = attrgetter("gpu_id")


@slotted_record
class PreemptionPlan:
    """GPUs that can be had, some of them later.

    Attributes:
        gpu_ids: As many as the job needs.
        releasing_gpu_ids: Those among them that another job still leaves.
        victims: The jobs to stop, by id; empty = waiting is enough.
    """

    gpu_ids: tuple[str, ...]
    releasing_gpu_ids: tuple[str, ...]
    victims: tuple[str, ...]


class OfferedGpu(NamedTuple):
    """One GPU that the job could have, in the order in which it would take them.

    The price says that the GPU is free (0), being released (1), or held by jobs that may be stopped (2).
    """

    price: int
    minus_remaining_ms: float
    node_id: str
    gpu_index: int
    gpu_id: str
    holders: tuple[str, ...]


def offered(price: int, remaining_ms: float, entry: GpuView, holders: tuple[str, ...]) -> OfferedGpu:
    """Return a GPU as an offer.

    Args:
        price: See `OfferedGpu`.
        remaining_ms: How long its holders run at least, or another measure of them.
        entry: The GPU.
        holders: The jobs to stop for it.
    """
    return OfferedGpu(price, -remaining_ms, entry.node_id, entry.gpu.index, entry.gpu.gpu_id, holders)


def plan_of(chosen: Sequence[OfferedGpu]) -> PreemptionPlan:
    """Return the plan by which a job gets these GPUs."""
    victims = dict.fromkeys([job_id for offer in chosen for job_id in offer.holders])
    return PreemptionPlan(
        gpu_ids=tuple([offer.gpu_id for offer in chosen]),
        releasing_gpu_ids=tuple([offer.gpu_id for offer in chosen if offer.price == 1]),
        victims=tuple(victims),
    )


def cheapest_vacant(vacant: Sequence[OfferedGpu], gpus: int, *, is_one_node: bool) -> Sequence[OfferedGpu] | None:
    """Return which vacant GPUs a job takes that stops no other job, or None where they do not suffice.

    Those of one node or the first ones of all, whichever waits for fewer GPUs to be released; then by their ids.

    Args:
        vacant: Free GPUs and such as are being released, in order.
        gpus: How many it needs.
        is_one_node: They have to be on one node.
    """
    if len(vacant) < gpus:
        return None
    if gpus == 1:
        return [_cheapest_first(vacant)]
    on_node: dict[str, list[OfferedGpu]] = {}
    for offer in vacant:
        on_node.setdefault(offer.node_id, []).append(offer)
    found = [offers[:gpus] for offers in on_node.values() if len(offers) >= gpus]
    if not is_one_node:
        found.append([*vacant[:gpus]])
    return min(found, key=_price_and_ids) if found else None


def _cheapest_first(vacant: Sequence[OfferedGpu]) -> OfferedGpu:
    """Return of the first vacant GPUs of each node, one of which comes first of all, the cheapest with the first id."""
    firsts: dict[str, OfferedGpu] = {}
    for offer in vacant:
        if offer.price > vacant[0].price:
            break
        firsts.setdefault(offer.node_id, offer)
    return min(firsts.values(), key=_GPU_ID)


def _price_and_ids(chosen: Sequence[OfferedGpu]) -> tuple[int, list[str]]:
    return sum([offer.price for offer in chosen]), [offer.gpu_id for offer in chosen]
