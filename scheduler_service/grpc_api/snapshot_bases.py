"""What callers need not send again: the nodes and predictions of earlier snapshots, kept read, under tokens.

A token is made of the content, so that equal ones of several callers are kept once, and nobody can name what they do
not know. Only the newest are kept, and none across a restart: a caller is told and sends its snapshot as a whole.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import UnknownBaseError
from scheduler_service.grpc_api.snapshot_nodes import SnapshotNodes, read_nodes
from scheduler_service.grpc_api.snapshot_predictions import PredictionRows

BASES_MAX: Final = 16
BYTES_MAX: Final = 64 * 2**20
"""Of all that are kept together, as messages; read they take a multiple of it."""
_ROWS: Final = ("nodes", "job_predictions", "pair_predictions")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBase:
    """The part of a snapshot that seldom changes, valid and read; nobody changes it.

    Attributes:
        message: A snapshot of these rows alone.
        size_bytes: Of the message.
    """

    message: scheduling_pb2.Snapshot
    size_bytes: int
    nodes: SnapshotNodes
    predictions: PredictionRows


class SnapshotBases:
    """The newest bases, the one that was used last at the end; one thread reads and writes them."""

    def __init__(self) -> None:
        self._bases: OrderedDict[str, SnapshotBase] = OrderedDict()
        self._size_bytes = 0

    def keep(self, snapshot: scheduling_pb2.Snapshot) -> str:
        """Keep the base of a snapshot whose rows are all valid, and return its token; empty = it is too large."""
        message = scheduling_pb2.Snapshot()
        for name in _ROWS:
            getattr(message, name).MergeFrom(getattr(snapshot, name))
        content = message.SerializeToString(deterministic=True)
        token = hashlib.sha256(content).hexdigest()
        if token in self._bases:
            self._bases.move_to_end(token)
            return token
        if len(content) > BYTES_MAX:
            return ""
        self._bases[token] = SnapshotBase(
            message=message,
            size_bytes=len(content),
            nodes=read_nodes(message.nodes),
            predictions=PredictionRows(message),
        )
        self._size_bytes += len(content)
        while len(self._bases) > BASES_MAX or self._size_bytes > BYTES_MAX:
            _, oldest = self._bases.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
        return token

    def find(self, token: str) -> SnapshotBase:
        """Return a base.

        Raises:
            UnknownBaseError: It is not kept, or not any more.
        """
        if token not in self._bases:
            raise UnknownBaseError(token)
        self._bases.move_to_end(token)
        return self._bases[token]


def changes_base(snapshot: scheduling_pb2.Snapshot) -> bool:
    """Say whether a snapshot states more than jobs, or takes nodes away."""
    return bool(snapshot.removed_node_ids) or any(len(getattr(snapshot, name)) for name in _ROWS)


def complete(snapshot: scheduling_pb2.Snapshot, base: SnapshotBase) -> scheduling_pb2.Snapshot:
    """Return a snapshot as a whole: the rows of its base, with its own in addition or in place of them."""
    whole = scheduling_pb2.Snapshot()
    whole.CopyFrom(snapshot)
    for name in _ROWS:
        whole.ClearField(name)
    named = {node.node_id for node in snapshot.nodes}
    gone = named.union(snapshot.removed_node_ids)
    whole.nodes.extend(node for node in base.message.nodes if node.node_id not in gone)
    whole.nodes.extend(snapshot.nodes)
    # Of several predictions of one name the last counts.
    for name in _ROWS[1:]:
        getattr(whole, name).MergeFrom(getattr(base.message, name))
        getattr(whole, name).MergeFrom(getattr(snapshot, name))
    return whole
