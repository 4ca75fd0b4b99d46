"""Slowdowns against the best of five references that saw the same rows: one cell per data set and level.

The references are the mean, the additive table, nearest neighbours, a random forest and xgboost, all with every
training row. Which of them a cell compares with is chosen on folds inside the training rows, of the kind that is held
out, by its mean error there. Ours is what `cotenant evaluate` fits: `served` where a retraining learns the same rows,
`evaluate` where a table lacks what a service would know of the jobs. Gavel's sets are one campaign and device type
each, but for unseen devices and for all of it together. Intervals resample the groups that are held out.

Public sets are read from COTENANT_SHARED_DATA and left out where it is not set. COTENANT_BENCHMARK_TASKS names cells,
e.g. "alnair, family", joined by ;. Takes about seven CPU minutes; one process per core.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.interference_rounds import REFERENCES, SETS, SetChoice
from predictor_service.evaluation.fresh_model import FittedAsServed, FittingMethod
from predictor_service.evaluation.scoring import plan_rounds
from predictor_service.learning.learning_task import ALL_DEVICES, BoolArray, FloatArray, LearningTask
from predictor_service.learning.metrics import measure_points
from predictor_service.learning.resampling import bootstrap_ratios
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.table_methods.slowdown_folds import inner_folds

ROUNDS_MAX: Final = 3
INNER_FOLDS_MAX: Final = 2
SEED: Final = 0
RATIO_LIMIT: Final = 0.85
LOWER_LIMIT: Final = 1.05
COVERAGE: Final = (0.87, 0.95)
_SINGLE: Final = ("gavel_2019_k80", "gavel_2019_v100", "gavel_2020_k80", "gavel_2020_v100", "alnair", "cpu_standin")
_SETS: Final[Mapping[str, SetChoice]] = {
    **SETS,
    "gavel_2019": SetChoice(folder="gavel", device=ALL_DEVICES, campaign="2019-08-raw"),
}
CELLS: Final = (
    *((data, level) for data in _SINGLE for level in ("random_pair", "job", "family")),
    ("gavel", "random_pair"),
    ("gavel_2019", "device"),
    ("gavel_2020", "device"),
)
"""(data set, what is unseen)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """Held-out predictions of one data set by one rule.

    Attributes:
        method: served | evaluate.
        reference: The one chosen on training folds.
        measured: Shape (rows,).
        values: By method, `ours` and the references.
        inside_90: Whether the measured value is in our 90 % interval.
        groups: Of every row.
    """

    method: str
    reference: str
    measured: FloatArray
    values: Mapping[str, FloatArray]
    inside_90: BoolArray
    groups: Sequence[frozenset[str]]


def main() -> dict[str, object]:
    """Predicts every cell and compares."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    named = os.environ.get("COTENANT_BENCHMARK_TASKS", "")
    wanted = [
        (data, level)
        for data, level in CELLS
        if (root or not _SETS[data].folder) and (not named or f"{data}, {level}" in named.split(";"))
    ]
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        cells = []
        for (data, level), cell in zip(wanted, pool.map(_predict, [(*cell, root) for cell in wanted]), strict=True):
            sys.stderr.write(f"{data}, {level}\n")
            cells.append((data, level, cell))
    tables = [{"data": data, "unseen": level, **_compare(cell)} for data, level, cell in cells]
    return {"cells": tables, **_summarize(tables, [cell for _, _, cell in cells])}


def _summarize(tables: Sequence[Mapping[str, object]], cells: Sequence[Cell]) -> dict[str, object]:
    ratios = np.array([table["ratio"] for table in tables], dtype=np.float64)
    lowers = [table["ratio_95"][0] for table in tables if isinstance(table["ratio_95"], list)]
    mean_ratio = float(np.exp(np.log(ratios).mean()))
    coverage = float(np.concatenate([cell.inside_90 for cell in cells]).mean())
    return {
        "geometric_mean_ratio": round(mean_ratio, 3),
        "largest_lower_95": max(lowers, default=None),
        "coverage_90_ratio": round(coverage, 3),
        "limits": {"geometric_mean_ratio": RATIO_LIMIT, "largest_lower_95": LOWER_LIMIT, "coverage_90_ratio": COVERAGE},
        "met": {
            "geometric_mean_ratio": mean_ratio <= RATIO_LIMIT,
            "largest_lower_95": max(lowers, default=0.0) <= LOWER_LIMIT,
            "coverage_90_ratio": COVERAGE[0] <= coverage <= COVERAGE[1],
        },
    }


def _predict(job: tuple[str, str, str]) -> Cell:
    data, level, root = job
    with threadpool_limits(1):
        return predict_cell(_SETS[data].read(Path(root) if root else None), level)


def predict_cell(learning_task: LearningTask, level: str) -> Cell:
    """Predicts every row of a learning task by models that have not seen its groups."""
    rounds = plan_rounds(learning_task, level, ROUNDS_MAX, SEED)
    values: dict[str, list[FloatArray]] = {name: [] for name in ("ours", *REFERENCES)}
    inside, inner, methods = [], [], set()
    for each in rounds:
        assert each.train is not None
        hidden = dataclasses.replace(each.test, measured=np.full(len(each.test), np.nan))
        fitted = FittingMethod(level).fit(each.train, SEED)
        forecast = fitted.predict(hidden)
        values["ours"].append(forecast.value)
        for name, reference in REFERENCES.items():
            values[name].append(reference(each.train, hidden, level, SEED))
        inside.append((forecast.lower_90 <= each.test.measured) & (each.test.measured <= forecast.upper_90))
        inner.append(_inner_errors(each.train, level))
        methods.add("served" if isinstance(fitted, FittedAsServed) else "evaluate")
    errors = {name: float(np.mean([row[name] for row in inner])) for name in REFERENCES}
    grouped = "job" if level == "random_pair" else level
    return Cell(
        method=" and ".join(sorted(methods)),
        reference=min(errors, key=lambda name: errors[name]),
        measured=np.concatenate([each.test.measured for each in rounds]),
        values={name: np.concatenate(parts) for name, parts in values.items()},
        inside_90=np.concatenate(inside),
        groups=[group for each in rounds for group in each.test.groups(grouped)],
    )


def _inner_errors(train: LearningTask, level: str) -> dict[str, float]:
    """Mean absolute error of every reference on folds inside the training rows."""
    _, folds = inner_folds(train, level, 0, SEED)
    errors: dict[str, float] = {}
    for name, reference in REFERENCES.items():
        parts = []
        for fold in folds[:INNER_FOLDS_MAX]:
            test = train.subset(fold.test)
            hidden = dataclasses.replace(test, measured=np.full(len(test), np.nan))
            predicted = reference(train.subset(fold.train), hidden, level, SEED)
            parts.append(float(np.abs(predicted - test.measured).mean()))
        errors[name] = float(np.mean(parts)) if parts else 0.0
    return errors


def _compare(cell: Cell) -> dict[str, object]:
    errors = {name: float(np.abs(values - cell.measured).mean()) for name, values in cell.values.items()}
    ours, theirs = (measure_points(SLOWDOWN, cell.values[name], cell.measured) for name in ("ours", cell.reference))
    interval = bootstrap_ratios(ours, theirs, cell.groups, seed=SEED)["mae"]
    return {
        "method": cell.method,
        "against": cell.reference,
        "rows": len(cell.measured),
        "groups": len(frozenset[str]().union(*cell.groups)),
        "mae": {name: round(error, 4) for name, error in errors.items()},
        "ratio": round(errors["ours"] / errors[cell.reference], 3),
        "ratio_95": None if interval is None else [round(end, 3) for end in interval],
        "coverage_90_ratio": round(float(cell.inside_90.mean()), 3),
    }
