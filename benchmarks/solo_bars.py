"""What a training would serve of jobs alone, beside bars: utilization, step time, rows without a graph, as JSON.

`python -m benchmarks.solo_bars` predicts kept-back architectures by the method of `evaluate --model fresh`.

`utilization`: mean absolute error over that of predicting the mean of all rows; bars .2 for GPUMemNet's CNNs and MLPs,
.6 for MISO. The law of busy time that a training starts from was taught by these very campaigns, two constants of it;
here each is judged with the law that the others teach.

`rows_without_a_graph`: memory of timm's networks, where every second network has lost its graph, in training and when
it is asked about. `ratio` is the error of the rows without a graph over that of the same method where all graphs are
stripped; bar 1.1. `in_domain` counts how many of them were called familiar; none should be.

`step_time`: timm's training on an RTX 3090 by what `retrain` learns, which always holds out families: of networks never
seen (bar 9 %), and of families never seen (20 %). `not_served` counts rows that a service refuses: half of the rows are
of the other memory layout.

One architecture in COTENANT_BENCHMARK_EVERY takes part (default 6; CNNs, MISO and step times are always whole). Needs
COTENANT_SHARED_DATA. `--only cnn` (mlp, miso, rows_without_a_graph, step_time) judges one of them; each takes a CPU
minute or two, step_time ten.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import uncalibrated_utilization as campaigns_of_utilization
from benchmarks.solo_learning_tasks import TASKS, read_task
from predictor_service.evaluation.fresh_model import FittingMethod
from predictor_service.evaluation.scoring import HeldOutPredictions, plan_rounds, predict_rounds
from predictor_service.features import uncalibrated_utilization
from predictor_service.features.uncalibrated_utilization import UtilizationLaw
from predictor_service.fitting.known_rows import split_learnable
from predictor_service.learning.learning_task import BoolArray, FloatArray, LearningTask
from predictor_service.table_methods.missing_graphs import find_missing_graphs, strip_graphs

UTILIZATION_BARS: Final = {
    "utilization, cnn, unseen architecture": 0.2,
    "utilization, mlp, unseen architecture": 0.2,
    "utilization, miso, unseen architecture": 0.6,
}
CAMPAIGNS: Final = dict(zip(UTILIZATION_BARS, ("cnn", "mlp", "miso"), strict=True))
"""By the names of `uncalibrated_utilization`."""
STEP_TIME: Final = "step_time, timm training, unseen family"
STEP_TIME_BARS: Final = {"architecture": 0.09, "family": 0.2}
"""Mean relative errors by what was never seen."""
GRAPHLESS: Final = "memory, timm, unseen model"
GRAPHLESS_BAR: Final = 1.1
_GRAPHLESS_PART: Final = "rows_without_a_graph"
_STEP_TIME_PART: Final = "step_time"
_LEARNED: Final = "family"
"""What `retrain` holds out to choose and calibrate."""
_LEVEL: Final = "architecture"
_FOLDS: Final = 5
_WHOLE_BELOW: Final = 1_000
"""Rows of a set that always takes part as a whole."""


class UnknownPartError(ValueError):
    """Nothing that is judged here has such a name."""


def main(only: str = "") -> dict[str, Any]:
    """Judges both.

    Args:
        only: Part of the names of what is judged; empty = all of it.

    Raises:
        UnknownPartError: Nothing is named so.
    """
    check_part(only)
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        return {"skipped": "COTENANT_SHARED_DATA is not set"}
    every = int(os.environ.get("COTENANT_BENCHMARK_EVERY", "6"))
    with threadpool_limits(1):
        campaigns = campaigns_of_utilization.read_campaigns(Path(root))
        judged: dict[str, Any] = {
            "utilization": {
                name: judge_utilization(
                    thinned(read_task(TASKS[name], Path(root)), every), bar, law_without(campaigns, CAMPAIGNS[name])
                )
                for name, bar in UTILIZATION_BARS.items()
                if only in name
            }
        }
        if only in _STEP_TIME_PART:
            rows = read_task(TASKS[STEP_TIME], Path(root))
            judged[_STEP_TIME_PART] = {
                level: judge_step_time(rows, level, bar) for level, bar in STEP_TIME_BARS.items()
            }
        if only in _GRAPHLESS_PART:
            judged[_GRAPHLESS_PART] = judge_graphless(thinned(read_task(TASKS[GRAPHLESS], Path(root)), every))
        return judged


def check_part(only: str) -> None:
    """Refuses a part of names that nothing judged here has.

    Raises:
        UnknownPartError: Names what there is.
    """
    names = (*UTILIZATION_BARS, _STEP_TIME_PART, _GRAPHLESS_PART)
    if not any(only in name for name in names):
        raise UnknownPartError(f"nothing judged is named {only!r}; there are: {'; '.join(names)}")


def thinned(learning_task: LearningTask, every: int) -> LearningTask:
    """One architecture in `every`, by the hash of its name, of few architectures one job; all of a small set."""
    if len(learning_task) < _WHOLE_BELOW:
        return learning_task
    names = [job.architecture for job in learning_task.jobs]
    if len(set(names)) < _FOLDS * every:
        names = [job.job_key for job in learning_task.jobs]
    return learning_task.subset([row for row, name in enumerate(names) if zlib.crc32(name.encode()) % every == 0])


def predict(learning_task: LearningTask, unseen: str = _LEVEL, learned: str = _LEVEL) -> HeldOutPredictions:
    """Every row by a method that has not seen its architecture, or family, and holds out `learned` inside itself."""
    rounds = plan_rounds(learning_task, unseen, _FOLDS, 0)
    return predict_rounds(rounds, FittingMethod(learned), unseen, 0, _tell)


def law_without(campaigns: campaigns_of_utilization.Campaigns, name: str) -> UtilizationLaw:
    """The law that all campaigns but one teach."""
    return UtilizationLaw(**campaigns_of_utilization.learn(campaigns_of_utilization.without(campaigns, name)))


def judge_utilization(learning_task: LearningTask, bar: float, law: UtilizationLaw) -> dict[str, Any]:
    """Error beside that of the mean, of a training that starts from a law."""
    with mock.patch.object(uncalibrated_utilization, "LAW", law):
        predictions = predict(learning_task)
    measured, forecast = learning_task.measured[predictions.rows], predictions.forecast
    error = float(np.abs(forecast.value - measured).mean())
    of_mean = float(np.abs(measured.mean() - measured).mean())
    inside = (measured >= forecast.lower_90) & (measured <= forecast.upper_90)
    return {
        "rows": len(measured),
        "mae": round(error, 4),
        "mae_of_mean": round(of_mean, 4),
        "ratio": round(error / of_mean, 3),
        "bar": bar,
        "met": error <= bar * of_mean,
        "inside_90_ratio": round(float(inside.mean()), 3),
    }


def judge_step_time(learning_task: LearningTask, unseen: str, bar: float) -> dict[str, Any]:
    """Mean relative error of what would be served, and whether its 90 % ranges hold."""
    known, left_out = split_learnable(learning_task)
    predictions = predict(known, unseen, _LEARNED)
    measured, forecast = known.measured[predictions.rows], predictions.forecast
    mape_ratio = float(_relative_errors(known, predictions).mean())
    inside = (measured >= forecast.lower_90) & (measured <= forecast.upper_90)
    return {
        "rows": len(measured),
        "not_served": dict(left_out),
        "mape_ratio": round(mape_ratio, 4),
        "bar": bar,
        "met": mape_ratio <= bar,
        "inside_90_ratio": round(float(inside.mean()), 3),
    }


def judge_graphless(learning_task: LearningTask) -> dict[str, Any]:
    """Error of the rows that lost their graph, beside that where all have."""
    without = strip_graphs(learning_task)
    jobs = [
        bare if _loses_graph(job.architecture) else job
        for job, bare in zip(learning_task.jobs, without.jobs, strict=True)
    ]
    mixed = dataclasses.replace(learning_task, jobs=tuple(jobs))
    lost = find_missing_graphs(mixed)
    mixed_predictions, bare_predictions = predict(mixed), predict(without)
    among, alone = (_relative_errors(learning_task, each) for each in (mixed_predictions, bare_predictions))
    ratio = float(among[lost].mean() / alone[lost].mean())
    return {
        "rows": len(learning_task),
        "rows_without": int(lost.sum()),
        "mape_with_graph": round(float(among[~lost].mean()), 4),
        "mape_without": round(float(among[lost].mean()), 4),
        "mape_all_stripped": round(float(alone[lost].mean()), 4),
        "ratio": round(ratio, 3),
        "bar": GRAPHLESS_BAR,
        "met": ratio <= GRAPHLESS_BAR,
        "in_domain": int(_by_row(mixed_predictions, mixed_predictions.forecast.in_domain)[lost].sum()),
    }


def _loses_graph(architecture: str) -> bool:
    return zlib.crc32(b"graph/" + architecture.encode()) % 2 == 0


def _relative_errors(learning_task: LearningTask, predictions: HeldOutPredictions) -> FloatArray:
    value = np.empty(len(learning_task))
    value[predictions.rows] = predictions.forecast.value
    return np.asarray(np.abs(value / learning_task.measured - 1.0))


def _by_row(predictions: HeldOutPredictions, flags: BoolArray) -> BoolArray:
    found = np.zeros(len(flags), dtype=bool)
    found[predictions.rows] = flags
    return found


def _tell(line: str) -> None:
    sys.stderr.write(f"  {line}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Part of the names of what is judged.")
    try:
        print(json.dumps(main(parser.parse_args().only), indent=1))
    except UnknownPartError as error:
        parser.error(str(error))
