"""The jobs of snapshots: what a row says of a job is read when it is first said, not in every snapshot again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.copied_record import make_records
from scheduler_service.core.planning.placement_limits import PlacementLimits
from scheduler_service.core.records import JobRequest
from scheduler_service.grpc_api.snapshots import translate_snapshot
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns
from scheduler_service.grpc_api.snapshots.snapshot_ranges import rows_of_jobs_are_valid

JOBS_MAX: Final = 20_000
"""Jobs that are known from of old; as many newer ones come on top."""
ROW_BYTES_MAX: Final = 1_000
"""Larger rows are read every time."""


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A job as its row states it.

    Attributes:
        request: What it asks for.
        limits: Where it may run; None = anywhere.
        states_figures: The caller states figures of its own.
    """

    request: JobRequest
    limits: PlacementLimits | None
    states_figures: bool


def read_jobs(rows: RowColumns) -> list[ReadJob]:
    """Read valid rows."""
    return make_records(
        ReadJob,
        len(rows),
        request=translate_snapshot.requests(rows),
        limits=translate_snapshot.stated_limits(rows),
        states_figures=translate_snapshot.figures_are_stated(rows),
    )


class KnownJobs:
    """Jobs by what their rows say, word for word; a caller who asks again states most of them as before.

    The newest are kept: once there are enough of them they are the old ones, and what was old is forgotten.
    """

    def __init__(self) -> None:
        self._newest: dict[bytes, ReadJob] = {}
        self._older: dict[bytes, ReadJob] = {}

    @property
    def count(self) -> int:
        """How many are known, at most twice `JOBS_MAX`."""
        return len(self._newest) + len(self._older)

    def read(self, messages: Sequence[scheduling_pb2.SnapshotJob]) -> list[ReadJob] | None:
        """Return some jobs, read; None = a row is not valid."""
        rows = [message.SerializeToString() for message in messages]
        newest, older = self._newest, self._older
        known = [newest.get(row) or older.get(row) for row in rows]
        is_unknown = [*map(not_, known)]
        merged = scheduling_pb2.SnapshotJob.FromString(b"".join(compress(rows, is_unknown)))
        unknown = RowColumns(compress(messages, is_unknown), merged)
        if not rows_of_jobs_are_valid(unknown):
            return None
        new = iter(read_jobs(unknown))
        read = [job or next(new) for job in known]
        for row, job in zip(rows, read, strict=True):
            if row not in newest:
                self._keep(row, job)
        return read

    def _keep(self, row: bytes, job: ReadJob) -> None:
        if len(row) > ROW_BYTES_MAX:
            return
        if len(self._newest) >= JOBS_MAX:
            self._older, self._newest = self._newest, {}
        self._newest[row] = job
