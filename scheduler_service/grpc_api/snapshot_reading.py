"""A snapshot as it can be decided on: its valid rows, read once; what was read of an earlier one is not read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api import translate_snapshot, validation
from scheduler_service.grpc_api.repeated_rows import repeats
from scheduler_service.grpc_api.row_columns import RowColumns
from scheduler_service.grpc_api.snapshot_bases import SnapshotBases, UnreadSnapshot, changes_base, complete
from scheduler_service.grpc_api.snapshot_jobs import KnownJobs, ReadJob, read_jobs
from scheduler_service.grpc_api.snapshot_nodes import SnapshotNodes, gpu_rows, read_nodes
from scheduler_service.grpc_api.snapshot_pairs import PairRows
from scheduler_service.grpc_api.snapshot_predictions import PredictionRows, SnapshotPredictions
from scheduler_service.grpc_api.snapshot_ranges import running_and_pending_are_valid
from scheduler_service.grpc_api.snapshot_rows import ValidSnapshot, drop_invalid_rows


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


def read_snapshot(request: scheduling_pb2.DecideRequest, bases: SnapshotBases) -> ReadSnapshot:
    """Check a snapshot and return what can be decided on, with the predictions in it.

    Raises:
        UnknownBaseError: It names a base that is not kept.
    """
    snapshot = request.snapshot
    base = bases.find(snapshot.base_token) if snapshot.base_token else None
    if base is not None and not changes_base(snapshot):
        validation.require(translate_snapshot.snapshot_violations(snapshot))
        read = _read_jobs(request, snapshot, base.nodes, base.predictions, bases.jobs)
        if read is not None:
            return replace(read, base_token=snapshot.base_token if request.keep_base else "")
    whole = snapshot if base is None else complete(snapshot, base)
    validation.require(translate_snapshot.snapshot_violations(whole))
    unread = UnreadSnapshot.FromString(whole.SerializeToString())
    nodes = bases.read_nodes(whole, [*unread.nodes])
    predictions = bases.read_predictions([*unread.job_predictions], [*unread.pair_predictions])
    if nodes is not None and predictions is not None:
        read = _read_jobs(request, whole, nodes, predictions, bases.jobs)
        if read is not None:
            return replace(read, base_token=bases.keep(whole, nodes, predictions) if request.keep_base else "")
    return _read_valid_rows(request, whole, PairRows([*unread.pair_predictions]))


def _read_jobs(
    request: scheduling_pb2.DecideRequest,
    snapshot: scheduling_pb2.Snapshot,
    nodes: SnapshotNodes,
    predictions: PredictionRows,
    known: KnownJobs,
) -> ReadSnapshot | None:
    """Return a snapshot of which nothing but the jobs is to be read; None = a row of them cannot be."""
    if request.explain:
        validation.require(_explanation_violations(request, len(nodes.gpus)))
    running, pending = RowColumns(snapshot.running), RowColumns(snapshot.pending)
    if not running_and_pending_are_valid(snapshot, running, pending, nodes.gpus.keys()):
        return None
    messages = [*running["job"], *pending["job"]]
    jobs = known.read(messages)
    if jobs is None or repeats([job.request.job_id for job in jobs]):
        return None
    store = SnapshotPredictions(predictions, _stating(jobs, messages))
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
    request: scheduling_pb2.DecideRequest, snapshot: scheduling_pb2.Snapshot, pairs: PairRows
) -> ReadSnapshot:
    """Return what can be decided on of a snapshot with rows that cannot be."""
    if request.explain:
        gpus = sum(len(node.gpus) for node in snapshot.nodes)
        validation.require(_explanation_violations(request, gpus))
    valid = drop_invalid_rows(snapshot, pairs)
    running, pending = RowColumns(valid.snapshot.running), RowColumns(valid.snapshot.pending)
    messages = RowColumns([*running["job"], *pending["job"]])
    nodes, jobs = RowColumns(valid.snapshot.nodes), read_jobs(messages)
    return ReadSnapshot(
        valid=valid,
        nodes=read_nodes(nodes, gpu_rows(nodes)),
        messages=messages.rows,
        jobs=jobs,
        running=running,
        pending=pending,
        store=SnapshotPredictions(
            PredictionRows(RowColumns(valid.snapshot.job_predictions), valid.pairs), _stating(jobs, messages.rows)
        ),
    )


def _stating(
    jobs: Sequence[ReadJob], messages: Sequence[scheduling_pb2.SnapshotJob]
) -> Mapping[str, scheduling_pb2.SnapshotJob]:
    """Return the jobs of which the caller states figures, by key; of equal ones the first counts."""
    return {
        job.request.key: row for job, row in zip(reversed(jobs), reversed(messages), strict=True) if job.states_figures
    }


def _explanation_violations(request: scheduling_pb2.DecideRequest, gpus: int) -> Iterator[FieldViolation]:
    looks = (1 + len(request.compared_policies)) * len(request.snapshot.pending) * gpus
    return translate_snapshot.explanation_violations(looks)
