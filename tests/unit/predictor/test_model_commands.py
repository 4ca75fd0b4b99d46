"""The verbs about models: data on stdout, one exit status for each kind of end."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from predictor_service.commands.program import main, program
from predictor_service.errors import PredictorError
from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_store import VersionStore
from tests.support.invented_profiles import solo_rows, write_profiles
from tests.support.measured_dataset import write_dataset
from tests.support.predictor_service import trained_store


@pytest.fixture
def state(tmp_path: Path) -> Path:
    shutil.copytree(trained_store()._versions.parent, tmp_path / "state" / "models")
    return tmp_path / "state"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, arguments)


def answer(*arguments: str) -> Any:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def served(state: Path) -> str:
    name = VersionStore(state / "models").current()
    assert name is not None
    return name


def test_list_shows_versions_and_history(state: Path) -> None:
    ModelRegistry(state / "models", "its owner").close()
    listed = answer("models", "list", "--state-dir", str(state))
    assert listed["versions"] == [{"version": served(state), "served": True}]
    assert [event["action"] for event in listed["history"]] == ["promoted"]
    lines = run("models", "list", "--state-dir", str(state)).stdout.splitlines()
    assert lines[:2] == ["  VERSION           (* = served)", f"* {served(state)}"]
    assert lines[3].split() == ["WHEN", "ACTION", "VERSION", "WHO:", "WHY"]
    places = [lines[3].index(title) for title in ("ACTION", "VERSION", "WHO:")]
    assert [lines[4][place - 1 : place + 1].lstrip() for place in places] == ["p", served(state)[0], "i"]


@pytest.mark.parametrize("verb", [("list",), ("show",), ("diff",)])
def test_what_only_reads_writes_nothing(state: Path, verb: tuple[str, ...]) -> None:
    ModelRegistry(state / "models", "its owner").close()

    def content() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (state, *state.rglob("*"))}

    before = content()
    names = [served(state)] if verb == ("diff",) else []
    answer("models", *verb, *names, "--state-dir", str(state))
    assert content() == before


def test_show_prints_the_card_or_the_manifest(state: Path) -> None:
    assert run("models", "show", "--state-dir", str(state)).stdout.startswith("# Model version")
    manifest = answer("models", "show", served(state)[:6], "--state-dir", str(state))
    assert manifest["version"] == served(state)


@pytest.mark.parametrize("verb", [("list",), ("show",), ("rollback", "--why", "worse")])
def test_a_folder_without_models_is_named_and_not_made(
    verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["predictor_service", "models", *verb, "--state-dir", str(tmp_path / "none")])
    assert main() == 3
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "none has no model versions; train the first one with `cotenant retrain`" in captured.err
    assert not (tmp_path / "none").exists()


def test_an_unknown_version_is_not_found(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["predictor_service", "models", "show", "zzz", "--state-dir", str(state)])
    assert main() == 3
    assert "no model version 'zzz'" in capsys.readouterr().err


def test_diff_of_a_version_with_itself_is_empty(state: Path) -> None:
    assert answer("models", "diff", served(state), "--state-dir", str(state))["differences"] == []


def test_diff_of_a_version_with_itself_says_so(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["predictor_service", "models", "diff", served(state), "--state-dir", str(state)])
    assert main() == 0
    assert capsys.readouterr().out == f"{served(state)} is the version itself\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("models", "promote", "nothing", "--why", "x"),
        ("models", "rollback", "--why", "x"),
        ("models", "show", "nothing"),
        ("models", "drift"),
        ("retrain", "--from-outcomes"),
    ],
)
def test_what_is_not_there_is_refused_with_a_remedy(state: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--state-dir", str(state))
    assert isinstance(result.exception, PredictorError)
    assert result.exception.remedy


def test_drift_exits_with_4_while_an_alarm_is_on(state: Path) -> None:
    journal = OutcomeJournal(state / "journal.sqlite")
    for number in range(30):
        journal.remember(_prediction(number))
    journal.record([(str(number), {"step_ms_mean": 99.0}) for number in range(30)], at_ms=1)
    journal.close()
    result = run("models", "drift", "--state-dir", str(state), "-o", "json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["is_alarming"]


def _prediction(number: int) -> PredictionEntry:
    content = {
        "job_key": "a", "utilization_ratio": 0.5, "memory_bytes": 1.0, "step_ms": 10.0, "confidence": 0.9,
        "intervals": [[0.4, 0.6], [0.5, 1.5], [8.0, 12.0]],
    }  # fmt: skip
    return PredictionEntry(
        prediction_id=str(number), at_ms=0, kind="job", device="gpu", model_version="v", content=content
    )


def test_evaluate_scores_the_served_version_and_a_stored_one_alike(state: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", seed=4)
    arguments = ("evaluate", str(tmp_path / "data"), "--target", "memory", "--fold", "none", "--state-dir", str(state))
    current = answer(*arguments, "--model", "current")
    stored = answer(*arguments, "--model", str(state / "models" / "versions" / served(state)))
    assert current == stored
    assert current["fold_rule"] == "none"
    assert current["rows"] == 18


def test_evaluate_writes_progress_to_stderr_and_the_table_to_stdout(tmp_path: Path) -> None:
    folder = write_profiles(tmp_path / "set", solo_rows(architectures=1)[::2])
    result = run("evaluate", str(folder), "--target", "memory", "--folds", "2")
    assert result.exit_code == 0, result.output
    assert "1 of 2" in result.stderr
    assert result.stdout.startswith("memory (bytes) on Invented A")


@pytest.mark.parametrize("model", ["current", "/nowhere"])
def test_evaluate_says_where_a_model_is_missing(tmp_path: Path, model: str) -> None:
    folder = write_profiles(tmp_path / "set", solo_rows(architectures=1)[:4])
    result = run("evaluate", str(folder), "--target", "memory", "--model", model, "--state-dir", str(tmp_path))
    assert isinstance(result.exception, PredictorError)
    assert result.exception.remedy
