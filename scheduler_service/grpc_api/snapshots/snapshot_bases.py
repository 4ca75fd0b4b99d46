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
from typing import Any, Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import UnknownBaseError
from scheduler_service.grpc_api.snapshots.message_columns import unread_rows
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns
from scheduler_service.grpc_api.snapshots.snapshot_jobs import KnownJobs
from scheduler_service.grpc_api.snapshots.snapshot_nodes import SnapshotNodes, read_nodes
from scheduler_service.grpc_api.snapshots.snapshot_pairs import PairRows
from scheduler_service.grpc_api.snapshots.snapshot_predictions import PredictionRows
from scheduler_service.grpc_api.snapshots.snapshot_ranges import job_predictions_are_valid, nodes_are_valid

BASES_MAX: Final = 16
BYTES_MAX: Final = 64 * 2**20
"""Of all that are kept together, as messages; read they take a multiple of it."""
PREDICTIONS: Final = ("job_predictions", "pair_predictions")
ROWS: Final = ("nodes", *PREDICTIONS)
"""What a base has."""
UnreadSnapshot: Final = unread_rows(scheduling_pb2.Snapshot.DESCRIPTOR)
"""A snapshot whose rows are bytes, so that they can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBase:
    """The part of a snapshot that seldom changes, valid and read; never changed.

    Attributes:
        rows: An unread snapshot of these rows alone.
        size_bytes: Of these rows.
    """

    rows: Any
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

    def known_nodes(self, content: Sequence[bytes]) -> SnapshotNodes | None:
        """Return the nodes of the newest whole snapshot if they are equal to those of another one, which are unread."""
        newest = self._newest_nodes
        return newest[1] if newest is not None and newest[0] == content else None

    def read_nodes(self, snapshot: scheduling_pb2.Snapshot, content: Sequence[bytes]) -> SnapshotNodes | None:
        """Return the nodes of a whole snapshot, which are now those of the newest one; None = one is invalid.

        Args:
            snapshot: The snapshot.
            content: Its nodes, unread.
        """
        nodes = RowColumns(snapshot.nodes)
        if not nodes_are_valid(nodes):
            return None
        self._newest_nodes = content, read_nodes(nodes)
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

    def keep(self, snapshot: Any, nodes: SnapshotNodes, predictions: PredictionRows) -> str:  # noqa: ANN401
        """Keep the base of a snapshot and return its token; empty = it is too large.

        Args:
            snapshot: An unread snapshot whose rows are all valid.
            nodes: Its nodes.
            predictions: Its predictions.
        """
        rows = UnreadSnapshot(**{name: getattr(snapshot, name) for name in ROWS})
        content = rows.SerializeToString()
        token = hashlib.sha256(content).hexdigest()
        if token in self._bases:
            self._bases.move_to_end(token)
            return token
        if len(content) > BYTES_MAX:
            return ""
        self._bases[token] = SnapshotBase(rows=rows, size_bytes=len(content), nodes=nodes, predictions=predictions)
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


def changes_base(snapshot: Any) -> bool:  # noqa: ANN401 - no class of it is known to mypy
    """Say whether an unread snapshot states more than jobs, or takes nodes away."""
    return bool(snapshot.removed_node_ids) or any(len(getattr(snapshot, name)) for name in ROWS)


def complete(snapshot: Any, base: SnapshotBase) -> Any:  # noqa: ANN401 - likewise
    """Return an unread snapshot as a whole: the rows of its base, with its own in addition or in place of them."""
    whole = UnreadSnapshot()
    whole.CopyFrom(snapshot)
    gone = {*map(_node_id, snapshot.nodes), *snapshot.removed_node_ids}
    kept = [row for row in base.rows.nodes if not gone or _node_id(row) not in gone]
    # Of several predictions of one name the last counts.
    for name, before in (("nodes", kept), *((name, getattr(base.rows, name)) for name in PREDICTIONS)):
        whole.ClearField(name)
        getattr(whole, name).extend(before)
        getattr(whole, name).extend(getattr(snapshot, name))
    return whole


def _node_id(row: bytes) -> str:
    return scheduling_pb2.SnapshotNode.FromString(row).node_id
