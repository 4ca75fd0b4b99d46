"""A snapshot as it can be decided on: its valid rows, read once; what was read of an earlier one is not read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import DecodeError

from cotenant.request_decoding import MALFORMED_MESSAGE
from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import FieldViolation, InvalidRequestError
from scheduler_service.grpc_api import validation
from scheduler_service.grpc_api.snapshots import translate_snapshot
from scheduler_service.grpc_api.snapshots.repeated_rows import repeats
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns
from scheduler_service.grpc_api.snapshots.snapshot_bases import (
    PREDICTIONS,
    ROWS,
    SnapshotBases,
    UnreadSnapshot,
    changes_base,
    complete,
)
from scheduler_service.grpc_api.snapshots.snapshot_jobs import KnownJobs, ReadJob, read_jobs
from scheduler_service.grpc_api.snapshots.snapshot_nodes import SnapshotNodes, read_nodes
from scheduler_service.grpc_api.snapshots.snapshot_pairs import PairRows
from scheduler_service.grpc_api.snapshots.snapshot_predictions import PredictionRows, SnapshotPredictions
from scheduler_service.grpc_api.snapshots.snapshot_ranges import running_and_pending_are_valid
from scheduler_service.grpc_api.snapshots.snapshot_rows import ValidSnapshot, drop_invalid_rows
from scheduler_service.grpc_api.snapshots.unread_request import UnreadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSnapshot:
    """What can be decided on.

    Attributes:
        valid: The valid rows.
        nodes: The nodes among them.
        messages: All jobs among them, running ones first.
        jobs: The same jobs, read.
        running: The rows of those that run.
        pending: The rows of those that wait.
        store: The predictions among them, and those that the predictor is asked for.
        base_token: Names what was kept of them; empty = nothing.
    """

    valid: ValidSnapshot
    nodes: SnapshotNodes
    messages: Sequence[scheduling_pb2.SnapshotJob]
    jobs: Sequence[ReadJob]
    running: RowColumns
    pending: RowColumns
    store: SnapshotPredictions
    base_token: str = ""

    @property
    def keys(self) -> list[str]:
        """The key of each job."""
        return [job.request.key for job in self.jobs]


def read_snapshot(request: UnreadRequest, bases: SnapshotBases) -> ReadSnapshot:
    """Check a snapshot and return what can be decided on, with the predictions in it.

    Raises:
        UnknownBaseError: It names a base that is not kept.
        InvalidRequestError: It has too many rows, or is no message.
    """
    asked = request.asked
    try:
        unread = UnreadSnapshot.FromString(request.snapshot)
        base = bases.find(unread.base_token) if unread.base_token else None
        if base is not None and not changes_base(unread):
            snapshot = _parsed(unread)
            read = _read_jobs(asked, snapshot, base.nodes, base.predictions, bases.jobs)
            if read is not None:
                return replace(read, base_token=unread.base_token if asked.keep_base else "")
        return _read_whole(asked, unread if base is None else complete(unread, base), bases)
    except DecodeError as error:
        raise InvalidRequestError(FieldViolation(field="request", description=MALFORMED_MESSAGE)) from error


def _read_whole(asked: scheduling_pb2.DecideRequest, unread: Any, bases: SnapshotBases) -> ReadSnapshot:  # noqa: ANN401
    """Return a snapshot that is there as a whole; only what is not known of the one before is made messages of."""
    content, of_jobs, of_pairs = ([*getattr(unread, name)] for name in ROWS)
    nodes = bases.known_nodes(content)
    snapshot = _parsed(unread, *PREDICTIONS, *(("nodes",) if nodes is not None else ()))
    predictions = bases.read_predictions(of_jobs, of_pairs)
    nodes = nodes or bases.read_nodes(snapshot, content)
    if nodes is not None and predictions is not None:
        read = _read_jobs(asked, snapshot, nodes, predictions, bases.jobs)
        if read is not None:
            return replace(read, base_token=bases.keep(unread, nodes, predictions) if asked.keep_base else "")
    return _read_valid_rows(asked, _parsed(unread, "pair_predictions"), PairRows(of_pairs))


def _parsed(unread: Any, *without: str) -> scheduling_pb2.Snapshot:  # noqa: ANN401
    """Return the messages of an unread snapshot.

    Args:
        unread: The snapshot.
        without: Fields that are left out.
    """
    rest = UnreadSnapshot(**{field.name: value for field, value in unread.ListFields() if field.name not in without})
    snapshot = scheduling_pb2.Snapshot.FromString(rest.SerializeToString())
    validation.require(translate_snapshot.snapshot_violations(snapshot))
    return snapshot


def _read_jobs(
    asked: scheduling_pb2.DecideRequest,
    snapshot: scheduling_pb2.Snapshot,
    nodes: SnapshotNodes,
    predictions: PredictionRows,
    known: KnownJobs,
) -> ReadSnapshot | None:
    """Return a snapshot of which nothing but the jobs is to be read; None = a row of them cannot be."""
    if asked.explain:
        validation.require(_explanation_violations(asked, snapshot, len(nodes.gpus)))
    running, pending = RowColumns(snapshot.running), RowColumns(snapshot.pending)
    if not running_and_pending_are_valid(snapshot, running, pending, nodes.gpus.keys()):
        return None
    messages = [*running["job"], *pending["job"]]
    jobs = known.read(messages)
    if jobs is None or repeats([job.request.job_id for job in jobs]):
        return None
    store = SnapshotPredictions(predictions, _stating(jobs, messages), nodes.sharing)
    return ReadSnapshot(
        valid=ValidSnapshot(snapshot, predictions.pairs),
        nodes=nodes,
        messages=messages,
        jobs=jobs,
        running=running,
        pending=pending,
        store=store,
    )


def _read_valid_rows(
    asked: scheduling_pb2.DecideRequest, snapshot: scheduling_pb2.Snapshot, pairs: PairRows
) -> ReadSnapshot:
    """Return what can be decided on of a snapshot with rows that cannot be."""
    if asked.explain:
        gpus = sum(len(node.gpus) for node in snapshot.nodes)
        validation.require(_explanation_violations(asked, snapshot, gpus))
    valid = drop_invalid_rows(snapshot, pairs)
    running, pending = RowColumns(valid.snapshot.running), RowColumns(valid.snapshot.pending)
    messages = RowColumns([*running["job"], *pending["job"]])
    nodes, jobs = read_nodes(RowColumns(valid.snapshot.nodes)), read_jobs(messages)
    return ReadSnapshot(
        valid=valid,
        nodes=nodes,
        messages=messages.rows,
        jobs=jobs,
        running=running,
        pending=pending,
        store=SnapshotPredictions(
            PredictionRows(RowColumns(valid.snapshot.job_predictions), valid.pairs),
            _stating(jobs, messages.rows),
            nodes.sharing,
        ),
    )


def _stating(
    jobs: Sequence[ReadJob], messages: Sequence[scheduling_pb2.SnapshotJob]
) -> Mapping[str, scheduling_pb2.SnapshotJob]:
    """Return the jobs of which the caller states figures, by key; of equal ones the first counts."""
    return {
        job.request.key: row for job, row in zip(reversed(jobs), reversed(messages), strict=True) if job.states_figures
    }


def _explanation_violations(
    asked: scheduling_pb2.DecideRequest, snapshot: scheduling_pb2.Snapshot, gpus: int
) -> Iterator[FieldViolation]:
    looks = (1 + len(asked.compared_policies)) * len(snapshot.pending) * gpus
    return translate_snapshot.explanation_violations(looks)
