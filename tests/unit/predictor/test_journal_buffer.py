"""Predictions wait in memory for a moment: what that must not cost."""

from __future__ import annotations

import logging
import math
import sqlite3
from pathlib import Path

import pytest

from predictor_service import outcome_journal
from predictor_service.errors import PredictorError, StoreFormatError, StoreFullError
from predictor_service.outcome_journal import (
    BUFFERED_MAX,
    OutcomeJournal,
    PredictionEntry,
    PredictionRow,
    write_figures,
)


def entry(number: int) -> PredictionEntry:
    return PredictionEntry(
        prediction_id=f"p-{number}", at_ms=number, kind="job", device="d", model_version="v", content={"step_ms": 1.0}
    )


def written(path: Path) -> int:
    """What another process sees."""
    with sqlite3.connect(path) as connection:
        (count,) = connection.execute("SELECT count(*) FROM predictions").fetchone()
    connection.close()
    return int(count)


def test_an_outcome_finds_the_prediction_that_still_waits_in_memory(tmp_path: Path) -> None:
    journal = OutcomeJournal(tmp_path / "journal.sqlite")
    journal.remember(entry(1))
    assert written(tmp_path / "journal.sqlite") == 0
    assert journal.record([("p-1", {"step_ms_mean": 2.0}), ("never", {})], at_ms=5) == ["never"]
    assert [found.prediction_id for found, _ in journal.joined()] == ["p-1"]
    journal.close()


def test_predictions_are_written_when_there_are_many_on_request_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = OutcomeJournal(path)
    for number in range(BUFFERED_MAX + 1):
        journal.remember(entry(number))
    assert written(path) == BUFFERED_MAX
    journal.flush()
    assert written(path) == BUFFERED_MAX + 1
    journal.remember(entry(-1))
    journal.close()
    assert written(path) == BUFFERED_MAX + 2


def test_figures_that_json_does_not_know_are_found_again(tmp_path: Path) -> None:
    journal = OutcomeJournal(tmp_path / "journal.sqlite")
    figures = [0.5, 0.25, 1.0, 1e10, 1e9, math.inf, 0.1, 0.0, 1e300, math.inf]
    content = f'{{"figures":"{write_figures(*figures)}"}}'
    journal.remember_row(PredictionRow("p", 1, "job", "d", "v", content))
    assert journal.find(["p"])["p"].content == {
        "utilization_ratio": 0.5,
        "memory_bytes": 1e10,
        "step_ms": 0.1,
        "memory_upper_99_bytes": math.inf,
        "intervals": [[0.25, 1.0], [1e9, math.inf], [0.0, 1e300]],
    }
    journal.close()


def test_a_full_disk_costs_the_journal_not_the_predictions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.sqlite"
    journal = OutcomeJournal(path)
    journal._connection.execute("PRAGMA query_only = ON")  # every write fails, as on a full disk
    with caplog.at_level(logging.ERROR):
        for number in range(10 * BUFFERED_MAX):
            journal.remember(entry(number))
    assert len(caplog.records) == 10
    assert len(journal._buffered) < BUFFERED_MAX
    journal._connection.execute("PRAGMA query_only = OFF")
    journal.remember(entry(-1))
    journal.close()
    assert written(path) == 1


@pytest.mark.parametrize(
    ("hindrance", "expected"),
    [
        ("PRAGMA max_page_count = 1", StoreFullError),
        ("CREATE TRIGGER t BEFORE DELETE ON outcomes BEGIN SELECT RAISE(ABORT, 'no'); END", StoreFormatError),
    ],
    ids=["full", "while trimming"],
)
def test_outcomes_are_kept_all_or_none_and_what_the_file_refuses_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hindrance: str, expected: type[PredictorError]
) -> None:
    monkeypatch.setattr(outcome_journal, "OUTCOMES_MAX", 2)
    journal = OutcomeJournal(tmp_path / "journal.sqlite", predictions_max=1)
    journal.remember(entry(1))
    journal.flush()
    journal._connection.execute(hindrance)
    with pytest.raises(expected):
        journal.record([("p-1", {"step_ms_mean": 1.0, "quality_flags": ["x" * 2000]})] * 30, at_ms=5)
    assert journal.joined(newest=99) == []
    journal.close()
