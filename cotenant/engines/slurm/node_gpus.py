"""The GPUs of a node of Slurm: one gres type for each where the site has it so, else by their indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cotenant.engines.device_rules import DeviceRule, rule_of
from cotenant.engines.records import EngineGpu
from cotenant.engines.slurm.gres import Gres


def read_gpus(
    node_id: str, entries: Sequence[Gres], rules: Sequence[DeviceRule], warnings: list[str]
) -> Iterator[EngineGpu]:
    """Yield the GPUs of a node of which a rule says what they are.

    Args:
        node_id: Its name.
        entries: What Slurm says of its gres.
        rules: The first that fits the node, or the node and the type of the GPU, counts.
        warnings: Gets what is left out, and the remedy.
    """
    gpus = [entry for entry in entries if entry.kind == "gpu" and entry.count]
    shards = {entry.type_name: entry.count for entry in entries if entry.kind == "shard"}
    # A number alone as the name would be read as an index: where it is not the only GPU, its index stands behind it.
    is_named = len(gpus) == 1 or not any(entry.type_name.isdigit() for entry in gpus)
    is_typed = is_named and all(entry.count == 1 and entry.type_name for entry in gpus)
    is_mixed = not is_typed and len({entry.type_name for entry in gpus}) > 1
    index, left_out = 0, dict[str, None]()
    for entry in gpus:
        rule = rule_of(node_id, rules, entry.type_name)
        if rule is not None and is_mixed and "/" not in rule.nodes:
            rule = None
        if rule is None:
            left_out[_left_out(node_id, entry.type_name if is_mixed else "")] = None
        for _ in range(entry.count):
            name = entry.type_name if is_typed else f"{entry.type_name}:{index}" * is_mixed or str(index)
            index += 1
            if rule is not None:
                yield EngineGpu(
                    gpu_id=f"{node_id}/{name}",
                    device=rule.device,
                    memory_bytes=rule.memory_bytes,
                    slots=shards.get(name, 0) if is_typed else 0,
                    is_interchangeable=not is_typed,
                )
    warnings += left_out


def names_of(node_id: str, entry: Gres) -> list[str]:
    """Return by which ids the GPUs of an entry may be known."""
    kind = entry.type_name
    return [f"{node_id}/{kind}", *(f"{node_id}/{name}" for n in entry.indices for name in (str(n), f"{kind}:{n}"))]


def type_of(gpu_id: str) -> str:
    """Return the gres type in the id of a GPU; empty = Slurm knows it by its index."""
    name, colon, _ = gpu_id.partition("/")[2].partition(":")
    return name if colon or not name.isdigit() else ""


def _left_out(node_id: str, type_name: str) -> str:
    if not type_name:
        return f"node {node_id} has GPUs and no --gpu names their type; no job is placed there"
    return (
        f"node {node_id} has GPUs of several types, and no --gpu says what its {type_name} are; no job is placed on "
        f"them: write it as --gpu '{node_id}/{type_name}=DEVICE:MEMORY'"
    )
