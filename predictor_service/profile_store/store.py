"""The profile store: windows in one SQLite file, bounded by rows, by days, and by rows of one job in an hour."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from predictor_service.errors import StoreFormatError
from predictor_service.profile_store.measurement_window import (
    MeasurementWindow,
    StoredMeasurementWindow,
    decode,
    encode,
    find_fault,
)
from predictor_service.sqlite_files import open_database, storage_error

FILE_NAME: Final = "profiles.sqlite"
ROWS_MAX: Final = 100_000
DAYS_KEPT: Final = 90
ROWS_PER_JOB_HOUR_MAX: Final = 60
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
# Each one makes the format of its place, from 1, out of the one before. What was released is never changed.
_MIGRATIONS: Final = (
    """
    CREATE TABLE stretches (
      number INTEGER PRIMARY KEY, stretch_id TEXT NOT NULL UNIQUE, at_ms INTEGER NOT NULL, device TEXT NOT NULL,
      job_key TEXT NOT NULL, content TEXT NOT NULL);
    CREATE INDEX stretches_by_job ON stretches (job_key, at_ms);
    """,
    """
    CREATE TABLE refusals (reason TEXT PRIMARY KEY, stretches INTEGER NOT NULL);
    CREATE INDEX stretches_by_time ON stretches (at_ms);
    """,
)
FORMAT_VERSION: Final = len(_MIGRATIONS)
KEEPS_NONE: Final = "this predictor keeps none"
TOO_MANY: Final = f"more than {ROWS_PER_JOB_HOUR_MAX} of one job within an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeResult:
    """What became of windows that were handed in.

    Attributes:
        recorded: Now kept.
        repeated: Kept before under the same id.
        refused: Id and reason of each that is not kept.
        new: Those now kept, in their order.
    """

    recorded: int
    repeated: int
    refused: Sequence[tuple[str, str]]
    new: Sequence[MeasurementWindow] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """What a store holds.

    Attributes:
        windows: Kept now.
        jobs: Different jobs among them.
        oldest_ms: When the oldest arrived; 0 = none.
        newest_ms: When the newest arrived; 0 = none.
        file_bytes: Size of the file.
        refused: Windows refused since the store was made, by reason.
    """

    windows: int
    jobs: int
    oldest_ms: int
    newest_ms: int
    file_bytes: int
    refused: dict[str, int]


class ProfileStore:
    """Windows on disk; safe for many threads and processes.

    What is added is on disk, all or nothing, when the call returns. Deleted content is overwritten.

    Args:
        path: The file; made when absent.
        rows_max: Windows kept; the oldest are deleted.
        days: Days that they are kept; 0 = nothing is kept at all.

    Raises:
        StoreFormatError: The file was written by a newer program, or is no store.
        StoreFullError: The disk or its owner does not let it be opened.
    """

    def __init__(self, path: Path, *, rows_max: int = ROWS_MAX, days: int = DAYS_KEPT) -> None:
        self._path = path
        self._rows_max = rows_max
        self._days = days
        self._lock = threading.Lock()
        self._connection = open_database(path, "synchronous = FULL", "secure_delete = ON")
        try:
            self._migrate()
        except BaseException:
            self._connection.close()
            raise
        self._seen_version = self._data_version()

    def was_changed_elsewhere(self) -> bool:
        """Whether another program has changed the file since it was opened, or since this was asked before."""
        version = self._data_version()
        was_changed = version != self._seen_version
        self._seen_version = version
        return was_changed

    def add(self, windows: Sequence[MeasurementWindow], at_ms: int) -> IntakeResult:
        """Keeps windows, all of one call or none.

        Args:
            windows: What was measured.
            at_ms: Now.

        Raises:
            StoreFullError: The disk takes no more; nothing of this call is kept, and nothing else is lost.
        """
        if not self._days:
            return IntakeResult(recorded=0, repeated=0, refused=[(item.window_id, KEEPS_NONE) for item in windows])
        refused: list[tuple[str, str]] = []
        new: list[MeasurementWindow] = []
        repeated = 0
        with self._writing() as connection:
            for window in windows:
                fault = find_fault(window)
                if not fault and _is_kept(connection, window.window_id):
                    repeated += 1
                    continue
                fault = fault or ("" if _has_room(connection, window.job.key, at_ms) else TOO_MANY)
                if fault:
                    refused.append((window.window_id, fault))
                else:
                    _insert(connection, window, at_ms)
                    new.append(window)
            _count(connection, Counter(reason for _, reason in refused))
            self._shrink(connection, at_ms)
        return IntakeResult(recorded=len(new), repeated=repeated, refused=refused, new=new)

    def count_refused(self, reason: str) -> None:
        """Counts one that was refused before it became a window.

        Raises:
            StoreFullError: The disk takes no more.
        """
        with self._writing() as connection:
            _count(connection, Counter({reason: 1}))

    def read(self, newest: int = -1) -> list[StoredMeasurementWindow]:
        """The newest windows, oldest first; what this program cannot read comes with its fault.

        Args:
            newest: How many at most; -1 = all.
        """
        with self._lock:
            rows = self._connection.execute(
                "SELECT stretch_id, content, at_ms FROM stretches ORDER BY number DESC LIMIT ?", (newest,)
            ).fetchall()[::-1]
        return [replace(decode(window_id, content), at_ms=at_ms) for window_id, content, at_ms in rows]

    def forget(self, *, before_ms: int | None = None, job_key: str | None = None, device: str | None = None) -> int:
        """Deletes what fulfils all conditions that are given, from the file as well.

        Args:
            before_ms: Arrived earlier.
            job_key: Of this job.
            device: Measured on this device type.

        Returns:
            How many windows that were.

        Raises:
            StoreFullError: The disk takes no more.
        """
        conditions = {"at_ms < ?": before_ms, "job_key = ?": job_key, "device = ?": device}
        given = {text: value for text, value in conditions.items() if value is not None}
        where = " AND ".join(given) or "TRUE"
        with self._writing() as connection:
            deleted = connection.execute(f"DELETE FROM stretches WHERE {where}", tuple(given.values())).rowcount
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return deleted

    def prune(self, at_ms: int) -> None:
        """Deletes what is too old or too much.

        Raises:
            StoreFullError: The disk takes no more.
        """
        with self._writing() as connection:
            self._shrink(connection, at_ms)

    def status(self) -> StoreStatus:
        """Counts what is there."""
        with self._lock:
            windows, jobs, oldest_ms, newest_ms = self._connection.execute(
                "SELECT count(*), count(DISTINCT job_key), ifnull(min(at_ms), 0), ifnull(max(at_ms), 0) FROM stretches"
            ).fetchone()
            refused = dict(self._connection.execute("SELECT reason, stretches FROM refusals ORDER BY reason"))
        return StoreStatus(
            windows=windows,
            jobs=jobs,
            oldest_ms=oldest_ms,
            newest_ms=newest_ms,
            file_bytes=self._path.stat().st_size,
            refused=refused,
        )

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    def _data_version(self) -> int:
        with self._lock:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _migrate(self) -> None:
        """Brings the file to the present format, step by step; a step is there whole or not at all."""
        with self._writing() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > FORMAT_VERSION:
                raise StoreFormatError(
                    f"{self._path} has format {version}, this program knows up to {FORMAT_VERSION}",
                    remedy="use the newer program, or move the file away; a new one is made",
                )
            for step in _MIGRATIONS[version:]:
                for statement in step.split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def _shrink(self, connection: sqlite3.Connection, at_ms: int) -> None:
        connection.execute("DELETE FROM stretches WHERE at_ms < ?", (at_ms - self._days * DAY_MS,))
        connection.execute(
            "DELETE FROM stretches WHERE number IN "
            "(SELECT number FROM stretches ORDER BY number DESC LIMIT -1 OFFSET ?)",
            (self._rows_max,),
        )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: kept whole, or as if it had never begun."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise storage_error(error, self._path) from error
                raise


def _is_kept(connection: sqlite3.Connection, window_id: str) -> bool:
    return connection.execute("SELECT 1 FROM stretches WHERE stretch_id = ?", (window_id,)).fetchone() is not None


def _has_room(connection: sqlite3.Connection, job_key: str, at_ms: int) -> bool:
    (count,) = connection.execute(
        "SELECT count(*) FROM stretches WHERE job_key = ? AND at_ms > ?", (job_key, at_ms - HOUR_MS)
    ).fetchone()
    return bool(count < ROWS_PER_JOB_HOUR_MAX)


def _insert(connection: sqlite3.Connection, window: MeasurementWindow, at_ms: int) -> None:
    connection.execute(
        "INSERT INTO stretches (stretch_id, at_ms, device, job_key, content) VALUES (?, ?, ?, ?, ?)",
        (window.window_id, at_ms, window.device, window.job.key, encode(window)),
    )


def _count(connection: sqlite3.Connection, refused: Counter[str]) -> None:
    connection.executemany(
        "INSERT INTO refusals (reason, stretches) VALUES (?, ?) "
        "ON CONFLICT (reason) DO UPDATE SET stretches = stretches + excluded.stretches",
        list(refused.items()),
    )
