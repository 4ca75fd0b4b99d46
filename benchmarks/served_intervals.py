"""Whether served intervals hold on families that nobody measured, as JSON.

Every family of `datasets/` is left out once; what a training would serve is fitted to the others, and asked about the
one left out. "one_width" is one conformal quantile of the winner's errors, each row with one vote; "served" follows the
learned spread of errors that the choice had not seen, each family with one vote. Widths are logarithms of upper over
lower. `coverage_90_of_families_ratio` is the mean over families, which is what the intervals promise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.job_features import FEATURE_INDEX
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.registry.served_version import Bounded, ServedTarget
from predictor_service.regressors.interface import FloatArray
from predictor_service.retraining.datasets import read_datasets
from predictor_service.retraining.fitting import FittedTarget, FittingTask, fit_target
from predictor_service.retraining.solo_table import SoloExample, build_table, collect_examples
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.targets import SOLO_TARGETS, Target

DATASETS = Path(__file__).parents[1] / "datasets"
CONFIDENCE = 0.9
ROWS_MIN = 60
SMALLEST = 1e-9


def main() -> dict[str, Any]:
    """Judges every target of every device type that has enough rows."""
    datasets = read_datasets(DATASETS)
    figures: dict[str, Any] = {}
    with threadpool_limits(1):
        for name in sorted({row.device for dataset in datasets for row in dataset.solo}):
            device = find_device_type(name)
            if device is None:
                continue
            examples, _ = collect_examples(datasets, device)
            for target in SOLO_TARGETS:
                task = task_of(examples, target, device)
                if len(task.measured) >= ROWS_MIN:
                    figures[f"{name}, {target.name}"] = judge(task)
    return figures


def task_of(examples: Sequence[SoloExample], target: Target, device: DeviceType) -> FittingTask:
    """Returns everything that is known of one target."""
    table = build_table(examples, target, [FEATURE_INDEX[name] for name in target.columns])
    return FittingTask(
        target=target,
        device=device.name,
        columns=table.columns,
        measured=table.measured,
        anchor=table.anchor,
        groups=table.groups,
        seed=0,
    )


def judge(task: FittingTask) -> dict[str, Any]:
    """Leaves every family out once."""
    ways: dict[str, list[tuple[Bounded, FloatArray]]] = {"one_width": [], "served": []}
    for rest, left_out in splits(task):
        fitted = fit_target(rest)
        models = {name: OnnxModel(content) for name, content in fitted.files.items()}
        spread = models.get(fitted.record.spread.file_name) if fitted.record.spread else None
        served = ServedTarget(fitted.record, models[fitted.record.file_name], spread)
        asked = (left_out.columns, left_out.anchor)
        ways["served"].append((served.predict_bounded(*asked, CONFIDENCE), left_out.measured))
        ways["one_width"].append((one_width(served, rows_vote(rest, fitted), *asked), left_out.measured))
    return {"rows": len(task.measured), "families": len(ways["served"]), **{k: score(v) for k, v in ways.items()}}


def splits(task: FittingTask) -> Iterator[tuple[FittingTask, FittingTask]]:
    """Yields the rows without a family, and those of the family."""
    for family in sorted(frozenset[str]().union(*task.groups)):
        is_left_out = np.array([family in groups for groups in task.groups])
        yield part(task, np.flatnonzero(~is_left_out)), part(task, np.flatnonzero(is_left_out))


def part(task: FittingTask, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> FittingTask:
    """Returns some rows of a task."""
    return FittingTask(
        target=task.target,
        device=task.device,
        columns=task.columns[rows],
        measured=task.measured[rows],
        anchor=task.anchor[rows],
        groups=[task.groups[row] for row in rows.tolist()],
        seed=task.seed,
    )


def rows_vote(task: FittingTask, fitted: FittedTarget) -> ConformalBounds:
    """Calibrates on the winner's own held-out errors, each row with one vote."""
    held_out, encoded = fitted.score.held_out, task.target.encode(task.measured, task.anchor)
    return calibrate(encoded[held_out.row] - held_out.value, fitted.record.groups)


def one_width(
    served: ServedTarget, bounds: ConformalBounds, columns: np.ndarray[Any, np.dtype[np.float32]], anchor: FloatArray
) -> Bounded:
    """Returns bounds by one quantile of all rows, in the target's unit."""
    value = served.predict(columns, anchor)
    raw = served.target.encode(np.maximum(value, SMALLEST), anchor)
    half_width = bounds.half_width(CONFIDENCE)
    return Bounded(
        value=value,
        lower=served.target.decode(raw - half_width, anchor),
        upper=served.target.decode(raw + half_width, anchor),
        upper_99=served.target.decode(raw + bounds.upper_offset(0.99), anchor),
    )


def score(answers: Sequence[tuple[Bounded, FloatArray]]) -> dict[str, float]:
    """Returns coverage and width over all rows, and how the families fare that are covered least."""
    inside = [(bounded.lower <= measured) & (measured <= bounded.upper) for bounded, measured in answers]
    below = [measured <= bounded.upper_99 for bounded, measured in answers]
    bound = [bounded.upper_99 / measured for bounded, measured in answers]
    width = [np.log(np.maximum(b.upper, SMALLEST) / np.maximum(b.lower, SMALLEST)) for b, _ in answers]
    return {
        "coverage_90_ratio": round(float(np.concatenate(inside).mean()), 4),
        "coverage_90_of_families_ratio": round(float(np.mean([each.mean() for each in inside])), 4),
        "families_covered_below_half": sum(bool(each.mean() < 0.5) for each in inside),
        "width_mean": round(float(np.concatenate(width).mean()), 4),
        "coverage_99_ratio": round(float(np.concatenate(below).mean()), 4),
        "upper_99_over_actual_mean": round(float(np.concatenate(bound).mean()), 4),
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
