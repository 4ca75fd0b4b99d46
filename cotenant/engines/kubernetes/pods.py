"""What a pod says of itself: what its user stated, what it asks for, where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cotenant.engines.job_tag import FIRST_WORD, JobTag, read_tag
from cotenant.engines.kubernetes import hami
from cotenant.engines.kubernetes.resource_claims import is_held_by_our_gate
from cotenant.engines.kubernetes.values import Row, quantities_of, row_of, rows_of, text_of

SCHEDULER_NAME: Final = "cotenant"
JOB_ANNOTATION: Final = "cotenant.io/job"
"""Its user's: `memory=8GiB utilization=0.4`; may be empty."""
NOTE_ANNOTATION: Final = "cotenant.io/note"
GPU_ANNOTATION: Final = "cotenant.io/gpu"
"""Which GPU of its node; the pod takes it over as its variable NVIDIA_VISIBLE_DEVICES."""
MEMORY_ANNOTATION: Final = "cotenant.io/gpu-memory"
"""Device memory reserved for it, in bytes; absent = the whole GPU."""
MPS_ANNOTATION: Final = "cotenant.io/mps-memory-limit"
"""The same as CUDA_MPS_PINNED_DEVICE_MEM_LIMIT takes it, where the site runs MPS."""
GPU_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu")
"""GPUs that a device plugin gives out: whole ones, or time-sliced parts of them under either name of NVIDIA's."""
SLICE_RESOURCE: Final = "nvidia.com/mig-"
"""Begins the names of fixed slices of GPUs."""
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def job_id_of(pod: Row) -> str:
    """Return namespace/name."""
    return f"{text_of(pod, 'metadata', 'namespace')}/{text_of(pod, 'metadata', 'name')}"


def annotations_of(pod: Row) -> Row:
    """Return the annotations."""
    return row_of(pod, "metadata", "annotations")


def tag_of(pod: Row) -> JobTag | None:
    """Return what its user stated; None = it is none of our business."""
    line = annotations_of(pod).get(JOB_ANNOTATION)
    if isinstance(line, str):
        return read_tag(f"{FIRST_WORD} {line}")
    # No other scheduler places a pod that waits for this one.
    return JobTag() if is_ours(pod) else None


def has_misplaced_tag(pod: Row) -> bool:
    """Say whether its user stated something in a label: only annotations are read."""
    return JOB_ANNOTATION in row_of(pod, "metadata", "labels") and JOB_ANNOTATION not in annotations_of(pod)


def note_of(pod: Row) -> str:
    """Return what we wrote into it last."""
    return text_of(annotations_of(pod), NOTE_ANNOTATION)


def node_of(pod: Row) -> str:
    """Return its node; empty = it is bound to none."""
    return text_of(pod, "spec", "nodeName")


def is_ended(pod: Row) -> bool:
    """Say whether it holds nothing any more, or will never hold anything."""
    return text_of(pod, "status", "phase") in _ENDED or (not node_of(pod) and is_leaving(pod))


def is_leaving(pod: Row) -> bool:
    """Say whether it was told to end."""
    return "deletionTimestamp" in row_of(pod, "metadata")


def is_gated(pod: Row) -> bool:
    """Say whether another controller holds it by a gate: then it must not be placed."""
    return bool(rows_of(pod, "spec", "schedulingGates")) and not is_held_by_our_gate(pod)


def is_ours(pod: Row) -> bool:
    """Say whether we are the one to place it."""
    return text_of(pod, "spec", "schedulerName") == SCHEDULER_NAME or is_held_by_our_gate(pod)


def controller_of(pod: Row) -> str:
    """Return the kind and name of what starts it again, e.g. Job/train; empty = nothing does."""
    owners = rows_of(pod, "metadata", "ownerReferences")
    return next((f"{text_of(row, 'kind')}/{text_of(row, 'name')}" for row in owners if row.get("controller")), "")


def requests_of(pod: Row) -> dict[str, float]:
    """Return what it asks for by resource: of all that run at once, or of one that runs before them, or as a whole."""
    asked: dict[str, float] = {}
    before = rows_of(pod, "spec", "initContainers")
    # Those that always restart run on beside the others.
    staying = [container for container in before if container.get("restartPolicy") == "Always"]
    for container in (*rows_of(pod, "spec", "containers"), *staying):
        _add(asked, quantities_of(container, "resources", "requests"))
    for container in before:
        for name, amount in quantities_of(container, "resources", "requests").items():
            asked[name] = max(asked.get(name, 0.0), amount)
    asked |= quantities_of(pod, "spec", "resources", "requests")
    _add(asked, quantities_of(pod, "spec", "overhead"))
    return asked


def gpus_asked(requests: Mapping[str, float]) -> int:
    """Return how many GPUs, or parts of GPUs, the device plugin is asked for."""
    return min(int(sum(requests.get(name, 0) for name in GPU_RESOURCES)), 10_000)


def asked_of_plugins(requests: Mapping[str, float]) -> dict[str, float]:
    """Return what a device plugin is to choose the GPU for, by resource; where HAMi limits it, we choose: nothing."""
    if hami.memory_bytes_of(requests):
        return {}
    return {name: requests[name] for name in GPU_RESOURCES if requests.get(name, 0) >= 1}


def slices_asked(requests: Mapping[str, float]) -> list[str]:
    """Return the fixed slices of GPUs that a pod asks for, or a node has."""
    return sorted(name for name, amount in requests.items() if name.startswith(SLICE_RESOURCE) and amount >= 1)


def _add(asked: dict[str, float], amounts: Mapping[str, float]) -> None:
    for name, amount in amounts.items():
        asked[name] = asked.get(name, 0.0) + amount
