"""A file of any size and shape is scored in bounded time, and the report states what it left out."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from cotenant.profile_schema import SoloRow
from predictor_service.errors import TrainingDataError
from predictor_service.evaluation import evaluator
from predictor_service.evaluation.evaluation_limits import EvaluationLimits
from predictor_service.evaluation.evaluator import EvaluationQuestion, evaluate
from predictor_service.evaluation.report import Evaluation, as_json
from predictor_service.evaluation.scoring import plan_rounds, predict_rounds
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles
from predictor_service.selection.targets import MEMORY, SLOWDOWN
from tests.support.cases import sampled
from tests.support.invented_profiles import DEVICE, pair_row, solo_row, solo_rows, write_profiles
from tests.support.plain_method import FittedPlainMethod, PlainMethod


def quick_method(level: str) -> PlainMethod:
    return PlainMethod(level, candidate_names=("mean", "ridge"))


def ask(data: Path, lines: list[str], **fields: Any) -> Evaluation:
    known = {"target": MEMORY, "fold_rule": "family", **fields}
    return evaluate(EvaluationQuestion(data=data, **known), lines.append)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The effort is tested here, not the methods."""
    monkeypatch.setattr(evaluator, "FittingMethod", quick_method)


@pytest.mark.usefixtures("quick")
def test_rows_beyond_the_limit_are_drawn_evenly_and_counted(tmp_path: Path) -> None:
    folder = write_profiles(tmp_path / "set", solo_rows())
    first, second = (ask(folder, [], limits=EvaluationLimits(rows_max=30), seed=1) for _ in range(2))
    assert first.rows == 30
    assert first.groups > 3
    assert json.loads(as_json(first))["excluded"] == {"beyond --rows-max 30, drawn evenly by the seed": 42}
    assert as_json(first) == as_json(second)


@pytest.mark.parametrize("fold_rule", ["family", "none"])
def test_one_thread_computes_while_a_set_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold_rule: str
) -> None:
    threads: list[int] = []

    class Watched(PlainMethod):
        def fit(self, learning_task: LearningTask, seed: int) -> FittedPlainMethod:
            threads.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
            return super().fit(learning_task, seed)

    def watched(level: str) -> PlainMethod:
        return Watched(level, candidate_names=("mean", "ridge"))

    monkeypatch.setattr(evaluator, "FittingMethod", watched)
    train = write_profiles(tmp_path / "train", solo_rows(families=("ant", "bee", "cat")))
    test = write_profiles(tmp_path / "test", solo_rows(seed=1, families=("dog",)))
    split = EvaluationQuestion(target=MEMORY, fold_rule="family", data=train)
    given = EvaluationQuestion(target=MEMORY, fold_rule="none", train=train, test=test)
    with threadpool_limits(2):
        evaluate(given if fold_rule == "none" else split, lambda line: None)
    assert set(threads) == {1}


def test_few_rows_stay_as_they_are() -> None:
    profiles = MeasuredProfiles(name="x", solo=tuple(solo_rows(architectures=1)), pairs=())
    learning_task = read_learning_task(profiles, MEMORY, DEVICE).learning_task
    excluded = Counter[str]()
    assert EvaluationLimits().thin(learning_task, 0, excluded) is learning_task
    assert not excluded


@pytest.mark.usefixtures("quick")
def test_rows_to_learn_from_have_the_same_limit(tmp_path: Path) -> None:
    train = write_profiles(tmp_path / "train", solo_rows(families=("ant", "bee", "cat")))
    test = write_profiles(tmp_path / "test", solo_rows(seed=1, families=("dog",)))
    lines: list[str] = []
    question = EvaluationQuestion(
        target=MEMORY, fold_rule="none", train=train, test=test, limits=EvaluationLimits(rows_max=20)
    )
    scored = evaluate(question, lines.append)
    assert scored.rows == 12
    assert any("not learned from: 16 rows" in line for line in lines)


def test_what_is_out_of_time_is_counted_and_never_averaged_in() -> None:
    profiles = MeasuredProfiles(name="x", solo=tuple(solo_rows(architectures=1)), pairs=())
    learning_task = read_learning_task(profiles, MEMORY, DEVICE).learning_task
    rounds = plan_rounds(learning_task, "family", 6, 0)
    lines: list[str] = []
    predictions = predict_rounds(rounds, quick_method("family"), "family", 0, lines.append, lambda: True)
    assert set(predictions.rows.tolist()) == set(rounds[0].rows.tolist())
    assert len(predictions.forecast.value) == len(rounds[0].rows)
    assert "out of time after 1 of 6 rounds" in lines[-1]


def test_what_took_so_long_and_how_long_the_rest_may_take_is_told_after_every_split() -> None:
    profiles = MeasuredProfiles(name="x", solo=tuple(solo_rows(architectures=1)), pairs=())
    learning_task = read_learning_task(profiles, MEMORY, DEVICE).learning_task
    rounds = plan_rounds(learning_task, "family", 3, 0)
    lines: list[str] = []
    predict_rounds(rounds, quick_method("family"), "family", 0, lines.append)
    told = [line.split(" after ")[0] for line in lines if "to go" in line]
    assert lines[0].startswith("3 splits, each learned anew on one core; how long they take is known after the first")
    assert told == ["1 of 3 done", "2 of 3 done"]


@pytest.mark.usefixtures("quick")
def test_a_time_limit_that_is_over_still_gives_a_report_of_the_first_split(tmp_path: Path) -> None:
    folder = write_profiles(tmp_path / "set", solo_rows())
    scored = ask(folder, [], limits=EvaluationLimits(time_limit_s=0))
    assert scored.groups == 1
    assert scored.rows == 12
    assert scored.excluded == {"not predicted within --time-limit-s 0": 60}


def constant_target() -> list[SoloRow]:
    return solo_rows(architectures=1, memory_peak_bytes=1 << 30)


def without_optional_columns() -> list[SoloRow]:
    empty: dict[str, Any] = dict.fromkeys(
        ("features_json", "step_ms_mean", "step_ms_p50", "step_ms_p95", "utilization_ratio")
    )
    return [dataclasses.replace(row, steps=0, memory_context_bytes=None, **empty) for row in solo_rows(architectures=1)]


def one_job_many_times() -> list[SoloRow]:
    return [solo_row(run_id=f"run{place}", memory_peak_bytes=(1 << 30) + place) for place in range(40)]


def spanning_all_sizes() -> list[SoloRow]:
    sizes = np.geomspace(1, 1e15, 24)
    rows = solo_rows(architectures=1)
    return [dataclasses.replace(row, memory_peak_bytes=int(size)) for row, size in zip(rows, sizes, strict=True)]


def huge_features() -> list[SoloRow]:
    features = {"set.huge": 1e308, "set.tiny": -1e308, "set.zero": 0.0}
    return [
        dataclasses.replace(
            row, features_json=json.dumps({name: value / (place + 1) for name, value in features.items()})
        )
        for place, row in enumerate(solo_rows(architectures=1))
    ]


ODD = {
    "constant target": (constant_target(), "family"),
    "missing optional columns": (without_optional_columns(), "family"),
    "five rows": (solo_rows(architectures=1)[::5], "family"),
    "two rows": (solo_rows(families=("ant", "bee"), architectures=1)[::4], "family"),
    "one family by architecture": (solo_rows(families=("ant",), architectures=4), "architecture"),
    "sizes from a byte to a petabyte": (spanning_all_sizes(), "family"),
    "numbers at the end of their range": (huge_features(), "family"),
}


@pytest.mark.parametrize("name", sampled(ODD, 3))
def test_odd_but_valid_files_are_scored(tmp_path: Path, name: str) -> None:
    rows, fold = ODD[name]
    report = json.loads(as_json(ask(write_profiles(tmp_path / "set", rows), [], fold_rule=fold, folds=2)))
    assert report["rows"] == len(rows)
    assert np.isfinite(report["metrics"]["mae"])
    assert 0 <= report["metrics"]["coverage_99_ratio"] <= 1


@pytest.mark.parametrize(("rows", "fold"), [(one_job_many_times(), "job"), (solo_rows(architectures=1), "device")])
def test_rows_of_one_group_alone_are_refused_with_a_remedy(tmp_path: Path, rows: list[SoloRow], fold: str) -> None:
    with pytest.raises(TrainingDataError, match="1 group cannot be split") as refusal:
        ask(write_profiles(tmp_path / "set", rows), [], fold_rule=fold)
    assert refusal.value.remedy


def test_odd_pairs_are_scored_too(tmp_path: Path) -> None:
    solo = solo_rows(architectures=1)[::4]
    pairs = [pair_row(victim, other, slowdown_ratio=0.0) for victim in solo for other in solo]
    report = ask(write_profiles(tmp_path / "set", solo, pairs), [], target=SLOWDOWN, fold_rule="random_pair")
    assert report.metrics["mae"] is not None
    assert report.metrics["mae"] < 0.05
