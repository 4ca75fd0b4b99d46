"""Pieces of placement that policies share: kinds of GPUs, groups of them, reasons for waiting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler_service.core.cluster_view.capacity import micro_batch_size_alone
from scheduler_service.core.cluster_view.inventory import Kind, alike_for_one, is_slice
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.step_times import passes_of
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import Assignment, Gpu, JobRequest


def free_by_kind_and_node(view: SchedulingView) -> dict[Kind, dict[str, list[str]]]:
    """Return the free GPUs by kind and node, in an order that does not depend on history; the caller's own."""
    sorted_nodes = {kind: dict(sorted(nodes.items())) for kind, nodes in view.index.free_places.items() if nodes}
    if len(sorted_nodes) > 1:
        first = {kind: next((node, here[0]) for node, here in nodes.items()) for kind, nodes in sorted_nodes.items()}
        sorted_nodes = {kind: sorted_nodes[kind] for kind in sorted(first, key=first.__getitem__)}
    return {
        kind: {node: [gpu_id for _, gpu_id in here] for node, here in nodes.items()}
        for kind, nodes in sorted_nodes.items()
    }


def free_by_likeness(view: SchedulingView) -> dict[Kind, dict[str, list[str]]]:
    """Return the same by what is alike to a job of one GPU: all slices of one type together."""
    found: dict[Kind, dict[str, list[str]]] = {}
    sliced: dict[Kind, dict[str, list[str]]] = {}
    for kind, by_node in free_by_kind_and_node(view).items():
        first = view.gpus[next(iter(by_node.values()))[0]].gpu
        if not is_slice(first):
            found[kind] = by_node
            continue
        for node_id, gpu_ids in by_node.items():
            sliced.setdefault(alike_for_one(first), {}).setdefault(node_id, []).extend(gpu_ids)
    for kind, by_node in sliced.items():
        found[kind] = {
            node_id: sorted(by_node[node_id], key=lambda gpu_id: (view.gpus[gpu_id].gpu.index, gpu_id))
            for node_id in sorted(by_node)
        }
    return found


def choose_free_gpus(
    ledger: Ledger, request: JobRequest, by_node: Mapping[str, Sequence[str]]
) -> tuple[str, ...] | None:
    """Return free GPUs for a job: the fullest node that suffices, else as few nodes as the view allows; None = none.

    Args:
        ledger: For the room on the hosts.
        request: The job; `gpus` of them are wanted.
        by_node: Free GPUs of one kind.
    """
    nodes, gpus = ledger.view.nodes, request.gpus
    enough = [(len(gpu_ids), node_id) for node_id, gpu_ids in by_node.items() if len(gpu_ids) >= gpus]
    if request.cpu_cores or request.host_memory_bytes:
        enough = [
            (count, node_id)
            for count, node_id in enough
            if ledger.host_fits(nodes[node_id], request, gpus_here=gpus, gpus=gpus)
        ]
    if enough:
        return tuple(by_node[min(enough)[1]][: request.gpus])
    chosen: list[str] = []
    widest_first = sorted(by_node.items(), key=lambda item: (-len(item[1]), item[0]))
    nodes_left = ledger.view.nodes_per_job_max or len(widest_first)
    for node_id, gpu_ids in widest_first:
        part = gpu_ids[: request.gpus - len(chosen)]
        if ledger.host_fits(nodes[node_id], request, gpus_here=len(part), gpus=request.gpus):
            chosen += part
            nodes_left -= 1
        if len(chosen) == request.gpus:
            return tuple(chosen)
        if not nodes_left:
            return None
    return None


def sized(request: JobRequest, gpus: int) -> JobRequest:
    """Return a request as if it asked for so many GPUs at the start."""
    return request if request.gpus == gpus else replace(request, gpus=gpus)


def ranked(gpu_ids: Iterable[str]) -> tuple[Assignment, ...]:
    """Give the ranks 0, 1, 2 ... to GPUs in this order."""
    return tuple([Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids)])


def fits_alone(view: SchedulingView, request: JobRequest, gpu: Gpu) -> bool:
    """Return whether a GPU of this kind has the memory for a job when no other is there, in however many passes."""
    return passes_alone(view, request, gpu) is not None


def passes_alone(view: SchedulingView, request: JobRequest, gpu: Gpu) -> tuple[int, int] | None:
    """Return samples per pass and passes per step of a job on an empty GPU of this kind; None = it does not fit."""
    prediction = view.predictions.job(request.key, gpu.device)
    micro_batch_size = micro_batch_size_alone(request, prediction, request.gpus, gpu)
    if micro_batch_size is None:
        return None
    return micro_batch_size, passes_of(request, gpus=request.gpus, micro_batch_size=micro_batch_size)


def without_host(request: JobRequest) -> JobRequest:
    """Return a request as if it asked for nothing but GPUs: what refuses it is not its hosts."""
    return replace(request, cpu_cores=0.0, host_memory_bytes=0, worker_demand=None, server_demand=None)
