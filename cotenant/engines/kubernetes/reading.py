"""What the API server has, as records: nodes with GPUs, and pods that wait for GPUs or hold some."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.job_tag import JobTag
from cotenant.engines.kubernetes import enforced_limits, hami, node_choice, pods
from cotenant.engines.kubernetes.held_gpus import Held, held_on
from cotenant.engines.kubernetes.nodes import GpuNode, read_node
from cotenant.engines.kubernetes.resource_claims import claim_of
from cotenant.engines.kubernetes.values import Row, instant_ms, quantities_of, row_of, text_of
from cotenant.engines.kubernetes.volumes import Volumes, claim_names
from cotenant.engines.placement_notes import planned_gpu, planned_slots
from cotenant.engines.records import EngineJob, EnginePhase, EngineState

WARNINGS_MAX: Final = 20
# Looked at elsewhere, or by the kubelet.
_COUNTED_ELSEWHERE: Final = frozenset(
    {"cpu", "memory", "pods", "ephemeral-storage", *pods.GPU_RESOURCES, *hami.RESOURCES}
)
_NOWHERE: Final = ("",)


class KubernetesReading:
    """One reading.

    Args:
        nodes: Node objects.
        pods: Pod objects of all namespaces; those that have ended may be among them.
        devices: What the GPUs of nodes are, where labels do not say it.
        volumes: Claims of pods that wait, with their volumes.
    """

    def __init__(
        self, nodes: Iterable[Row], pods_: Iterable[Row], devices: Sequence[DeviceRule], volumes: Volumes
    ) -> None:
        self._warnings: list[str] = []
        self._volumes = volumes
        found = (read_node(row, devices, self._warnings) for row in nodes)
        self._nodes = {one.node.node_id: one for one in found if one is not None}
        alive = [pod for pod in pods_ if not pods.is_ended(pod)]
        self._waiting = [pod for pod in alive if not pods.node_of(pod) and not pods.is_gated(pod)]
        self._warnings += [_misplaced(pod) for pod in self._waiting if pods.has_misplaced_tag(pod)]
        self._bound: dict[str, list[Row]] = defaultdict(list)
        for pod in sorted(alive, key=_age):
            if pods.node_of(pod) in self._nodes:
                self._bound[pods.node_of(pod)].append(pod)
        self._held: dict[str, Held] = {}
        for node_id, node in self._nodes.items():
            self._held |= held_on(node, self._bound[node_id], self._warnings)
        self._used = self._used_parts()
        self._free = {node_id: self._free_resources(node) for node_id, node in self._nodes.items()}
        self._allowed: dict[str, tuple[str, ...]] = {}

    def state(self) -> EngineState:
        """Return it."""
        jobs = [self._running(pod) for bound in self._bound.values() for pod in bound if self._holds(pod)]
        jobs += [job for pod in sorted(self._waiting, key=_age) if (job := self._pending(pod)) is not None]
        nodes = tuple(
            replace(
                one.node,
                cpu_cores=self._free[node_id].get("cpu", 0.0),
                host_memory_bytes=int(self._free[node_id].get("memory", 0.0)),
                is_usable=one.node.is_usable and self._free[node_id].get("pods", 1.0) >= 1.0,
            )
            for node_id, one in self._nodes.items()
        )
        warnings = self._warnings[:WARNINGS_MAX]
        if len(self._warnings) > WARNINGS_MAX:
            warnings.append(f"and {len(self._warnings) - WARNINGS_MAX:,} more like these")
        return EngineState(nodes=nodes, jobs=tuple(jobs), warnings=tuple(warnings))

    def _holds(self, pod: Row) -> bool:
        return pods.job_id_of(pod) in self._held

    def _running(self, pod: Row) -> EngineJob:
        has_started = text_of(pod, "status", "phase") != "Pending"
        is_placed = pods.is_ours(pod) and not has_started and bool(planned_gpu(pods.note_of(pod)))
        return replace(
            self._job(pod),
            phase=EnginePhase.PLACED if is_placed else EnginePhase.RUNNING,
            held_slots=self._held[pods.job_id_of(pod)],
            gpus=len(self._held[pods.job_id_of(pod)]),
            started_at_ms=instant_ms(text_of(pod, "status", "startTime")),
        )

    def _pending(self, pod: Row) -> EngineJob | None:
        tag = pods.tag_of(pod)
        if tag is None:
            return None
        limit_bytes = hami.memory_bytes_of(pods.requests_of(pod))
        if limit_bytes:
            # More than its limit it cannot take, and less is not free for others.
            tag = replace(tag, memory_bytes=limit_bytes)
        elif not (tag.memory_bytes or tag.graph_sha256):
            tag = replace(tag, memory_bytes=enforced_limits.stated_bytes(pod))
        obstacle = node_choice.obstacle_of(pod) or self._volumes.obstacle(pod)
        if obstacle:
            complaint = f"cotenant cannot place pods with {obstacle}"
            tag = replace(tag, complaints=(complaint, *tag.complaints))
        allowed = _NOWHERE if obstacle else self._allowed_nodes(pod)
        job = replace(self._job(pod, tag), allowed_node_ids=allowed)
        if not pods.is_ours(pod):
            # Let go by us for kube-scheduler to allocate, or none of our placing.
            held = self._given(job) if claim_of(pod) or limit_bytes else {}
            return replace(job, phase=EnginePhase.PLACED if held else EnginePhase.WAITING, held_slots=held)
        held = self._given(job)
        return replace(job, phase=EnginePhase.INTERRUPTED, held_slots=held) if held else job

    def _given(self, job: EngineJob) -> Held:
        """Return what a pod was given and not bound to; a note for which there is no room any more is void."""
        planned, slots = planned_gpu(job.note), planned_slots(job.note)
        if not planned:
            return {}
        node = self._nodes.get(planned.rpartition("/")[0])
        if node is None or planned not in node.gpu_ids:
            self._warnings.append(f"pod {job.job_id} was placed on {planned}, which is gone; it is placed anew")
            return {}
        whole = max(node.node.gpus[0].slots, 1)
        if not node.node.is_usable:
            self._warnings.append(f"pod {job.job_id} was placed on {planned}, which is closed; it is placed anew")
            return {}
        if self._used[planned] + (slots or whole) > whole:
            self._warnings.append(f"pod {job.job_id} was placed on {planned}, which is taken; it is placed anew")
            return {}
        self._used[planned] += slots or whole
        return {planned: slots}

    def _job(self, pod: Row, tag: JobTag | None = None) -> EngineJob:
        asked = pods.requests_of(pod)
        return EngineJob(
            job_id=pods.job_id_of(pod),
            phase=EnginePhase.HELD,
            tag=tag or pods.tag_of(pod),
            gpus=max(pods.gpus_asked(asked), 1),
            note=pods.note_of(pod),
            tenant=text_of(pod, "metadata", "namespace"),
            cpu_cores=asked.get("cpu", 0.0),
            host_memory_bytes=int(asked.get("memory", 0.0)),
            submitted_at_ms=instant_ms(text_of(pod, "metadata", "creationTimestamp")),
        )

    def _used_parts(self) -> Counter[str]:
        used: Counter[str] = Counter()
        slots = {gpu.gpu_id: max(gpu.slots, 1) for node in self._nodes.values() for gpu in node.node.gpus}
        for held in self._held.values():
            for gpu_id, count in held.items():
                used[gpu_id] += count or slots[gpu_id]
        return used

    def _free_resources(self, node: GpuNode) -> dict[str, float]:
        """Return what is left; pods with GPUs keep their cores and memory in the deciding scheduler's ledger."""
        free = quantities_of(node.row, "status", "allocatable")
        for pod in self._bound[node.node.node_id]:
            free["pods"] = free.get("pods", 1e9) - 1
            for name, amount in pods.requests_of(pod).items():
                if name in free and not (self._holds(pod) and name in ("cpu", "memory")):
                    free[name] -= amount
        return free

    def _allowed_nodes(self, pod: Row) -> tuple[str, ...]:
        """Return where a pod may run; empty = everywhere. Equal pods get the answer of the first."""
        asked = pods.requests_of(pod)
        plugins = pods.asked_of_plugins(asked)
        extras = {name: amount for name, amount in asked.items() if name not in _COUNTED_ELSEWHERE}
        spec = row_of(pod, "spec")
        wishes = [spec.get(name) for name in ("nodeSelector", "affinity", "tolerations")]
        claims = [text_of(pod, "metadata", "namespace"), *claim_names(pod)]
        key = json.dumps([wishes, extras, claims, plugins], sort_keys=True)
        if key not in self._allowed:
            fitting = [node_id for node_id in self._nodes if self._fits(pod, node_id, extras)]
            self._allowed[key] = () if len(fitting) == len(self._nodes) else tuple(fitting) or _NOWHERE
        return self._allowed[key]

    def _fits(self, pod: Row, node_id: str, extras: Mapping[str, float]) -> bool:
        node, plugins = self._nodes[node_id], pods.asked_of_plugins(pods.requests_of(pod))
        # What asks a device plugin gets a GPU of its choice, what does not ask needs one of ours.
        if node.is_placed is bool(plugins):
            return False
        given = quantities_of(node.row, "status", "allocatable")
        if any(given.get(name, 0.0) < amount for name, amount in plugins.items()):
            return False
        has_room = all(self._free[node_id].get(name, 0.0) >= amount for name, amount in extras.items())
        return has_room and node_choice.fits_node(pod, node.row) and self._volumes.fits_node(pod, node.row)


def _misplaced(pod: Row) -> str:
    return (
        f"pod {pods.job_id_of(pod)} has {pods.JOB_ANNOTATION} as a label, which is not read; "
        "write it as an annotation of the pod, in a Job below spec.template.metadata.annotations"
    )


def _age(pod: Row) -> tuple[str, str]:
    return text_of(pod, "metadata", "creationTimestamp"), pods.job_id_of(pod)
