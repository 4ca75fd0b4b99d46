"""Columns of rows: what no row states is not asked of each, and reads as it would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from google.protobuf.descriptor import FieldDescriptor

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.records import JobRequest
from scheduler_service.grpc_api.snapshots import translate_snapshot
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns
from tests.support.cases import for_each
from tests.support.random_snapshots import SnapshotMaker, break_somewhere


def jobs_of(seed: int) -> Iterator[scheduling_pb2.SnapshotJob]:
    snapshot = SnapshotMaker(seed).make()
    break_somewhere(snapshot, seed)
    yield from (row.job for row in snapshot.running)
    yield from (row.job for row in snapshot.pending)


def merged(rows: list[scheduling_pb2.SnapshotJob]) -> scheduling_pb2.SnapshotJob:
    return scheduling_pb2.SnapshotJob.FromString(b"".join(row.SerializeToString() for row in rows))


@for_each("seed", range(40))
def test_columns_of_merged_rows_are_those_of_the_rows(seed: int) -> None:
    rows = [*jobs_of(seed)]
    known, plain = RowColumns(rows, merged(rows)), RowColumns(rows)
    for field in scheduling_pb2.SnapshotJob.DESCRIPTOR.fields:
        # A field that is repeated reads as an empty tuple, where it would be an empty list.
        assert [*map(repr, map(_plain, known[field.name]))] == [*map(repr, map(_plain, plain[field.name]))], field.name
        if field.has_presence:
            assert known.has(field.name) == plain.has(field.name), field.name
    names, optional_names = ("gpus", "priority", "allowed_devices", "queue"), ("settings", "stated_slowdown_ratio")
    assert known.stating_any(names, optional_names) == plain.stating_any(names, optional_names)
    assert known.stating_any((), optional_names) == plain.stating_any((), optional_names)


def _plain(value: object) -> object:
    is_listed = hasattr(value, "__iter__") and not isinstance(value, str)
    return [*value] if is_listed else value  # type: ignore[misc]


class CountingRow:
    """A row that counts the fields that are asked of it."""

    def __init__(self, row: scheduling_pb2.SnapshotJob) -> None:
        self._row = row
        self.names: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.names.append(name)
        return getattr(self._row, name)


def test_what_no_row_states_is_asked_of_none() -> None:
    rows = [scheduling_pb2.SnapshotJob(job_id="a", gpus=2), scheduling_pb2.SnapshotJob(job_id="b", priority=3)]
    asked = [CountingRow(row) for row in rows]
    columns = RowColumns(asked, merged(rows))  # type: ignore[arg-type]
    assert (columns["gpus"], columns["priority"], columns["queue"]) == ([2, 0], [0, 3], ["", ""])
    assert (columns["cpu_cores"], columns["allowed_devices"]) == ([0.0, 0.0], [(), ()])
    assert columns.has("settings") == [False, False]
    assert columns.stating_any(("queue", "array_index"), ("settings",)) == [False, False]
    assert columns.stating_any(("queue", "priority"), ("settings",)) == [False, True]
    assert [row.names for row in asked] == [["gpus", "priority"]] * 2


_OF_REQUESTS = {one.name for one in fields(JobRequest)}
_VALUES = {
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_INT32: 3,
    FieldDescriptor.TYPE_INT64: 3,
    FieldDescriptor.TYPE_DOUBLE: 0.5,
    FieldDescriptor.TYPE_STRING: "text",
}


@for_each(
    "field",
    [
        field.name
        for field in scheduling_pb2.SnapshotJob.DESCRIPTOR.fields
        if field.name in _OF_REQUESTS and field.type in _VALUES and not field.is_repeated
    ],
)
def test_what_a_row_states_of_a_job_is_known_of_it_by_row_and_by_column(field: str) -> None:
    value = _VALUES[scheduling_pb2.SnapshotJob.DESCRIPTOR.fields_by_name[field].type]
    stating, silent = scheduling_pb2.SnapshotJob(**{field: value}), scheduling_pb2.SnapshotJob()  # type: ignore[arg-type]
    for read in (translate_snapshot.request, lambda row: translate_snapshot.requests(RowColumns([row]))[0]):
        assert getattr(read(stating), field) == value
        assert getattr(read(silent), field) != value
