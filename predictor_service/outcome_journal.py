"""What was predicted and what then happened, joined by prediction id: one SQLite file, bounded by rows."""

from __future__ import annotations

import itertools
import json
import logging
import sqlite3
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.job_settings import JobSettings
from predictor_service.sqlite_files import open_database, storage_error

FILE_NAME: Final = "journal.sqlite"
PREDICTIONS_MAX: Final = 200_000
OUTCOMES_MAX: Final = 200_000
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_logger = logging.getLogger(__name__)
BUFFERED_MAX: Final = 128
"""Predictions that may wait in memory to be written together: one transaction for all costs a tenth of one for each."""
_WAITING_MAX: Final = 8 * BUFFERED_MAX
_TRIM_EVERY: Final = 1_000
_FIGURES: Final = struct.Struct("<10d")
"""Value, lower and upper bound of utilization, memory and step time, and the 99 % bound of memory."""
_TARGETS: Final = ("utilization_ratio", "memory_bytes", "step_ms")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS predictions (
  number INTEGER PRIMARY KEY, prediction_id TEXT NOT NULL UNIQUE, at_ms INTEGER NOT NULL, kind TEXT NOT NULL,
  device TEXT NOT NULL, model_version TEXT NOT NULL, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (
  number INTEGER PRIMARY KEY, prediction_id TEXT NOT NULL, at_ms INTEGER NOT NULL, content TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS outcomes_by_prediction ON outcomes (prediction_id);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionEntry:
    """A prediction as it is remembered.

    Attributes:
        prediction_id: Its id.
        at_ms: When it was made.
        kind: job | pairs.
        device: Device type.
        model_version: What answered.
        content: JSON-able: the job's key and estimates, or the ids of the jobs of a pair question.
    """

    prediction_id: str
    at_ms: int
    kind: str
    device: str
    model_version: str
    content: Mapping[str, object]


_SETTINGS: Final = ("global_batch_size", "mode", "precision", "optimizer", "input_wait_ratio")
"""As the entry of a job lists them; what came later stands next to the list."""


def read_entry_settings(content: Mapping[str, Any]) -> JobSettings | None:
    """Returns the settings that the entry of a job keeps, whatever their values; None where it keeps none."""
    settings, bindings = content.get("settings"), content.get("bindings", {})
    if not isinstance(settings, list) or len(settings) != len(_SETTINGS) or not isinstance(bindings, Mapping):
        return None
    plain = dict(zip(_SETTINGS, settings, strict=True))
    return JobSettings(**plain, dimension_bindings=dict(bindings), input_wait_ms=content.get("input_wait_ms", 0.0))


class RecordedOutcome(NamedTuple):
    """What then happened: when it was reported, in milliseconds since 1970, the prediction, and what was measured."""

    at_ms: int
    prediction: PredictionEntry
    outcome: Mapping[str, object]


class PredictionRow(NamedTuple):
    """A prediction as it is written down: the fields of `PredictionEntry`, its content as JSON."""

    prediction_id: str
    at_ms: int
    kind: str
    device: str
    model_version: str
    content: str


def write_figures(*figures: float) -> str:
    """Writes the figures of a job's prediction; JSON takes ten times as long.

    Args:
        figures: Value, lower and upper bound of utilization, memory and step time, then the 99 % bound of memory.
            Content that holds the text under "figures" is found with each under a name of its own.
    """
    return _FIGURES.pack(*figures).hex()


class OutcomeJournal:
    """Remembers predictions and outcomes; safe for many threads.

    Losing the last moments to a crash is accepted (a buffer, and synchronous = NORMAL): nothing is decided by this
    file, and an outcome of a lost prediction is named as unknown.

    Args:
        path: The file; made when absent.
        predictions_max: Predictions kept; the oldest are deleted.

    Raises:
        StoreFormatError: It is no journal.
        StoreFullError: The disk or its owner does not let it be opened.
    """

    def __init__(self, path: Path, predictions_max: int = PREDICTIONS_MAX) -> None:
        self._predictions_max = predictions_max
        self._lock = threading.Lock()
        self._since_trim = 0
        self._buffer_lock = threading.Lock()
        self._buffered: list[PredictionRow] = []
        self._path = path
        self._connection = open_database(path, "synchronous = NORMAL", schema=_SCHEMA)

    def remember(self, entry: PredictionEntry) -> None:
        """Writes down a prediction, at the latest when it is looked for or at the next `flush`."""
        self.remember_row(_row(entry))

    def remember_row(self, row: PredictionRow) -> None:
        """Writes down a prediction; see `remember`."""
        with self._buffer_lock:
            self._buffered.append(row)
            waiting = len(self._buffered)
        # The thread that already writes takes these along next time; no call waits for a disk unless too many rows do.
        if waiting >= BUFFERED_MAX and self._lock.acquire(blocking=waiting >= _WAITING_MAX):
            try:
                self._write_buffered()
            finally:
                self._lock.release()

    def flush(self) -> None:
        """Writes down what waits in memory."""
        with self._lock:
            self._write_buffered()

    def record(self, outcomes: Sequence[tuple[str, Mapping[str, object]]], at_ms: int) -> list[str]:
        """Writes down outcomes, all or none.

        Args:
            outcomes: Prediction id and measured values of each.
            at_ms: Now.

        Returns:
            Ids of predictions that are not known; their outcomes are not kept.

        Raises:
            StoreFullError: The disk takes no more; none of the outcomes is kept.
        """
        with self._lock:
            self._write_buffered()
            unknown = [prediction_id for prediction_id, _ in outcomes if not self._is_known(prediction_id)]
            rows = [
                (prediction_id, at_ms, _ENCODER.encode(content))
                for prediction_id, content in outcomes
                if prediction_id not in unknown
            ]
            try:
                with self._connection:
                    self._connection.execute("BEGIN")
                    self._connection.executemany(
                        "INSERT INTO outcomes (prediction_id, at_ms, content) VALUES (?, ?, ?)", rows
                    )
                    self._trim(len(rows))
            except sqlite3.Error as error:
                raise storage_error(error, self._path) from error
        return list(dict.fromkeys(unknown))

    def find(self, prediction_ids: Sequence[str]) -> dict[str, PredictionEntry]:
        """Predictions by id; ids that are not known are left out."""
        found = {}
        with self._lock:
            self._write_buffered()
            for prediction_id in dict.fromkeys(prediction_ids):
                row = self._connection.execute(
                    "SELECT prediction_id, at_ms, kind, device, model_version, content FROM predictions "
                    "WHERE prediction_id = ?",
                    (prediction_id,),
                ).fetchone()
                if row is not None:
                    found[prediction_id] = _entry(row)
        return found

    def joined(self, newest: int = OUTCOMES_MAX) -> list[tuple[PredictionEntry, Mapping[str, object]]]:
        """The newest outcomes, each with its prediction, oldest first; see `recorded`."""
        return [(entry, outcome) for _, entry, outcome in self.recorded(newest)]

    def recorded(self, newest: int = OUTCOMES_MAX) -> list[RecordedOutcome]:
        """The newest outcomes, oldest first.

        Args:
            newest: How many at most.
        """
        with self._lock:
            self._write_buffered()
            rows = self._connection.execute(
                "SELECT p.prediction_id, p.at_ms, p.kind, p.device, p.model_version, p.content, o.content, o.at_ms "
                "FROM outcomes o JOIN predictions p USING (prediction_id) ORDER BY o.number DESC LIMIT ?",
                (newest,),
            ).fetchall()[::-1]
        return [RecordedOutcome(row[7], _entry(row), json.loads(row[6])) for row in rows]

    def forget(
        self, *, before_ms: int | None = None, job_key: str | None = None, device: str | None = None
    ) -> tuple[int, int]:
        """Deletes predictions that fulfil all conditions that are given, and their outcomes, from the file as well.

        Args:
            before_ms: Made earlier.
            job_key: About this job, alone or among others.
            device: For this device type.

        Returns:
            How many predictions and how many outcomes that were.
        """
        conditions = {"at_ms < ?": before_ms, "instr(content, ?) > 0": job_key, "device = ?": device}
        given = {text: value for text, value in conditions.items() if value is not None}
        chosen = f"FROM predictions WHERE {' AND '.join(given) or 'TRUE'}"
        values = tuple(given.values())
        with self._lock:
            self._write_buffered()
            self._connection.execute("PRAGMA secure_delete = ON")
            with self._connection:
                self._connection.execute("BEGIN")
                outcomes = self._connection.execute(
                    f"DELETE FROM outcomes WHERE prediction_id IN (SELECT prediction_id {chosen})", values
                ).rowcount
                predictions = self._connection.execute(f"DELETE {chosen}", values).rowcount
            self._connection.execute("PRAGMA secure_delete = OFF")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return predictions, outcomes

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._write_buffered()
            self._connection.close()

    def _write_buffered(self) -> None:
        with self._buffer_lock:
            rows, self._buffered = self._buffered, []  # emptied first: a full disk must not fill the memory too
        if not rows:
            return
        try:
            with self._connection:
                self._connection.execute("BEGIN")
                # One statement for all: it lets other threads go on once, not once a row.
                self._connection.execute(
                    "INSERT INTO predictions (prediction_id, at_ms, kind, device, model_version, content) VALUES "
                    + ",".join(["(?, ?, ?, ?, ?, ?)"] * len(rows)),
                    list(itertools.chain.from_iterable(rows)),
                )
                self._trim(len(rows))
        except sqlite3.Error as error:  # predictions go on without their journal
            remedy = f"check room and rights of {self._path.parent}"
            _logger.error("predictions_not_stored", extra={"count": len(rows), "reason": str(error), "remedy": remedy})

    def _is_known(self, prediction_id: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM predictions WHERE prediction_id = ?", (prediction_id,))
        return found.fetchone() is not None

    def _trim(self, written: int) -> None:
        self._since_trim += written
        if self._since_trim < min(_TRIM_EVERY, self._predictions_max):
            return
        self._since_trim = 0
        for table, rows_max in (("predictions", self._predictions_max), ("outcomes", OUTCOMES_MAX)):
            self._connection.execute(
                f"DELETE FROM {table} WHERE number <= (SELECT max(number) FROM {table}) - ?", (rows_max,)
            )


def _row(entry: PredictionEntry) -> PredictionRow:
    content = _ENCODER.encode(entry.content)
    return PredictionRow(entry.prediction_id, entry.at_ms, entry.kind, entry.device, entry.model_version, content)


def _entry(row: Sequence[Any]) -> PredictionEntry:
    return PredictionEntry(
        prediction_id=row[0],
        at_ms=row[1],
        kind=row[2],
        device=row[3],
        model_version=row[4],
        content=_content(row[5]),
    )


def _content(text: str) -> dict[str, object]:
    content: dict[str, object] = json.loads(text)
    if "figures" in content:
        *triples, content["memory_upper_99_bytes"] = _FIGURES.unpack(bytes.fromhex(str(content.pop("figures"))))
        content.update(zip(_TARGETS, triples[::3], strict=True))
        content["intervals"] = [[triples[place], triples[place + 1]] for place in (1, 4, 7)]
    return content
