"""Kubernetes as an engine: pods wait because their schedulerName is ours, and start when they are bound."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cotenant import system_clock
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineRefusedError, EngineUnreachableError
from cotenant.engines.kubernetes import enforced_limits, hami, pods
from cotenant.engines.kubernetes.api import KubernetesApi
from cotenant.engines.kubernetes.device_taints import DeviceTaints
from cotenant.engines.kubernetes.reading import KubernetesReading
from cotenant.engines.kubernetes.resource_claims import (
    claim_of,
    claims_path,
    is_held_by_our_gate,
    is_our_claim,
    make_claim,
    without_gate,
)
from cotenant.engines.kubernetes.values import Row, row_of, text_of
from cotenant.engines.kubernetes.volumes import Volumes, claim_names
from cotenant.engines.placement_notes import planned_gpu
from cotenant.engines.port import order_each
from cotenant.engines.records import EngineState, Placement

GRACE_S_MAX: Final = 86_400
_MERGE_PATCH: Final = "application/merge-patch+json"
_MIB: Final = 2**20
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_ALIVE: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_PLACED: Final = (pods.GPU_ANNOTATION, pods.MEMORY_ANNOTATION, pods.MPS_ANNOTATION)


class KubernetesEngine:
    """An `Engine`; jobs are pods, called namespace/name.

    What was decided stands in annotations of the pod, written through its status: that right does not change what
    a pod runs.

    Args:
        api: Reaches the API server.
        devices: What the GPUs of its nodes are, where labels do not say it.
        keep_lease: Called before a pod is placed or released; raises where another controller does that.
        closes_devices: Close devices that pods of ours hold by claims to others' claims; for a bridge that places.
        now_ms: Clock for events.
    """

    def __init__(
        self,
        api: KubernetesApi,
        devices: Sequence[DeviceRule],
        *,
        keep_lease: Callable[[], None] = lambda: None,
        closes_devices: bool = False,
        now_ms: Callable[[], int] = system_clock.now_ms,
    ) -> None:
        self._api = api
        self._keep_lease = keep_lease
        self._devices = tuple(devices)
        self._now_ms = now_ms
        self._taints = DeviceTaints(api) if closes_devices else None

    def read(self) -> EngineState:
        """Return the cluster as it is now."""
        nodes = self._api.list_rows("/api/v1/nodes", {})
        found = self._api.list_rows("/api/v1/pods", _ALIVE)
        waiting = (pod for pod in found if not pods.node_of(pod) and pods.tag_of(pod) is not None)
        volumes = self._volumes() if any(claim_names(pod) for pod in waiting) else Volumes()
        state = KubernetesReading(nodes, found, self._devices, volumes).state()
        return replace(state, warnings=(*state.warnings, *self._tend_devices(found)))

    def annotate(self, job_id: str, note: str) -> None:
        """Write a note into a pod, and an event about it."""
        pod = self._annotate(job_id, {pods.NOTE_ANNOTATION: _plain(note)})
        self._tell(pod, "CotenantAdvice", note)

    def place(self, placement: Placement) -> None:
        """Write a pod's GPU into it; it is bound to no node yet."""
        self._keep_lease()
        pod = self._unbound(placement.job_id)
        name = placement.gpu_id.removeprefix(f"{placement.node_id}/")
        if is_held_by_our_gate(pod) and claim_of(pod):
            if self._taints is not None:
                # What is wrong with it is said at every reading, and keeps no pod waiting.
                with contextlib.suppress(EngineRefusedError):
                    self._taints.close(name)
            self._claim(pod, name, placement.memory_bytes)
        changes: dict[str, str | None] = {
            pods.NOTE_ANNOTATION: _plain(placement.note),
            pods.GPU_ANNOTATION: name,
            pods.MEMORY_ANNOTATION: str(placement.memory_bytes) if placement.memory_bytes else None,
            pods.MPS_ANNOTATION: f"0={placement.memory_bytes // _MIB}M" if placement.memory_bytes else None,
        }
        if hami.memory_bytes_of(pods.requests_of(pod)):
            changes[hami.UUID_ANNOTATION] = name
        changes |= enforced_limits.limits_of(pod, name, placement.memory_bytes)
        # Refused where anything about the pod has changed meanwhile.
        self._annotate(placement.job_id, changes, version=text_of(pod, "metadata", "resourceVersion"))

    def release(self, job_id: str) -> None:
        """Bind a placed pod to its node."""
        self._keep_lease()
        pod = self._unbound(job_id)
        annotations = pods.annotations_of(pod)
        planned = planned_gpu(pods.note_of(pod))
        if not planned:
            raise EngineRefusedError(f"pod {job_id} was not placed")
        if is_held_by_our_gate(pod):
            self._api.order("PATCH", _path(job_id), without_gate(), _MERGE_PATCH)
            self._tell(pod, "CotenantPlaced", pods.note_of(pod))
            return
        metadata = {
            **{name: text_of(pod, "metadata", name) for name in ("name", "namespace", "uid")},
            # In the same order as the node: another placer does not come in between.
            "annotations": {name: text for name, text in annotations.items() if _is_of_placement(name)},
        }
        target = {"apiVersion": "v1", "kind": "Node", "name": planned.rpartition("/")[0]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self._api.order("POST", f"{_path(job_id)}/binding", binding)
        self._tell(pod, "CotenantPlaced", pods.note_of(pod))

    def release_all(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Let placed jobs start, one after the other."""
        return order_each(self.release, job_ids)

    def hold(self, job_id: str) -> None:
        """Take back where a pod was to run; it is bound to no node yet."""
        pod = self._unbound(job_id)
        changes: dict[str, str | None] = dict.fromkeys(_PLACED, None)
        changes[pods.NOTE_ANNOTATION] = "cotenant: held"
        if hami.memory_bytes_of(pods.requests_of(pod)):
            changes[hami.UUID_ANNOTATION] = None
        changes |= enforced_limits.taken_back(pod)
        self._annotate(job_id, changes, version=text_of(pod, "metadata", "resourceVersion"))

    def stop(self, job_id: str, *, grace_s: int) -> None:
        """End a pod by SIGTERM, and by SIGKILL after its grace."""
        pod = self._api.get(_path(job_id))
        if controller := pods.controller_of(pod):
            raise EngineRefusedError(
                f"{controller} would start pod {job_id} again", remedy=f"delete {controller} itself"
            )
        self._delete(pod, grace_s)

    def requeue(self, job_id: str, *, grace_s: int) -> None:
        """End a pod likewise; its Job, or whatever made it, makes another one, which waits."""
        pod = self._api.get(_path(job_id))
        if not pods.controller_of(pod):
            raise EngineRefusedError(f"nothing would start pod {job_id} again", remedy="let a Job make it")
        self._delete(pod, grace_s)

    def _tend_devices(self, found: Sequence[Row]) -> list[str]:
        """Close the devices of pods with claims that we placed, and open all others; return what is wrong."""
        if self._taints is None:
            return []
        living = (pod for pod in found if claim_of(pod) and not pods.is_ended(pod))
        held = {planned_gpu(pods.note_of(pod)).rpartition("/")[2] for pod in living} - {""}
        try:
            self._keep_lease()
        except EngineUnreachableError:
            # Another controller has it, and does this.
            return []
        return self._taints.tend(held)

    def _volumes(self) -> Volumes:
        claims = self._api.list_rows("/api/v1/persistentvolumeclaims", {})
        return Volumes(claims, self._api.list_rows("/api/v1/persistentvolumes", {}))

    def _unbound(self, job_id: str) -> Row:
        """Return a pod that we may place; any other is refused."""
        pod = self._api.get(_path(job_id))
        if pods.node_of(pod) or pods.is_ended(pod):
            raise EngineRefusedError(f"pod {job_id} runs on {pods.node_of(pod) or 'no node'}, or has ended")
        if not pods.is_ours(pod) or pods.is_gated(pod):
            raise EngineRefusedError(f"pod {job_id} waits for another scheduler, or for a gate")
        return pod

    def _claim(self, pod: Row, uuid: str, memory_bytes: int) -> None:
        """Make the claim of a pod; one of an earlier plan cannot be changed, and gives way."""
        claim, path = make_claim(pod, uuid, memory_bytes), claims_path(pod)
        try:
            self._api.order("POST", path, claim)
        except EngineRefusedError:
            if not is_our_claim(self._api.get(f"{path}/{claim_of(pod)}")):
                raise
            self._api.order("DELETE", f"{path}/{claim_of(pod)}", {})
            self._api.order("POST", path, claim)

    def _annotate(self, job_id: str, changes: dict[str, str | None], *, version: str = "") -> Row:
        metadata: dict[str, Any] = {"annotations": changes}
        if version:
            metadata["resourceVersion"] = version
        return self._api.order("PATCH", f"{_path(job_id)}/status", {"metadata": metadata}, _MERGE_PATCH)

    def _delete(self, pod: Row, grace_s: int) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": min(max(grace_s, 1), GRACE_S_MAX),
            "preconditions": {"uid": text_of(pod, "metadata", "uid")},
        }
        self._api.order("DELETE", _path(pods.job_id_of(pod)), options)

    def _tell(self, pod: Row, reason: str, note: str) -> None:
        """Write an event; a lost one changes nothing."""
        metadata, at = row_of(pod, "metadata"), system_clock.iso_utc(self._now_ms())
        about = {name: text_of(metadata, name) for name in ("namespace", "name", "uid")}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name'][:200]}.", "namespace": about["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
            "reason": reason,
            "message": _plain(note),
            "type": "Normal",
            "count": 1,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "source": {"component": "cotenant"},
        }
        try:
            self._api.order("POST", f"/api/v1/namespaces/{about['namespace']}/events", event)
        except EngineRefusedError:
            return


def _path(job_id: str) -> str:
    """Return the path of one pod, never that of anything else."""
    namespace, _, name = job_id.partition("/")
    if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
        raise EngineRefusedError(f"{job_id!r} is no pod: write NAMESPACE/NAME")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _is_of_placement(annotation: str) -> bool:
    return annotation in (pods.NOTE_ANNOTATION, *_PLACED) or enforced_limits.is_limit(annotation)


def _plain(note: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in note).split())
