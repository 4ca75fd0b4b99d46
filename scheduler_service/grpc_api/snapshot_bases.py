"""What callers need not send again: the nodes and predictions of earlier snapshots, kept read, under tokens.

A token is made of the content, so that equal ones of several callers are kept once, and no caller can name what it does
not know. Only the newest are kept, and none across a restart: a caller is told and sends its snapshot as a whole.

Who sends whole snapshots one after the other mostly sends the same nodes and predictions, too: those of the newest one
are compared as bytes, at a tenth of the cost of checking and reading them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import UnknownBaseError
from scheduler_service.grpc_api.message_columns import unread_rows
from scheduler_service.grpc_api.row_columns import RowColumns
from scheduler_service.grpc_api.snapshot_jobs import KnownJobs
from scheduler_service.grpc_api.snapshot_nodes import SnapshotNodes, gpu_rows, read_nodes
from scheduler_service.grpc_api.snapshot_pairs import PairRows
from scheduler_service.grpc_api.snapshot_predictions import PredictionRows
from scheduler_service.grpc_api.snapshot_ranges import job_predictions_are_valid, nodes_are_valid

BASES_MAX: Final = 16
BYTES_MAX: Final = 64 * 2**20
"""Of all that are kept together, as messages; read they take a multiple of it."""
_PREDICTIONS: Final = ("job_predictions", "pair_predictions")
_ROWS: Final = ("nodes", *_PREDICTIONS)
UnreadSnapshot: Final = unread_rows(scheduling_pb2.Snapshot.DESCRIPTOR)
"""A snapshot whose rows are bytes, so that they can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBase:
    """The part of a snapshot that seldom changes, valid and read; never changed.

    Attributes:
        message: A snapshot of these rows alone.
        size_bytes: Of the message.
    """

    message: scheduling_pb2.Snapshot
    size_bytes: int
    nodes: SnapshotNodes
    predictions: PredictionRows


class SnapshotBases:
    """The newest bases, the one that was used last at the end; one thread reads and writes them.

    Attributes:
        jobs: Jobs that were read before, of any caller.
    """

    def __init__(self) -> None:
        self._bases: OrderedDict[str, SnapshotBase] = OrderedDict()
        self._size_bytes = 0
        self.jobs = KnownJobs()
        self._newest_nodes: tuple[Sequence[bytes], SnapshotNodes] | None = None
        self._newest_predictions: tuple[tuple[Sequence[bytes], Sequence[bytes]], PredictionRows] | None = None

    def read_nodes(self, snapshot: scheduling_pb2.Snapshot, content: Sequence[bytes]) -> SnapshotNodes | None:
        """Return the nodes of a whole snapshot, those of the newest one where they are equal; None = one is invalid.

        Args:
            snapshot: The snapshot.
            content: Its nodes, unread.
        """
        if self._newest_nodes is None or self._newest_nodes[0] != content:
            nodes = RowColumns(snapshot.nodes)
            gpus = gpu_rows(nodes)
            if not nodes_are_valid(nodes, gpus):
                return None
            self._newest_nodes = content, read_nodes(nodes, gpus)
        return self._newest_nodes[1]

    def read_predictions(self, of_jobs: Sequence[bytes], of_pairs: Sequence[bytes]) -> PredictionRows | None:
        """Return the same of its predictions.

        Args:
            of_jobs: Those of jobs, unread.
            of_pairs: Those of pairs, unread.
        """
        content = of_jobs, of_pairs
        if self._newest_predictions is None or self._newest_predictions[0] != content:
            jobs = RowColumns(map(scheduling_pb2.SnapshotJobPrediction.FromString, of_jobs))
            pairs = PairRows(of_pairs)
            if not pairs.are_valid() or not job_predictions_are_valid(jobs):
                return None
            self._newest_predictions = content, PredictionRows(jobs, pairs)
        return self._newest_predictions[1]

    def keep(self, snapshot: scheduling_pb2.Snapshot, nodes: SnapshotNodes, predictions: PredictionRows) -> str:
        """Keep the base of a snapshot and return its token; empty = it is too large.

        Args:
            snapshot: A snapshot whose rows are all valid.
            nodes: Its nodes.
            predictions: Its predictions.
        """
        message = _without_others(snapshot, _ROWS)
        content = message.SerializeToString(deterministic=True)
        token = hashlib.sha256(content).hexdigest()
        if token in self._bases:
            self._bases.move_to_end(token)
            return token
        if len(content) > BYTES_MAX:
            return ""
        self._bases[token] = SnapshotBase(
            message=message, size_bytes=len(content), nodes=nodes, predictions=predictions
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
    for name in _PREDICTIONS:
        getattr(whole, name).MergeFrom(getattr(base.message, name))
        getattr(whole, name).MergeFrom(getattr(snapshot, name))
    return whole


def _without_others(snapshot: scheduling_pb2.Snapshot, names: Sequence[str]) -> scheduling_pb2.Snapshot:
    """Return a copy with these fields alone: copying all and clearing takes a tenth of the time of copying each row."""
    copy = scheduling_pb2.Snapshot()
    copy.CopyFrom(snapshot)
    for field, _ in snapshot.ListFields():
        if field.name not in names:
            copy.ClearField(field.name)  # type: ignore[arg-type]
    return copy
