"""The GPUs of a node, and who chooses among them: cotenant by an annotation, or the device plugin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cotenant.device_sharing import read_sharing
from cotenant.engines.device_rules import DeviceRule, rule_of
from cotenant.engines.kubernetes.pods import GPU_RESOURCES, slices_asked
from cotenant.engines.kubernetes.values import Row, quantities_of, quantity_of, row_of, rows_of, text_of
from cotenant.engines.records import EngineGpu, EngineNode

PLACED_LABEL: Final = "cotenant.io/gpus"
PLACED_VALUE: Final = "placed"
"""On a node with this label every GPU is given out by cotenant, to pods that ask the device plugin for none."""
UUIDS_ANNOTATION: Final = "cotenant.io/gpu-uuids"
"""Uuids of its GPUs, separated by commas; without it they are called by their indices."""
_STRATEGY_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
"""Of NVIDIA's feature discovery: none, time-slicing or mps."""
PARTS_PER_GPU: Final = 100
GPUS_PER_NODE_MAX: Final = 64
_MIB: Final = 2**20
_NAME_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A node with GPUs.

    Attributes:
        row: As the API server has it.
        is_placed: cotenant chooses the GPU; else the device plugin does.
    """

    row: Row
    node: EngineNode
    is_placed: bool

    @property
    def gpu_ids(self) -> list[str]:
        """Ids of its GPUs."""
        return [gpu.gpu_id for gpu in self.node.gpus]


def read_node(row: Row, devices: Sequence[DeviceRule], warnings: list[str]) -> GpuNode | None:
    """Return a node as it would be without pods; None = it has no GPUs that can be given out.

    Args:
        row: As the API server has it.
        devices: The first rule that fits counts; without one, the labels of NVIDIA's feature discovery.
        warnings: Gets why a node with GPUs is left out.
    """
    node_id, labels = text_of(row, "metadata", "name"), row_of(row, "metadata", "labels")
    is_placed = labels.get(PLACED_LABEL) == PLACED_VALUE
    allocatable = quantities_of(row, "status", "allocatable")
    replicas = max(int(quantity_of(labels.get("nvidia.com/gpu.replicas"))), 1)
    slices = slices_asked(allocatable)
    whole = sum(allocatable.get(name, 0.0) for name in GPU_RESOURCES) / replicas
    names = _gpu_names(row, whole, counts_given=bool(slices) and not is_placed)
    if slices and (is_placed or not names):
        warnings.append(f"node {node_id} has its GPUs in slices ({', '.join(slices[:3])}); no job is placed on them")
        return None
    if not node_id or not names:
        return None
    if not is_placed and len(names) > 1 and replicas > 1:
        warnings.append(
            f"node {node_id} has {len(names)} time-sliced GPUs, and which pods share one is not known; "
            f"no job is placed there without the label {PLACED_LABEL}={PLACED_VALUE}"
        )
        return None
    rule = rule_of(node_id, devices) or _labelled_device(labels)
    if rule is None:
        warnings.append(f"node {node_id} has GPUs and neither --gpu nor its labels say which; no job is placed there")
        return None
    slots = PARTS_PER_GPU if is_placed else replicas * (replicas > 1)
    gpus = (
        EngineGpu(
            gpu_id=f"{node_id}/{name}",
            device=rule.device,
            memory_bytes=rule.memory_bytes,
            slots=slots,
            sharing=read_sharing(text_of(labels, _STRATEGY_LABEL).replace("-", "_")),
        )
        for name in names
    )
    node = EngineNode(
        node_id=node_id,
        cpu_cores=allocatable.get("cpu", 0.0),
        host_memory_bytes=int(allocatable.get("memory", 0.0)),
        is_usable=_is_ready(row) and not row_of(row, "spec").get("unschedulable"),
        gpus=tuple(gpus),
    )
    return GpuNode(row=row, node=node, is_placed=is_placed)


def _gpu_names(row: Row, whole: float, *, counts_given: bool) -> list[str]:
    """Return uuids, else indices, each once.

    Args:
        row: Their node.
        whole: GPUs that device plugins give out.
        counts_given: Others are no GPUs that a pod could have, whatever the labels count.
    """
    uuids = text_of(row, "metadata", "annotations", UUIDS_ANNOTATION)
    labelled = 0.0 if counts_given else quantity_of(row_of(row, "metadata", "labels").get("nvidia.com/gpu.count"))
    count = int(labelled or whole)
    names: Iterable[str] = (name.strip() for name in uuids.split(",")) if uuids else map(str, range(min(count, 10_000)))
    # A name with a space or a slash would break the note in which it is found again.
    plain = (name for name in names if name and name.isprintable() and not set(name) & set(" /:"))
    return [name[:_NAME_CHARACTERS_MAX] for name in dict.fromkeys(plain)][:GPUS_PER_NODE_MAX]


def _labelled_device(labels: Row) -> DeviceRule | None:
    product, memory = text_of(labels, "nvidia.com/gpu.product"), quantity_of(labels.get("nvidia.com/gpu.memory"))
    if not product or not memory:
        return None
    return DeviceRule(nodes="*", device=product.removesuffix("-SHARED"), memory_bytes=int(memory) * _MIB)


def _is_ready(row: Row) -> bool:
    conditions = rows_of(row, "status", "conditions")
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
