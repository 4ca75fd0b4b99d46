"""How well the end of training and its speed are predicted on public curves, against naive answers, as JSON.

Loss curves: nanogpt (validation loss) and Pollux (validation accuracy or loss; no drop of the learning rate is given).
The true end is the epoch at which the whole curve converges by the owner's rule; the prediction sees 25, 50 and 75 % of
the epochs up to it. Other answers: the paper's method alone (Optimus, Eq. 1), and drops that keep shrinking as over the
last points. Errors are |predicted - true| / true of the total epochs.

Speeds: Pollux (all-reduce, T4): ten random runs of an application are fitted, all others predicted. Naive answer: the
speed of the nearest known run, by workers and batch. With them the paper's Fig. 8: ten of 400 pairs of the functions
of its Table 2, measured with 5 % noise, estimate all. CPU milliseconds are those of one prediction, best of five.

Needs COTENANT_SHARED_DATA; about 20 seconds.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from predictor_service.convergence.curve_forms import fit_optimus
from predictor_service.convergence.loss_series import LossSeries, prepare_losses
from predictor_service.convergence.training_end import Goal, find_end, predict_end, smooth
from predictor_service.convergence.training_speed import Resources, SpeedSample, Synchrony, fit_speed
from tests.support.optimus_speeds import TABLE_2, estimation_error

FloatArray = npt.NDArray[np.float64]

THRESHOLDS = (0.01, 0.005, 0.002)
SHARES = (0.25, 0.5, 0.75)
POINTS_MIN = 20
EPOCHS_MIN = 12.0
SPEED_SAMPLES = 10
SPEED_SEEDS = 20


class Curve(NamedTuple):
    """A whole training run."""

    source: str
    progress: FloatArray
    losses: FloatArray
    epoch_length: float

    def until(self, epochs: float) -> LossSeries:
        """What a job would have reported by then."""
        seen = self.progress <= epochs * self.epoch_length
        return prepare_losses(self.progress[seen], self.losses[seen], self.epoch_length)


def main() -> dict[str, object]:
    """Returns the figures."""
    root = os.environ.get("COTENANT_SHARED_DATA")
    if not root:
        return {"skipped": "COTENANT_SHARED_DATA is not set"}
    curves = [*read_nanogpt(Path(root)), *read_pollux(Path(root))]
    return {
        "target": {"speed_error_of_10_in_400_at_most": 0.06, "convergence": "below both other answers at 50 %"},
        "convergence": measure_convergence(curves),
        "speed": measure_speed(Path(root)),
        "table_2_error_of_10_in_400": {
            synchrony.value: round(
                float(np.mean([estimation_error(synchrony, SPEED_SAMPLES, 0.05, seed) for seed in range(60)])), 4
            )
            for synchrony in TABLE_2
        },
        "predict_end_cpu_ms": measure_cost(curves[0]),
    }


def measure_convergence(curves: list[Curve]) -> dict[str, dict[str, float]]:
    """Median error by source and share of training, next to the naive answers."""
    errors: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for curve in curves:
        whole = curve.until(math.inf)
        for threshold in THRESHOLDS:
            goal = Goal(threshold=threshold)
            truth = find_end(whole, goal)
            if truth is None or truth < EPOCHS_MIN:
                continue
            for share in SHARES:
                note_errors(errors[curve.source, share], curve.until(share * truth), goal, truth)
    return {
        f"{source} at {share:.0%}": {
            "predictions": len(noted["ours"]),
            **{f"{name}_median_error": round(float(np.median(noted[name])), 4) for name in ANSWERS},
            "coverage_90_ratio": round(float(np.mean(noted["covered"])), 4),
            "reliable_ratio": round(float(np.mean(noted["reliable"])), 4),
        }
        for (source, share), noted in sorted(errors.items())
    }


ANSWERS = ("ours", "paper", "shrinking_drops")


def note_errors(noted: dict[str, list[float]], seen: LossSeries, goal: Goal, truth: float) -> None:
    """Notes the errors of every answer; an answer that is missing counts as never (error 1)."""
    end = predict_end(seen, goal)
    if not end.forms:
        return
    for name, total in zip(ANSWERS, (end.epochs_total, ask_paper(seen, goal), shrink_drops(seen, goal)), strict=True):
        noted[name].append(1.0 if total is None else abs(total / truth - 1))
    noted["covered"].append(float(end.lower is not None and end.upper is not None and end.lower <= truth <= end.upper))
    noted["reliable"].append(float(end.reliable))


def ask_paper(seen: LossSeries, goal: Goal) -> float | None:
    """The paper's answer: Eq. 1 fitted by least squares on 1 / (l - b2), followed epoch by epoch."""
    form = fit_optimus(seen.epochs, seen.losses)
    now = math.ceil(seen.measured_until)
    for epoch in range(now, now + 10_000):
        if form.at(epoch) - form.at(epoch + 1) < (goal.threshold or 0.0):
            return float(epoch + goal.patience)
    return None


def shrink_drops(seen: LossSeries, goal: Goal) -> float | None:
    """A naive answer: drops go on shrinking by the factor by which the newest quarter's is below the one before."""
    losses, width = smooth(seen.losses), max(2, len(seen.losses) // 4)
    if len(losses) <= 2 * width:
        return None
    newest = (losses[-1 - width] - losses[-1]) / width
    before = (losses[-1 - 2 * width] - losses[-1 - width]) / width
    threshold = goal.threshold or 0.0
    if newest <= threshold:
        return seen.measured_until + goal.patience - 1
    if newest >= before:
        return None
    return float(seen.measured_until + width * math.log(threshold / newest) / math.log(newest / before))


def measure_speed(root: Path) -> dict[str, dict[str, float]]:
    """Mean error of all other runs when ten were measured, by application, next to the nearest run."""
    figures = {}
    for application, samples in read_speeds(pd.read_csv(root / "pollux" / "throughput.csv.gz")).items():
        pairs = np.array([speed_errors(samples, seed) for seed in range(SPEED_SEEDS)])
        figures[application] = {
            "runs": len(samples),
            "ours_mean_error": round(float(pairs[:, 0].mean()), 4),
            "nearest_run_mean_error": round(float(pairs[:, 1].mean()), 4),
        }
    return figures


def read_speeds(table: pd.DataFrame) -> dict[str, list[SpeedSample]]:
    """Measured runs by application."""
    return {
        str(application): [
            SpeedSample(
                resources=Resources(workers=int(gpus), servers=1, batch=int(gpus * batch)), steps_per_s=1 / step_s
            )
            for gpus, batch, step_s in zip(rows.n_gpus, rows.local_batch, rows.step_time_s, strict=True)
        ]
        for application, rows in table.groupby("app")
    }


def speed_errors(samples: list[SpeedSample], seed: int) -> tuple[float, float]:
    """Errors of our model and of the nearest known run."""
    chosen = set(np.random.default_rng(seed).choice(len(samples), SPEED_SAMPLES, replace=False).tolist())
    known = [samples[index] for index in sorted(chosen)]
    others = [sample for index, sample in enumerate(samples) if index not in chosen]
    model = fit_speed(known, Synchrony.ALL_REDUCE)
    ours = [abs(model.steps_per_s(item.resources) / item.steps_per_s - 1) for item in others]
    naive = [abs(nearest(known, item.resources).steps_per_s / item.steps_per_s - 1) for item in others]
    return float(np.mean(ours)), float(np.mean(naive))


def nearest(known: list[SpeedSample], wanted: Resources) -> SpeedSample:
    """The known run whose workers and batch per worker differ by the smallest factors."""

    def distance(sample: SpeedSample) -> float:
        one = math.log(sample.resources.workers / wanted.workers)
        other = math.log(sample.resources.batch / sample.resources.workers / (wanted.batch / wanted.workers))
        return abs(one) + abs(other)

    return min(known, key=distance)


def measure_cost(curve: Curve) -> float:
    """CPU milliseconds of one prediction."""
    seen = curve.until(curve.progress[-1] / curve.epoch_length / 2)
    costs = []
    for _ in range(5):
        before_s = time.process_time()
        for _ in range(10):
            predict_end(seen, Goal(threshold=1e-6))
        costs.append(1e3 * (time.process_time() - before_s) / 10)
    return round(min(costs), 3)


def read_nanogpt(root: Path) -> Iterator[Curve]:
    """Validation losses; an epoch is what lies between two validations."""
    table = pd.read_csv(root / "nanogpt_curves" / "loss.csv.gz")
    for _, rows in table[table.split == "val"].groupby("run"):
        steps, losses = rows.step.to_numpy(np.float64), rows.loss.to_numpy(np.float64)
        if len(rows) >= POINTS_MIN:
            yield Curve("nanogpt", steps, losses, float(np.median(np.diff(steps))))


def read_pollux(root: Path) -> Iterator[Curve]:
    """Validation loss (yolov3) or 1 - accuracy (the others) by epoch."""
    table = pd.read_csv(root / "pollux" / "validation_curves.csv.gz")
    for (application, _), rows in table.groupby(["app", "batch_size"]):
        metric = rows.metric.to_numpy(np.float64)
        if len(rows) >= POINTS_MIN:
            losses = metric if application == "yolov3" else 1 - metric
            yield Curve("pollux", rows.epoch.to_numpy(np.float64), losses, 1.0)


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
