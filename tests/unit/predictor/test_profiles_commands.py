"""cotenant profiles: data on stdout, the rest on stderr, and nothing forgotten by mistake."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cotenant.client_errors import InputError
from cotenant.profile_schema import PairRow, SoloRow, read_rows
from predictor_service.commands import profiles
from predictor_service.commands.program import program
from predictor_service.errors import InvalidRequestError, PredictorError
from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from tests.support.measurement_windows import NOW_MS, job, kept_job, window


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    known, other = kept_job(folder / "graphs", 64, 48, 10), kept_job(folder / "graphs", 32, 32, 10)
    with closing(ProfileStore(folder / FILE_NAME, days=36_500)) as store:
        store.add([window(1, job=known), window(2, job=other), window(3, job=known, others=(other,))], NOW_MS)
        doubted = window(4, job=job(4), others=(other,), quality_flags=("foreign_load",))
        store.add([doubted, window(5, steps=0)], NOW_MS)
    return folder


def run(state: Path, *arguments: str) -> Result:
    environment = {"COTENANT_PREDICTOR_PROFILES_DAYS": "36500"}
    return CliRunner().invoke(program, ["profiles", *arguments, "--state-dir", str(state)], env=environment)


def test_status_counts_rows_and_names_what_has_none(state: Path) -> None:
    status = json.loads(run(state, "status", "-o", "json").stdout)
    assert (status["stretches"], status["jobs"], status["solo_rows"], status["pair_rows"]) == (4, 3, 2, 1)
    assert list(status["no_row"].values()) == [1]
    assert list(status["refused"].values()) == [1]
    assert status["flagged"] == {"foreign_load": 1}
    table = run(state, "status").stdout
    assert "windows     4, of 3 jobs" in table
    assert "36500 days" in table
    assert "1: another process used the device" in table


def test_list_shows_one_line_for_a_job(state: Path) -> None:
    jobs = json.loads(run(state, "list", "-o", "json").stdout)["jobs"]
    assert sorted((item["alone"], item["beside"]) for item in jobs) == [(0, 1), (1, 0), (1, 1)]
    assert [item["step_ms"] for item in jobs if item["alone"]] == [5.0, 5.0]
    table = run(state, "list").stdout
    assert len(table.splitlines()) == 4
    assert sorted(line.split()[0] for line in table.splitlines()[1:]) == sorted(item["job_key"] for item in jobs)


def test_a_list_on_a_terminal_shows_as_much_of_a_key_as_tells_jobs_apart(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "_is_terminal", lambda: True)
    table = run(state, "list").stdout.splitlines()
    assert max(map(len, table)) <= 100
    assert all(len(line.split()[0]) == 12 for line in table[1:])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_export_writes_rows_of_the_schema(state: Path, tmp_path: Path, suffix: str) -> None:
    solo, pairs = tmp_path / f"solo.{suffix}", tmp_path / f"pairs.{suffix}"
    assert run(state, "export", "--to", str(solo)).exit_code == 0
    done = run(state, "export", "--to", str(pairs), "--kind", "pairs")
    assert done.stdout == f"{pairs}\n"
    assert "1 left out: co-located only" in done.stderr
    assert len(read_rows(solo, SoloRow)) == 2
    assert len(read_rows(pairs, PairRow)) == 1


def test_an_exported_folder_passes_the_check_of_data_sets(state: Path, tmp_path: Path) -> None:
    assert run(state, "export", "--to", str(tmp_path / "set")).exit_code == 0
    checked = CliRunner().invoke(program, ["datasets", "check", str(tmp_path / "set")])
    assert checked.exit_code == 0, checked.output
    assert "solo: 2 rows" in checked.stdout
    assert "pairs: 1 rows" in checked.stdout


def test_parquet_without_its_library_is_refused_with_a_remedy(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run(state, "export", "--to", str(tmp_path / "solo.parquet"))
    assert isinstance(done.exception, InvalidRequestError)
    assert "needs pyarrow" in done.exception.message
    assert list(tmp_path.glob("*.parquet")) == []


def test_forget_deletes_what_was_measured_and_predicted_of_a_job(state: Path) -> None:
    key = kept_job(state / "graphs", 64, 48, 10).key
    with closing(OutcomeJournal(state / "journal.sqlite")) as journal:
        for number, job_key in enumerate((key, "f" * 64)):
            journal.remember(_prediction(number, job_key))
        journal.record([("0", {"step_ms_mean": 5.0}), ("1", {"step_ms_mean": 5.0})], at_ms=NOW_MS)
    done = run(state, "forget", "--job-key", key[:12])
    assert done.stdout == "forgotten: 2 profiles, 1 predictions, 1 outcomes\n"
    with closing(OutcomeJournal(state / "journal.sqlite")) as journal:
        assert [entry.prediction_id for entry, _ in journal.joined()] == ["1"]
    assert run(state, "forget", "--older-than-days", "0", "--device", "cpu-standin").exit_code == 0
    assert json.loads(run(state, "status", "-o", "json").stdout)["stretches"] == 0


def _prediction(number: int, job_key: str) -> PredictionEntry:
    return PredictionEntry(
        prediction_id=str(number),
        at_ms=NOW_MS,
        kind="job",
        device="cpu-standin",
        model_version="v",
        content={"job_key": job_key},
    )


@pytest.mark.parametrize(
    "arguments", [(), ("--all", "--device", "cpu-standin"), ("--job-key", "a"), ("--job-key", "x" * 64)]
)
def test_forget_does_nothing_unless_it_is_said_what(state: Path, arguments: tuple[str, ...]) -> None:
    assert isinstance(run(state, "forget", *arguments).exception, InvalidRequestError)
    assert json.loads(run(state, "status", "-o", "json").stdout)["stretches"] == 4


def test_forget_all_leaves_nothing(state: Path) -> None:
    assert run(state, "forget", "--all").exit_code == 0
    assert json.loads(run(state, "status", "-o", "json").stdout)["stretches"] == 0


@pytest.mark.parametrize("arguments", [("list",), ("status",), ("export", "--to", "x.csv"), ("forget", "--all")])
def test_a_folder_without_a_store_is_refused_with_a_remedy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(tmp_path, *arguments)
    assert isinstance(done.exception, PredictorError)
    assert done.exception.remedy


@pytest.mark.parametrize("name", ["PROFILES_DAYS", "PROFILES_ROWS_MAX"])
def test_a_bound_below_its_range_forgets_nothing(state: Path, name: str) -> None:
    arguments = ["profiles", "status", "--state-dir", str(state)]
    done = CliRunner().invoke(program, arguments, env={f"COTENANT_PREDICTOR_{name}": "-5"})
    assert isinstance(done.exception, InputError)
    assert f"COTENANT_PREDICTOR_{name}" in done.exception.message
    assert json.loads(run(state, "status", "-o", "json").stdout)["stretches"] == 4


def test_the_first_use_of_a_store_takes_the_outcomes_that_are_known_already(tmp_path: Path) -> None:
    known = kept_job(tmp_path / "graphs", 64, 48, 10)
    content = {
        "job_key": known.key,
        "graph_sha256": known.graph_sha256,
        "settings": [16, "train", "fp32", "sgd", 0.0],
        "bindings": {},
    }
    with closing(OutcomeJournal(tmp_path / "journal.sqlite")) as journal:
        journal.remember(
            PredictionEntry(
                prediction_id="p", at_ms=NOW_MS, kind="job", device="cpu-standin", model_version="v", content=content
            )
        )
        journal.record([("p", {"step_ms_mean": 5.0, "window_ms": 20_000})], at_ms=NOW_MS)
    assert json.loads(run(tmp_path, "status", "-o", "json").stdout)["stretches"] == 1
    assert run(tmp_path, "forget", "--all").exit_code == 0
    assert json.loads(run(tmp_path, "status", "-o", "json").stdout)["stretches"] == 0
