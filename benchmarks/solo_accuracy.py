"""How well utilization, memory and step time of jobs alone are predicted that were not trained on.

Every figure stands next to untuned boosting on the columns as published, on the same rows and folds, with a 95 %
interval of the ratio over groups. Public sets are read from COTENANT_SHARED_DATA and left out where it is not set.
COTENANT_BENCHMARK_SEEDS (default 1) draws of the folds; COTENANT_BENCHMARK_TASKS names tasks, joined by ;, instead of
all.

Takes about 15 CPU minutes a seed, on one core; the tasks of utilization alone take three.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.solo_learning_tasks import ABLATIONS, TASKS, Task, ablate, read_task
from predictor_service.evaluation.report import SIZE_DECILE, Evaluation, evaluate_predictions
from predictor_service.evaluation.scoring import HeldOutPredictions, plan_rounds, predict_rounds
from predictor_service.learning.learning_task import LearningTask
from predictor_service.selection.targets import UTILIZATION
from predictor_service.table_methods.solo_method import SoloMethod

BASELINE: Final = "gradient_boosting"
_FOLDS: Final = 5
_DIGITS: Final = 4
_INTERVALS: Final = ("coverage_90_ratio", "coverage_99_ratio", "upper_99_over_actual_mean")


def main() -> dict[str, object]:
    """Predicts everything and compares."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        return {"left_out": [f"{name}: COTENANT_SHARED_DATA is not set" for name in TASKS]}
    seeds = range(int(os.environ.get("COTENANT_BENCHMARK_SEEDS", "1")))
    chosen = os.environ.get("COTENANT_BENCHMARK_TASKS", "").split(";")
    figures: dict[str, object] = {"seeds": len(seeds)}
    for name in chosen if chosen != [""] else TASKS:
        task = TASKS[name]
        learning_task = read_task(task, Path(root))
        figures[name] = (
            [_score(task, learning_task, seed) for seed in seeds] if len(learning_task) else "no rows at hand"
        )
        if len(learning_task) and task.ablated:
            figures[f"{name}, without"] = _ablate(task, learning_task)
    return figures


def _score(task: Task, learning_task: LearningTask, seed: int) -> dict[str, object]:
    started = time.process_time()
    predictions = _predict(task, learning_task, seed)
    evaluation = _evaluate(task, learning_task, predictions, seed, SIZE_DECILE)
    families = {job.family for job in learning_task.jobs}
    by_group = _evaluate(task, learning_task, predictions, seed, "family" if len(families) > 1 else task.level)
    baseline = evaluation.baselines[BASELINE]
    assert baseline is not None  # it applies to every target
    return {
        "rows": evaluation.rows,
        "groups": evaluation.groups,
        "selected": evaluation.selected,
        "metrics": _rounded(evaluation.metrics),
        "baseline": _rounded(baseline.metrics),
        "ratios": _rounded(baseline.ratios),
        "ratio_95": {
            name: None if ends is None else [round(end, 3) for end in ends]
            for name, ends in baseline.ratio_intervals.items()
        },
        "bars": {bar.metric: _bar(bar.limit, bar.of_baseline, bar.metric, evaluation) for bar in task.bars},
        "coverage_by_size_decile": _coverage(evaluation),
        "coverage_by_group": _coverage(by_group),
        "candidates": {
            each.name: _rounded({"inner_mae": each.inner_mae, "outer_mae": each.outer_mae})
            for each in evaluation.candidates
        },
        "in_domain": _in_domain(learning_task, predictions),
        "cpu_s": round(time.process_time() - started, 1),
    }


def _predict(task: Task, learning_task: LearningTask, seed: int) -> HeldOutPredictions:
    rounds = plan_rounds(learning_task, task.level, task.folds or _FOLDS, seed)
    return predict_rounds(rounds, SoloMethod(task.level), task.level, seed, _print_progress)


def _evaluate(
    task: Task, learning_task: LearningTask, predictions: HeldOutPredictions, seed: int, group_by: str
) -> Evaluation:
    return evaluate_predictions(
        learning_task, predictions, fold_rule=task.level, level=task.level, group_by=group_by, excluded={}, seed=seed
    )


def _bar(limit: float, of_baseline: bool, metric: str, evaluation: Evaluation) -> dict[str, object]:
    baseline = evaluation.baselines[BASELINE]
    value = (baseline.ratios if of_baseline and baseline else evaluation.metrics)[metric]
    reached = value is not None and (value >= limit if metric.startswith("coverage") else value <= limit)
    return {"value": None if value is None else round(value, _DIGITS), "limit": limit, "met": reached}


def _ablate(task: Task, learning_task: LearningTask) -> dict[str, object]:
    """The error without a group of columns, next to the error with all, on the same rows and folds."""
    few = learning_task.subset(
        [row for row, job in enumerate(learning_task.jobs) if _is_kept(job.architecture, task.ablated)]
    )
    variants = {"nothing": few, **{name: ablate(few, name) for name in ABLATIONS}}
    metric = "mae" if task.target is UTILIZATION else "mape_ratio"
    table: dict[str, object] = {"rows": len(few), "metric": metric}
    for name, variant in variants.items():
        evaluation = _evaluate(task, variant, _predict(task, variant, 0), 0, SIZE_DECILE)
        table[name] = _rounded({metric: evaluation.metrics[metric]})[metric]
    return table


def _is_kept(architecture: str, every: int) -> bool:
    return every == 1 or sum(architecture.encode()) % every == 0


def _coverage(evaluation: Evaluation) -> dict[str, object]:
    return {
        score.group: {
            "rows": score.rows,
            **_rounded({name: score.metrics[name] for name in _INTERVALS}),
        }
        for score in evaluation.per_group
    }


def _in_domain(learning_task: LearningTask, predictions: HeldOutPredictions) -> dict[str, float]:
    """What the flag of being out of domain is worth: the relative error on either side of it."""
    flagged = predictions.forecast.in_domain
    error = np.abs(predictions.forecast.value / np.maximum(learning_task.measured[predictions.rows], 1e-9) - 1.0)
    sides = {"inside": flagged, "outside": ~flagged}
    means = {f"mape_{name}": round(float(error[side].mean()), _DIGITS) for name, side in sides.items() if side.any()}
    return {"share": round(float(flagged.mean()), _DIGITS), **means}


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else float(f"{value:.5g}") for name, value in values.items()}


def _print_progress(line: str) -> None:
    sys.stderr.write(f"  {line}\n")
