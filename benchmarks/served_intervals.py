"""Whether served intervals hold, by how near to the measured jobs the asked one is, as JSON.

Three levels of nearness, each by leaving out what it names: a configuration whose graph was measured at other settings,
an architecture whose family was measured, and an unmeasured family. What a training would serve is fitted to
the rest and asked about what was left out. "strangers" are the widths of unmeasured families, whatever is
asked; "served" are narrower for jobs that are near. Widths are logarithms of upper over lower.
`coverage_90_of_groups_ratio` is the mean over what was left out, which is what the intervals promise. Names of families
and architectures say what is left out, never how wide an interval is.

About four CPU minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from predictor_service.features.devices import find_device_type
from predictor_service.fitting.fit import FittingTask, fit_target, task_of
from predictor_service.fitting.known_rows import split_learnable
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import pool_learning_tasks
from predictor_service.registry.served_version import Bounded
from predictor_service.regressors.interface import FloatArray
from predictor_service.retraining.datasets import read_datasets
from predictor_service.selection.folds import Fold, IndexArray, setting_folds
from predictor_service.selection.targets import SOLO_TARGETS

DATASETS: Final = Path(__file__).parents[1] / "datasets"
CONFIDENCE: Final = 0.9
ROWS_MIN: Final = 60
LEVELS: Final = ("configuration", "architecture", "family")
_SMALLEST: Final = 1e-9

Answers = list[tuple[IndexArray, Bounded]]


def main() -> dict[str, Any]:
    """Judges every target of every device type that has enough rows."""
    datasets = read_datasets(DATASETS)
    figures: dict[str, Any] = {}
    with threadpool_limits(1):
        for name in sorted({row.device for dataset in datasets for row in dataset.solo}):
            if find_device_type(name) is None:
                continue
            for target in SOLO_TARGETS:
                learning_task, _ = split_learnable(pool_learning_tasks(datasets, target, name).learning_task)
                if len(learning_task) >= ROWS_MIN:
                    figures[f"{name}, {target.name}"] = judge(
                        task_of(learning_task, LEVELS[-1], 0), name_parts(learning_task)
                    )
    return figures


def name_parts(learning_task: LearningTask) -> Mapping[str, Sequence[str]]:
    """Returns configuration, architecture and family of each row."""
    jobs = learning_task.jobs
    names = ([job.job_key for job in jobs], [job.architecture for job in jobs], [job.family for job in jobs])
    return dict(zip(LEVELS, names, strict=True))


def judge(task: FittingTask, parts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Leaves out everything once at each level."""
    return {level: judge_level(task, splits(parts, level), parts[level]) for level in LEVELS}


def judge_level(task: FittingTask, folds: Iterator[Fold], left_out: Sequence[str]) -> dict[str, Any]:
    """Asks about the rows of every fold what was learned from the others."""
    ways: dict[str, Answers] = {}
    for fold in folds:
        for way, bounded in ask_part(part(task, fold.train), part(task, fold.test)).items():
            ways.setdefault(way, []).append((fold.test, bounded))
    return {way: score(answers, task.measured, left_out) for way, answers in ways.items()}


def ask_part(known: FittingTask, asked: FittingTask) -> Mapping[str, Bounded]:
    """Returns what is said of some rows by what would be served after a training on others."""
    fitted = fit_target(known)
    served = fitted.served
    near = None if asked.features is None else served.novelty(asked.features)
    return {
        way: served.predict_bounded(asked.columns, asked.analytical_estimate, CONFIDENCE, novelty=novelty)
        for way, novelty in (("strangers", None), ("served", near))
    }


def codes_of(parts: Mapping[str, Sequence[str]]) -> Mapping[str, IndexArray]:
    """Returns the labels of each level as numbers."""
    return {name: np.unique(labels, return_inverse=True)[1] for name, labels in parts.items()}


def splits(parts: Mapping[str, Sequence[str]], level: str) -> Iterator[Fold]:
    """Yields the folds of a level: families and architectures one by one, configurations one of each graph at once."""
    codes = codes_of(parts)
    if level == LEVELS[0]:
        yield from setting_folds(codes[LEVELS[1]], codes[level])
        return
    for name in np.unique(codes[level]):
        is_out = codes[level] == name
        is_relative = np.isin(codes[LEVELS[-1]], codes[LEVELS[-1]][is_out]) & ~is_out
        if level == LEVELS[-1] or is_relative.any():
            yield Fold(np.flatnonzero(~is_out), np.flatnonzero(is_out))


def part(task: FittingTask, rows: IndexArray) -> FittingTask:
    """Returns some rows of a task."""
    return FittingTask(
        target=task.target,
        device=task.device,
        columns=task.columns[rows],
        measured=task.measured[rows],
        analytical_estimate=task.analytical_estimate[rows],
        groups=[task.groups[row] for row in rows.tolist()],
        seed=task.seed,
        features=None if task.features is None else task.features[rows],
    )


def score(answers: Answers, measured: FloatArray, left_out: Sequence[str]) -> dict[str, float]:
    """Returns coverage and width over all rows, and how many of what was left out are covered less than half."""
    rows = np.concatenate([test for test, _ in answers])
    lower, upper, upper_99 = (
        np.concatenate([getattr(bounded, name) for _, bounded in answers]) for name in ("lower", "upper", "upper_99")
    )
    actual, names = measured[rows], np.array(left_out)[rows]
    is_inside = (lower <= actual) & (actual <= upper)
    by_name = [float(is_inside[names == name].mean()) for name in np.unique(names)]
    width = np.log(np.maximum(upper, _SMALLEST) / np.maximum(lower, _SMALLEST))
    return {
        "rows": len(rows),
        "groups": len(by_name),
        "coverage_90_ratio": round(float(is_inside.mean()), 4),
        "coverage_90_of_groups_ratio": round(float(np.mean(by_name)), 4),
        "groups_covered_below_half": sum(each < 0.5 for each in by_name),
        "width_mean": round(float(width.mean()), 4),
        "width_median": round(float(np.median(width)), 4),
        "coverage_99_ratio": round(float((actual <= upper_99).mean()), 4),
        "upper_99_over_actual_mean": round(float((upper_99 / actual).mean()), 4),
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
