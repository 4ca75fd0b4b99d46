"""Which bound pods hold which GPUs of a node: as our notes say, else as the device plugin may have chosen."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.engines.kubernetes import enforced_limits
from cotenant.engines.kubernetes.hami import allocated_parts
from cotenant.engines.kubernetes.nodes import GpuNode
from cotenant.engines.kubernetes.pods import gpus_asked, job_id_of, note_of, requests_of
from cotenant.engines.kubernetes.values import Row, rows_of
from cotenant.engines.placement_notes import planned_gpu, planned_slots

Held = dict[str, int]


def held_on(node: GpuNode, pods: Sequence[Row], warnings: list[str]) -> dict[str, Held]:
    """Return what each pod holds, by GPU id; 0 = the whole GPU. Pods without GPUs are left out.

    Args:
        node: Whose GPUs.
        pods: All that are bound to the node and have not ended.
        warnings: Gets which pod closes more than it asked for.
    """
    held: dict[str, Held] = {}
    others: list[Row] = []
    parts = {gpu.gpu_id: (max(gpu.slots, 1), gpu.memory_bytes) for gpu in node.node.gpus}
    for pod in pods:
        planned = planned_gpu(note_of(pod))
        # What HAMi gave counts, also where it is another GPU than the planned one.
        asks = gpus_asked(requests_of(pod))
        if asks and (allocated := allocated_parts(pod, node.node.node_id, parts)):
            held[job_id_of(pod)] = allocated
        elif (limited := enforced_limits.allocated_parts(pod, node.node.node_id, parts)) and [*limited] != [planned]:
            held[job_id_of(pod)] = limited
        elif planned in node.gpu_ids:
            held[job_id_of(pod)] = {planned: planned_slots(note_of(pod))}
        elif asks or enforced_limits.has_devices(pod) or (node.is_placed and rows_of(pod, "spec", "resourceClaims")):
            others.append(pod)
    for pod in others:
        held[job_id_of(pod)] = _guessed(node, pod, held, warnings)
    return held


def _guessed(node: GpuNode, pod: Row, held: dict[str, Held], warnings: list[str]) -> Held:
    """Return GPUs for a pod whose own are known to the device plugin only.

    Where it hands out whole GPUs, one is as good as another; where cotenant chooses, all of the node's are closed.
    """
    asked = gpus_asked(requests_of(pod))
    if node.is_placed:
        warnings.append(
            f"pod {job_id_of(pod)} may hold any GPU of node {node.node.node_id}: a device plugin, another scheduler or "
            "a claim gave them out; no job joins it there until it ends"
        )
        return dict.fromkeys(node.gpu_ids, 0)
    if node.node.gpus[0].slots:
        return {node.gpu_ids[0]: asked}
    taken = {gpu_id for gpus in held.values() for gpu_id in gpus}
    free = [gpu_id for gpu_id in node.gpu_ids if gpu_id not in taken]
    return dict.fromkeys(free[:asked] or node.gpu_ids[:1], 0)
