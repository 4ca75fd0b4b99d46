"""Placing by dynamic resource allocation: pods that our own gate holds get a claim on one device for their memory.

kube-scheduler allocates and keeps the account; we never write an allocation. The objects are checked against the
schemas of Kubernetes, and were never run: the newest control plane at hand is older than claims.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.kubernetes.values import Row, row_of, rows_of, text_of

GATE: Final = "cotenant.io/gpu"
DEVICE_CLASS: Final = "gpu.nvidia.com"
_API_VERSION: Final = "resource.k8s.io/v1"
_CLAIM = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
OUR_LABELS: Final[Mapping[str, str]] = MappingProxyType({"app.kubernetes.io/managed-by": "cotenant"})
TAINT: Final = "cotenant.io/placed"
"""On devices that pods of ours hold (`device_taints`)."""
_UUID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_held_by_our_gate(pod: Row) -> bool:
    """Say whether nothing but our gate holds a pod."""
    return [text_of(gate, "name") for gate in rows_of(pod, "spec", "schedulingGates")] == [GATE]


def claim_of(pod: Row) -> str:
    """Return the claim that a pod waits for; empty = it has none, several, or one of a template."""
    claims = rows_of(pod, "spec", "resourceClaims")
    name = text_of(claims[0], "resourceClaimName") if len(claims) == 1 else ""
    return name if _CLAIM.fullmatch(name) else ""


def claims_path(pod: Row) -> str:
    """Return where the claims of its namespace are."""
    return f"/apis/{_API_VERSION}/namespaces/{text_of(pod, 'metadata', 'namespace')}/resourceclaims"


def make_claim(pod: Row, uuid: str, memory_bytes: int) -> dict[str, Any]:
    """Return the claim of a pod on one device.

    Args:
        pod: Owns it: with the pod it goes.
        uuid: Of the GPU.
        memory_bytes: To be accounted for there; 0 = the whole GPU.

    Raises:
        EngineRefusedError: The GPU has a name that no uuid has.
    """
    if not _UUID.fullmatch(uuid):
        raise EngineRefusedError(f"{uuid!r} is no uuid of a GPU", remedy="correct cotenant.io/gpu-uuids of its node")
    expression = f'device.attributes["{DEVICE_CLASS}"].uuid == "{uuid}"'
    if memory_bytes:
        # On a device that is not shared a claim for a part of it would get all of it.
        expression += " && device.allowMultipleAllocations == true"
    request: dict[str, Any] = {
        "deviceClassName": DEVICE_CLASS,
        "selectors": [{"cel": {"expression": expression}}],
        "tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}],
    }
    if memory_bytes:
        request["capacity"] = {"requests": {"memory": str(memory_bytes)}}
    name, uid = text_of(pod, "metadata", "name"), text_of(pod, "metadata", "uid")
    return {
        "apiVersion": _API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "name": claim_of(pod),
            "namespace": text_of(pod, "metadata", "namespace"),
            "labels": dict(OUR_LABELS),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
    }


def is_our_claim(claim: Row) -> bool:
    """Say whether we made a claim."""
    return row_of(claim, "metadata", "labels").items() >= OUR_LABELS.items()


def without_gate() -> dict[str, Any]:
    """Return the merge patch that lets a pod go."""
    return {"spec": {"schedulingGates": None}}
