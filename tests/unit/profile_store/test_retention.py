"""What is old leaves once an hour, also from the journal, also where nothing new arrives."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry
from predictor_service.profile_store.retention import EVERY_MS, Retention
from predictor_service.profile_store.store import DAY_MS, DAYS_KEPT, ProfileStore
from tests.support.measurement_windows import NOW_MS, window


def prediction(name: str, at_ms: int) -> PredictionEntry:
    return PredictionEntry(
        prediction_id=name, at_ms=at_ms, kind="job", device="d", model_version="v", content={"job_key": "k"}
    )


def test_old_profiles_predictions_and_outcomes_leave_together(tmp_path: Path) -> None:
    with (
        closing(ProfileStore(tmp_path / "profiles.sqlite", days=2)) as store,
        closing(OutcomeJournal(tmp_path / "journal.sqlite")) as journal,
    ):
        retention = Retention(store, journal, days=2)
        for number, at_ms in enumerate((NOW_MS, NOW_MS + DAY_MS)):
            store.add([window(number)], at_ms)
            journal.remember(prediction(str(number), at_ms))
            journal.record([(str(number), {"step_ms_mean": 1.0})], at_ms)
        retention.look(NOW_MS + DAY_MS)
        assert store.status().windows == 2
        retention.look(NOW_MS + DAY_MS + EVERY_MS - 1)
        retention.look(NOW_MS + 2 * DAY_MS + 1)
        assert store.status().windows == 1
        assert [entry.prediction_id for entry, _ in journal.joined()] == ["1"]


def test_a_journal_without_profiles_keeps_its_usual_time(tmp_path: Path) -> None:
    with (
        closing(ProfileStore(tmp_path / "profiles.sqlite", days=0)) as store,
        closing(OutcomeJournal(tmp_path / "journal.sqlite")) as journal,
    ):
        journal.remember(prediction("p", NOW_MS))
        Retention(store, journal, days=0).look(NOW_MS + DAYS_KEPT * DAY_MS - 1)
        assert "p" in journal.find(["p"])
        Retention(store, journal, days=0).look(NOW_MS + DAYS_KEPT * DAY_MS + 1)
        assert journal.find(["p"]) == {}


def test_a_disk_that_refuses_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        closing(ProfileStore(tmp_path / "profiles.sqlite")) as store,
        closing(OutcomeJournal(tmp_path / "journal.sqlite")) as journal,
    ):
        store.add([window(1)], NOW_MS)
        store._connection.execute("PRAGMA query_only = ON")
        Retention(store, journal, days=1).look(NOW_MS + 2 * DAY_MS)
        assert "old_profiles_not_deleted" in caplog.text
        assert store.status().windows == 1
