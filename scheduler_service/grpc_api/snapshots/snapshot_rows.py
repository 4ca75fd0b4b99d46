"""One bad row of a snapshot costs what it describes, never the whole answer.

A pending job is held, a GPU or node takes no job, what a running job holds stays occupied and takes no other job, a
prediction is left out. All of that is reported in a warning. Only a snapshot of too many rows is refused as a whole,
see `translate_snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import Message

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.decisions import Hold
from scheduler_service.core.records import Reason
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api.snapshots import snapshot_ranges
from scheduler_service.grpc_api.snapshots.repeated_rows import RepeatedRows, repeats_ids
from scheduler_service.grpc_api.snapshots.snapshot_pairs import PairRows

INVALID_ROW: Final = "INVALID_ROW"
NAMED_MAX: Final = 20
_HOST_FIELDS: Final = ("cpu_cores", "host_memory_bytes")


@dataclass(slots=True)
class ValidSnapshot:
    """A snapshot with valid rows only, and what became of the others.

    Attributes:
        snapshot: Without the rows that cannot be, or with what is impossible in them taken out; without pairs.
        pairs: What is stated of pairs.
        held: Decisions about the pending jobs that were taken out.
        warnings: The first twenty faults and how many more there are.
    """

    snapshot: scheduling_pb2.Snapshot
    pairs: PairRows
    held: list[Hold] = field(default_factory=list)
    warnings: list[resources_pb2.Warning] = field(default_factory=list)


def drop_invalid_rows(snapshot: scheduling_pb2.Snapshot, pairs: PairRows) -> ValidSnapshot:
    """Take out of a snapshot what cannot be; the argument stays as it is.

    Args:
        snapshot: The snapshot.
        pairs: What it states of pairs: there may be a million of them, so that only those that cannot be are looked at.
    """
    valid = ValidSnapshot(scheduling_pb2.Snapshot(), pairs.without_invalid())
    valid.snapshot.CopyFrom(snapshot)
    valid.snapshot.ClearField("pair_predictions")
    invalid = pairs.invalid()
    if repeats_ids(snapshot):
        rows = RepeatedRows(valid.snapshot)
        rows.merge()
        valid.held += rows.held
        return _RowFilter(valid, rows.messages).run(invalid)
    return _RowFilter(valid).run(invalid)


def bounded_warnings(code: str, messages: Sequence[str]) -> list[resources_pb2.Warning]:
    """Return the first messages as warnings, and one that counts the rest: one mistake in a program makes thousands."""
    shown = [*messages[:NAMED_MAX]]
    if len(messages) > NAMED_MAX:
        shown.append(f"and {len(messages) - NAMED_MAX:,} more like these")
    return [resources_pb2.Warning(code=code, message=message) for message in shown]


class _RowFilter:
    """One pass over the rows of a copy.

    Args:
        valid: The copy; no id occurs twice in it.
        messages: What was found before.
    """

    def __init__(self, valid: ValidSnapshot, messages: Iterable[str] = ()) -> None:
        self._valid = valid
        self._messages = [*messages]
        self._closed_gpu_ids: set[str] = set()
        self._gpu_ids = {gpu.gpu_id for node in valid.snapshot.nodes for gpu in node.gpus}
        self._node_of = {gpu.gpu_id: node for node in valid.snapshot.nodes for gpu in node.gpus}

    def run(self, invalid_pairs: Iterable[scheduling_pb2.SnapshotPairPrediction]) -> ValidSnapshot:
        """Look at every row once.

        Args:
            invalid_pairs: The rows about pairs that were left out.
        """
        snapshot = self._valid.snapshot
        is_timeless = bool(self._tell(snapshot_ranges.own_violations(snapshot), "the newest time of its rows is taken"))
        self._tenants()
        for node in snapshot.nodes:
            self._node(node)
        _keep(snapshot.running, [row for row in snapshot.running if self._running(row)])
        _keep(snapshot.pending, [row for row in snapshot.pending if self._pending(row)])
        of_job, of_pair = snapshot_ranges.job_prediction_violations, snapshot_ranges.pair_prediction_violations
        jobs = [row for row in snapshot.job_predictions if not self._tell(of_job(row), "it is left out")]
        _keep(snapshot.job_predictions, jobs)
        for row in invalid_pairs:
            self._tell(of_pair(row), "it is left out")
        for node in snapshot.nodes:
            for gpu in node.gpus:
                gpu.healthy = gpu.healthy and gpu.gpu_id not in self._closed_gpu_ids
        if is_timeless:
            snapshot.now_ms = _newest_ms(snapshot)
        self._valid.warnings = bounded_warnings(INVALID_ROW, self._messages)
        return self._valid

    def _tell(self, violations: Iterable[FieldViolation], consequence: str) -> list[FieldViolation]:
        found = list(violations)
        self._messages += [f"{one.field}: {one.description}; {consequence}" for one in found]
        return found

    def _tenants(self) -> None:
        """Leave out the rules that cannot be; of several for one tenant the first stays."""
        rules = {one.tenant: one for one in reversed(self._valid.snapshot.tenants)}
        if len(rules) < len(self._valid.snapshot.tenants):
            self._messages.append("snapshot.tenants.tenant: must occur once; the first rule of a tenant is taken")
        kept = [
            one for one in rules.values() if not self._tell(snapshot_ranges.tenant_violations(one), "it has no rule")
        ]
        _keep(self._valid.snapshot.tenants, list(reversed(kept)))

    def _node(self, node: scheduling_pb2.SnapshotNode) -> None:
        violations = self._tell(snapshot_ranges.node_violations(node), "the node takes no job")
        if violations:
            node.schedulable = False
            _clear(node, violations)
        for gpu in node.gpus:
            violations = self._tell(snapshot_ranges.gpu_violations(gpu), "the GPU takes no job")
            if violations:
                gpu.healthy = False
                _clear(gpu, violations)
                # What runs there holds something; a policy divides by it.
                gpu.memory_bytes = max(gpu.memory_bytes, 1)

    def _running(self, row: scheduling_pb2.SnapshotRunning) -> bool:
        """Close the GPUs of a running job that cannot be; False = nothing is left of it."""
        named = list(dict.fromkeys(one.gpu_id for one in row.assignments))
        violations = self._tell(
            snapshot_ranges.running_violations(row, self._gpu_ids), "the job's GPUs take no other job"
        )
        if not violations:
            return True
        known = [gpu_id for gpu_id in named if gpu_id in self._gpu_ids]
        self._closed_gpu_ids.update(known)
        if any(one.field.endswith(_HOST_FIELDS) for one in violations):
            for gpu_id in known:
                self._node_of[gpu_id].schedulable = False
        _clear(row, violations)
        _clear(row.job, violations)
        if any(".settings" in one.field for one in violations):
            row.job.ClearField("graph_sha256")
        del row.assignments[:]
        for rank, gpu_id in enumerate(known):
            row.assignments.add(gpu_id=gpu_id, rank=rank)
        return bool(known)

    def _pending(self, row: scheduling_pb2.SnapshotPending) -> bool:
        """Hold a pending job that cannot be; False = it is held."""
        violations = self._tell(snapshot_ranges.pending_violations(row), "the job is held")
        if violations:
            reason = Reason(code=INVALID_ROW, numbers={"violations_count": len(violations)})
            self._valid.held.append(Hold(job_id=row.job.job_id, reason=reason))
        return not violations


def _newest_ms(snapshot: scheduling_pb2.Snapshot) -> int:
    times = [*(row.submitted_at_ms for row in snapshot.running), *(row.submitted_at_ms for row in snapshot.pending)]
    return max((*times, *(row.started_at_ms for row in snapshot.running)), default=0)


def _keep(rows: object, kept: Sequence[Message]) -> None:
    if len(kept) < len(rows):  # type: ignore[arg-type]
        copies = [type(row).FromString(row.SerializeToString()) for row in kept]
        del rows[:]  # type: ignore[attr-defined]
        rows.extend(copies)  # type: ignore[attr-defined]


def _clear(message: Message, violations: Iterable[FieldViolation]) -> None:
    """Set the fields that are named, or whose part is, back to their defaults."""
    named = {word for one in violations for word in one.field.split(".")}
    for name in message.DESCRIPTOR.fields_by_name:
        if name in named and name not in {"job", "assignments"}:
            message.ClearField(name)
