"""Scoring a model on unseen rows: without leakage, complete, and refused with a remedy where it cannot be."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotenant.profile_schema import PairRow, SoloRow, read_rows
from predictor_service.errors import PredictorError, TrainingDataError
from predictor_service.evaluation import evaluator
from predictor_service.evaluation.evaluator import EvaluationQuestion, evaluate
from predictor_service.evaluation.report import Evaluation, as_json, as_table
from predictor_service.evaluation.scoring import plan_rounds, predict_rounds
from predictor_service.learning.failed_runs import FAILED
from predictor_service.learning.learning_task import Forecast, LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles
from predictor_service.selection.targets import MEMORY, SLOWDOWN, SM_ACTIVITY, STEP, Target
from tests.support.cases import sampled
from tests.support.invented_profiles import DEVICE, FAMILIES, pair_rows, solo_row, solo_rows, write_profiles
from tests.support.measured_dataset import write_dataset
from tests.support.plain_method import FittedPlainMethod, PlainMethod
from tests.support.predictor_service import trained_store
from tests.support.table_dataset import table_rows, write_table_dataset

KEYS = (
    "schema", "target", "unit", "device", "fold_rule", "groups", "rows", "excluded", "selected", "candidates",
    "metrics", "ci95", "baselines", "per_group",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _plain_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluator is tested here, not the methods."""
    monkeypatch.setattr(evaluator, "FittingMethod", quick_method)


def quick_method(level: str) -> PlainMethod:
    return PlainMethod(level, candidate_names=("mean", "ridge", "nearest_neighbours"))


def quiet(line: str) -> None:
    assert line


def ask(data: Path | None, target: Target = MEMORY, fold_rule: str = "family", **fields: Any) -> Evaluation:
    return evaluate(EvaluationQuestion(data=data, target=target, fold_rule=fold_rule, **fields), quiet)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    solo = solo_rows(architectures=2)
    return write_profiles(tmp_path_factory.mktemp("data") / "set", solo, pair_rows(solo[::9]))


def test_the_json_form_has_exactly_the_keys_of_the_contract(folder: Path) -> None:
    report = json.loads(as_json(ask(folder)))
    assert tuple(report) == KEYS
    assert set(report["baselines"]) == {"mean", "additive", "roofline", "gradient_boosting"}
    assert report["baselines"]["additive"] == {}, "does not apply to jobs alone"
    assert set(report["ci95"]) == set(report["metrics"])
    assert {group["group"] for group in report["per_group"]} == set(FAMILIES)
    assert report["groups"] == 6
    assert report["rows"] == 48
    assert {line["name"] for line in report["candidates"]} >= {report["selected"], "mean"}


def test_a_model_beats_the_mean_on_families_that_it_has_not_seen(folder: Path) -> None:
    report = json.loads(as_json(ask(folder)))
    assert report["baselines"]["mean"]["ours_over_baseline"]["mae"] < 0.8
    assert report["metrics"]["coverage_90_ratio"] > 0.6


@pytest.mark.parametrize("outer_mae", [None, 2.5])
def test_the_table_has_a_column_of_outer_errors_only_where_a_method_tells_them(
    folder: Path, outer_mae: float | None
) -> None:
    scored = ask(folder)
    told = dataclasses.replace(
        scored, candidates=tuple(dataclasses.replace(line, outer_mae=outer_mae) for line in scored.candidates)
    )
    assert ("outer mae" in as_table(told)) == (outer_mae is not None)


def test_the_table_says_in_which_unit_errors_are(folder: Path) -> None:
    told = as_table(ask(folder, MEMORY))
    assert "rmse (bytes)" in told
    assert told.count("mae (bytes)") == 3
    assert "mape_ratio (" not in told


@pytest.mark.parametrize("fold_rule", ["random_pair", "job", "architecture", "family"])
def test_every_rule_scores_slowdowns(folder: Path, fold_rule: str) -> None:
    scored = ask(folder, SLOWDOWN, fold_rule, folds=3)
    assert scored.rows == 36
    assert scored.baselines["additive"] is not None
    assert "slowdown" in as_table(scored)


def test_device_types_can_be_left_out_one_by_one(tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, device=device) for device in ("A", "B", "C") for row in solo_rows(architectures=1)]
    scored = ask(write_profiles(tmp_path / "set", rows), MEMORY, "device")
    assert scored.groups == 3
    assert scored.device == "all"


def test_two_files_can_be_given_and_a_row_of_both_is_no_test(tmp_path: Path) -> None:
    rows = solo_rows(architectures=2)
    train = write_profiles(tmp_path / "train", rows[:40])
    test = write_profiles(tmp_path / "test", rows[32:])
    scored = ask(None, fold_rule="none", train=train, test=test)
    assert scored.rows == 8
    assert scored.excluded["also among the rows to learn from"] == 8


@pytest.mark.parametrize(
    ("learned", "unseen"), [(slice(0, 32), "family"), (slice(0, 48, 2), "job"), (slice(0, 48), "random_pair")]
)
def test_a_method_chooses_for_what_the_rows_to_predict_really_lack(tmp_path: Path, learned: slice, unseen: str) -> None:
    rows = solo_rows(architectures=2)
    train = write_profiles(tmp_path / "train", rows[learned])
    repeated = [dataclasses.replace(row, run_id=f"again-{row.run_id}") for row in rows[33::2]]
    lines: list[str] = []
    question = EvaluationQuestion(
        target=MEMORY, fold_rule="none", train=train, test=write_profiles(tmp_path / "test", repeated)
    )
    evaluate(question, lines.append)
    assert any(f"by {unseen}:" in line for line in lines)


def problem_of(rows: list[SoloRow], target: Target = MEMORY) -> LearningTask:
    return read_learning_task(MeasuredProfiles(name="x", solo=tuple(rows), pairs=()), target, DEVICE).learning_task


def mae(learning_task: LearningTask, level: str, seed: int = 0) -> float:
    predictions = predict_rounds(plan_rounds(learning_task, level, 5, seed), quick_method(level), level, seed, quiet)
    return float(np.abs(predictions.forecast.value - learning_task.measured[predictions.rows]).mean())


def test_renaming_jobs_and_runs_changes_no_prediction() -> None:
    """What identifies a row is no feature, not even when it spells the answer."""
    rows = solo_rows(architectures=2)
    telling = [
        dataclasses.replace(row, job_key=f"{row.memory_peak_bytes:020d}", run_id=f"{row.memory_peak_bytes}")
        for row in rows
    ]
    assert mae(problem_of(rows), "architecture") == mae(problem_of(telling), "architecture")


def test_without_anything_to_learn_no_method_beats_the_mean() -> None:
    """Measured values dealt out at random: a method that still predicts them has seen them."""
    learning_task = problem_of(solo_rows(architectures=3))
    shuffled = np.random.default_rng(3).permutation(learning_task.measured)
    mixed = dataclasses.replace(learning_task, measured=shuffled)
    mean_error = float(np.abs(shuffled - shuffled.mean()).mean())
    assert mae(mixed, "architecture") > 0.85 * mean_error
    assert mae(learning_task, "architecture") < 0.5 * mean_error


def test_shuffled_groups_flatter_and_true_groups_do_not() -> None:
    """Every architecture has a hidden trait; only a split that leaks architectures can profit from it."""
    random = np.random.default_rng(1)
    hidden = {f"{family}_{number}": float(random.normal(0, 1.0)) for family in FAMILIES for number in range(4)}
    rows = [
        dataclasses.replace(row, memory_peak_bytes=int(1e9 * np.exp(hidden[row.architecture])))
        for row in solo_rows(architectures=4)
    ]
    learning_task = problem_of(rows)
    names = random.permutation([job.architecture for job in learning_task.jobs])
    shuffled = dataclasses.replace(
        learning_task,
        jobs=tuple(
            dataclasses.replace(job, architecture=str(name))
            for job, name in zip(learning_task.jobs, names, strict=True)
        ),
    )
    assert mae(learning_task, "architecture") > 1.25 * mae(shuffled, "architecture")


class _Peeking:
    """A method that would answer what was measured, if it were given it."""

    name = "peeking"
    selected = "peeking"
    candidates = ()

    def fit(self, learning_task: LearningTask, seed: int) -> "_Peeking":
        return self

    def predict(self, learning_task: LearningTask) -> Forecast:
        values = learning_task.measured
        return Forecast(value=values, lower_90=values, upper_90=values, upper_99=values, in_domain=values > 0)


def test_a_method_is_never_shown_what_was_measured_of_a_test_row() -> None:
    rounds = plan_rounds(problem_of(solo_rows(architectures=1)), "family", 3, 0)
    with pytest.raises(TrainingDataError, match="not a finite number"):
        predict_rounds(rounds, _Peeking(), "family", 0, quiet)


class _Broken(PlainMethod):
    def fit(self, learning_task: LearningTask, seed: int) -> FittedPlainMethod:
        raise ValueError("singular matrix")


def test_a_method_that_breaks_becomes_a_refusal() -> None:
    rounds = plan_rounds(problem_of(solo_rows(architectures=1)), "family", 3, 0)
    with pytest.raises(TrainingDataError, match="singular matrix") as refusal:
        predict_rounds(rounds, _Broken("family"), "family", 0, quiet)
    assert refusal.value.remedy


def sparse_rows() -> list[SoloRow]:
    """Features that are null, constant, text, or there for some rows only."""
    rows = []
    for place, row in enumerate(solo_rows(architectures=1)):
        features = {"set.null": None, "set.same": 1, "set.word": f"w{place % 3}", "set.flops": 1e9 * (place % 5 + 1)}
        if place % 2:
            features["set.sometimes"] = place
        rows.append(dataclasses.replace(row, features_json=json.dumps(features)))
    return rows


def test_null_constant_and_missing_features_are_no_obstacle(tmp_path: Path) -> None:
    assert ask(write_profiles(tmp_path / "set", sparse_rows())).rows == 24


def test_rows_without_any_feature_are_scored_as_well_as_the_mean(tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, features_json=None) for row in solo_rows(architectures=1)]
    assert ask(write_profiles(tmp_path / "set", rows)).rows == 24


def test_tiny_data_is_scored(tmp_path: Path) -> None:
    rows = solo_rows(families=("ant", "bee"), architectures=1)[::4]
    scored = ask(write_profiles(tmp_path / "set", rows))
    assert scored.rows == 2
    assert scored.selected == "mean"


REFUSALS: dict[str, tuple[list[SoloRow], dict[str, Any]]] = {
    "one group only": (solo_rows(families=("ant",)), {}),
    "one row": ([solo_row()], {}),
    "nothing usable": ([solo_row(status="failed", step_ms_mean=None)], {}),
    "target not measured": ([solo_row()], {"target": SM_ACTIVITY}),
    "no pairs": (solo_rows(architectures=1), {"target": SLOWDOWN}),
    "unknown device": (solo_rows(architectures=1), {"device": "Z9"}),
    "several devices": ([solo_row(device="A"), solo_row(device="B")], {}),
    "unknown campaign": (solo_rows(architectures=1), {"campaign": "two"}),
    "nothing to learn from": (solo_rows(architectures=1), {"fold_rule": "none"}),
    "train with a fold rule": (solo_rows(architectures=1), {"train": Path("x")}),
    "unknown version's target": (solo_rows(architectures=1), {"version": "stored"}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_scored_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    rows, fields = REFUSALS[name]
    if "version" in fields:
        store = trained_store()
        fields = {"version": store.load(store.names()[0])}
    with pytest.raises(PredictorError) as refusal:
        ask(write_profiles(tmp_path / "set", rows), **fields)
    assert refusal.value.remedy


def test_a_pair_without_its_solo_row_is_counted_not_estimated(tmp_path: Path) -> None:
    solo = solo_rows(architectures=2)[::4]
    folder = write_profiles(tmp_path / "set", solo[:-1], pair_rows(solo))
    scored = ask(folder, SLOWDOWN, "family")
    assert scored.excluded == {"a job has no solo row of the same campaign and device type": 23}
    assert scored.rows == 121


def test_a_run_that_failed_is_neither_learned_from_nor_judged_by(tmp_path: Path) -> None:
    failed, *others = table_rows()
    write_table_dataset(tmp_path / "set", [dataclasses.replace(failed, memory_peak_bytes=1 << 20), *others])
    found = ask(tmp_path / "set")
    assert found.rows == len(others)
    assert found.excluded[FAILED] == 1


def test_a_stored_version_is_never_scored_on_groups_that_it_was_trained_on(tmp_path: Path) -> None:
    write_dataset(tmp_path / "same")
    store = trained_store()
    version = store.load(store.names()[0])
    with pytest.raises(TrainingDataError, match="0 usable rows") as refusal:
        ask(tmp_path / "same", STEP, "family", version=version)
    assert "seen in the training" in refusal.value.remedy
    lines: list[str] = []
    question = EvaluationQuestion(data=tmp_path / "same", target=STEP, fold_rule="none", version=version)
    scored = evaluate(question, lines.append)
    assert scored.metrics["mape_ratio"] is not None
    assert scored.metrics["mape_ratio"] < 0.1
    assert any("trained on: flattering" in line for line in lines)


def test_a_stored_version_scores_pairs_by_what_its_jobs_do_alone(tmp_path: Path) -> None:
    write_dataset(tmp_path / "same", seed=5)
    store = trained_store()
    scored = ask(tmp_path / "same", SLOWDOWN, "none", version=store.load(store.names()[0]))
    assert scored.rows == 36
    assert scored.metrics["mae"] is not None
    assert scored.metrics["mae"] < 0.1


@pytest.mark.parametrize(("target", "rows"), sampled([(MEMORY, 14), (SLOWDOWN, 37)], 1))
def test_the_order_of_rows_changes_nothing(
    tmp_path: Path, target: Target, rows: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real methods: trees draw rows by their place."""
    monkeypatch.undo()
    solo, pairs = read_rows(folder / "solo.csv", SoloRow), read_rows(folder / "pairs.csv", PairRow)
    solo = solo[:rows]
    keys = {row.job_key for row in solo}
    pairs = [row for row in pairs if {row.victim_job_key, *row.other_job_keys} <= keys]
    kept, turned = (
        ask(write_profiles(tmp_path / name, solo[::step], pairs[::step]), target, "random_pair", folds=2)
        for name, step in (("kept", 1), ("turned", -1))
    )
    assert json.loads(as_json(turned)) == json.loads(as_json(kept))
