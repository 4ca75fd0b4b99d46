"""What a service does between answers goes on whatever a disk or another program does to one part of it."""

from __future__ import annotations

import sqlite3
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cotenant.system_clock import now_ms
from predictor_service.commands.model_upkeep import ModelUpkeep, repeat_until
from predictor_service.grpc_api.drift_metrics import DriftMetrics
from predictor_service.grpc_api.metrics import ServiceMetrics
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.intake import open_profiles
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_history import VersionAction, VersionEvent
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.retraining.operations import RetrainingOperations
from predictor_service.settings import Settings
from tests.support.measurement_windows import window
from tests.support.scheduler_process import wait_until


def test_a_part_that_fails_costs_no_other_part_and_is_tried_and_reported_again_when_it_fails_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, rounds = threading.Event(), list[int]()
    failures: list[Exception] = [OSError("no room")] * 2 + [sqlite3.OperationalError("locked")]

    def fail() -> None:
        if failures:
            raise failures.pop(0)

    def count() -> None:
        rounds.append(len(failures))
        if len(rounds) == 5:
            stop.set()

    repeat_until(stop, (fail, count), every_s=0.0)
    assert rounds == [2, 1, 0, 0, 0]
    assert [record.__dict__["reason"] for record in caplog.records] == ["no room", "locked"]


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for the retraining's process writes what it was started with."""
    program, told = tmp_path / "python", tmp_path / "begun"
    end = 'print(json.dumps({"outcome": "unchanged", "version": "", "why": []}))'
    program.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\n"
        f"pathlib.Path({str(told)!r}).open('a').write(' '.join(sys.argv[3:]) + '\\n')\n{end}\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return told


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_service_learns_from_what_ran_once_it_is_time_unless_an_operator_rolled_back(
    tmp_path: Path, begun: Path, rolled_back: bool
) -> None:
    state_dir = tmp_path / "state"
    settings = Settings(state_dir=state_dir, retrain_hours=1)
    with ExitStack() as stack:
        operations = RetrainingOperations(state_dir, tmp_path, 0, lambda: None, lambda: None)
        stack.callback(operations.close)
        registry = stack.enter_context(closing(ModelRegistry(state_dir / "models", "a test")))
        action = VersionAction.ROLLED_BACK if rolled_back else VersionAction.PROMOTED
        registry.history.append(VersionEvent(action=action, version="v", previous="", who="x", why="y"))
        profiles = stack.enter_context(closing(open_profiles(state_dir)))
        profiles.add([window()], now_ms() - 2 * 3_600_000)
        journal = stack.enter_context(closing(OutcomeJournal(state_dir / "journal.sqlite")))
        metrics = ServiceMetrics()
        upkeep = ModelUpkeep(
            settings,
            VersionHolder(registry.store),
            journal,
            shown=metrics.model,
            drift=DriftMetrics(metrics.registry),
            operations=operations,
            profiles=profiles,
        )
        upkeep.watch_drift()
        assert (operations.newest_begun_ms() == 0) is rolled_back
        if not rolled_back:
            wait_until(lambda: begun.exists() and begun.read_text(), "it has begun")
    assert begun.exists() is not rolled_back
    if not rolled_back:
        assert "--from-outcomes" in begun.read_text()
        assert "--why every 1 hours" in begun.read_text()


def test_a_fault_of_the_program_is_not_hidden() -> None:
    def break_down() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        repeat_until(threading.Event(), (break_down,), every_s=0.0)
