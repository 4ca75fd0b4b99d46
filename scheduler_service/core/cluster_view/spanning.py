"""Which nodes one job may span: they reach each other, and all see the same checkpoints or send them to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import GANG_TRANSFERS, Node, Reason

BY_TRANSFER: Final = "by transfer"
"""The pool of nodes without shared storage, whose agents fetch checkpoints from each other; no storage is called so."""


def checkpoint_pool(node: Node) -> str:
    """Return what the nodes have in common that can go on from each other's checkpoints; empty = this one cannot."""
    return node.storage_id or (BY_TRANSFER if GANG_TRANSFERS in node.enforcements else "")


def can_span(node: Node) -> bool:
    """Say whether a node takes part in gangs across nodes at all."""
    return bool(node.rendezvous_address and checkpoint_pool(node))


def widest_pool(view: SchedulingView) -> str:
    """Return the pool of checkpoints whose nodes have most free GPUs, then most GPUs; empty = there is none."""
    free, all_of = Counter[str](), Counter[str]()
    for entry in view.gpus.values():
        node = view.nodes[entry.node_id]
        if can_span(node):
            all_of[checkpoint_pool(node)] += 1
            free[checkpoint_pool(node)] += not entry.job_ids and not entry.is_releasing
    return max(sorted(all_of), key=lambda one: (free[one], all_of[one]), default="")


def spanning_obstacle(nodes: Sequence[Node]) -> Reason | None:
    """Return why a gang cannot be on these nodes together, or None."""
    if not all(map(can_span, nodes)) or len(set(map(checkpoint_pool, nodes))) > 1:
        return Reason(code="NO_SHARED_STORAGE", numbers={"nodes_needed": len(nodes)})
    machines = {node.machine_id or node.node_id for node in nodes}
    if len(machines) > 1 and any(is_loopback_address(node.rendezvous_address) for node in nodes):
        return Reason(code="NODES_NOT_REACHABLE", numbers={"nodes_needed": len(nodes)})
    return None


def is_loopback_address(address: str) -> bool:
    """Say whether an address means the machine itself, on every machine."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
