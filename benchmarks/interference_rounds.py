"""Held-out slowdowns of one data set by one rule and seed, by ours and by everything it has to beat, on the same rows.

A helper of `interference_accuracy`; it has no `main`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.slowdown_aip import AdaptivePrediction
from predictor_service.evaluation.baselines import BASELINES
from predictor_service.evaluation.scoring import Round, plan_rounds
from predictor_service.evaluation.splits import FOLDS_MAX
from predictor_service.importers.catalogue import import_set
from predictor_service.learning.learning_task import ALL_DEVICES, BoolArray, FloatArray, LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles, read_profiles
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.table_methods.raw_columns import learn_columns
from predictor_service.table_methods.slowdown_folds import observe_pairs
from predictor_service.table_methods.slowdown_method import SlowdownMethod

SHOTS: Final = 3
_OWN_SET: Final = Path(__file__).resolve().parents[1] / "datasets" / "cpu_standin"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetChoice:
    """One device type and campaign of a data set.

    Attributes:
        folder: Below the shared data; empty = our own measured set.
        device: Device type by the name of the rows, or `ALL_DEVICES`; empty = the only one.
        campaign: None = all.
    """

    folder: str
    device: str = ""
    campaign: str | None = None

    def read(self, shared: Path | None) -> LearningTask:
        """Reads the measured pairs; rows with several jobs co-located with the victim are not among them."""
        if self.folder:
            assert shared is not None
            imported = import_set(self.folder, shared / self.folder)
            profiles = MeasuredProfiles(name=self.folder, solo=tuple(imported.solo), pairs=tuple(imported.pairs))
        else:
            profiles = read_profiles(_OWN_SET)
        device = self.device or sorted({row.device for row in profiles.pairs})[0]
        learning_task = read_learning_task(profiles, SLOWDOWN, device, self.campaign).learning_task
        return learning_task.subset(np.flatnonzero([len(others) == 1 for others in learning_task.others]))


SETS: Final[Mapping[str, SetChoice]] = {
    "gavel_2019_k80": SetChoice(folder="gavel", device="Tesla K80", campaign="2019-08-raw"),
    "gavel_2019_v100": SetChoice(folder="gavel", device="Tesla V100-SXM2-16GB", campaign="2019-08-raw"),
    "gavel_2020_k80": SetChoice(folder="gavel", device="Tesla K80", campaign="2020-05-simulation"),
    "gavel_2020_v100": SetChoice(folder="gavel", device="Tesla V100-SXM2-16GB", campaign="2020-05-simulation"),
    "gavel_2020": SetChoice(folder="gavel", device=ALL_DEVICES, campaign="2020-05-simulation"),
    "gavel": SetChoice(folder="gavel", device=ALL_DEVICES),
    "alnair": SetChoice(folder="alnair"),
    "cpu_standin": SetChoice(folder=""),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOut:
    """Predictions of rows whose group was not trained on, all rounds together.

    Attributes:
        measured: Shape (predictions,).
        values: Predictions by name of the method, each of shape (predictions,).
        groups: Groups of each prediction.
        selected: What ours chose, round by round.
        inside_90: Whether the measured value is in our central 90 % interval, shape (predictions,).
        below_99: Whether it is below our 99 % bound, shape (predictions,).
        width_90: Upper over lower end of our 90 % interval of the shared time, less 1, shape (predictions,).
    """

    measured: FloatArray
    values: Mapping[str, FloatArray]
    groups: Sequence[frozenset[str]]
    selected: Sequence[str]
    inside_90: BoolArray
    below_99: BoolArray
    width_90: FloatArray


def join_parts(parts: Sequence[HeldOut]) -> HeldOut:
    """Puts rounds or seeds one after the other."""
    return HeldOut(
        measured=np.concatenate([part.measured for part in parts]),
        values={name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values},
        groups=[group for part in parts for group in part.groups],
        selected=[name for part in parts for name in part.selected],
        inside_90=np.concatenate([part.inside_90 for part in parts]),
        below_99=np.concatenate([part.below_99 for part in parts]),
        width_90=np.concatenate([part.width_90 for part in parts]),
    )


def predict_held_out(
    learning_task: LearningTask, level: str, seed: int, *, shots: int = 0, with_aip: bool = False
) -> HeldOut:
    """Predicts every row by models that have not seen its groups.

    Args:
        learning_task: All rows.
        level: What is unseen, one of `learning_task.LEVELS`.
        seed: Of the folds and of whatever the methods draw.
        shots: Co-locations with known jobs that are observed of every new job first; they are trained on and not
            tested, and the baselines named `without` do not get them.
        with_aip: Whether the paper's four methods and AIP are predicted as well.
    """
    parts = [
        _predict_round(learning_task, each, level, seed, shots, with_aip=with_aip)
        for each in plan_rounds(learning_task, level, FOLDS_MAX[level], seed)
    ]
    return join_parts(parts)


def _predict_round(
    learning_task: LearningTask, round_: Round, level: str, seed: int, shots: int, *, with_aip: bool
) -> HeldOut:
    assert round_.train is not None
    train, test, without = round_.train, round_.test, round_.train
    if shots:
        known = {job.job_key for job in (*train.jobs, *(other for others in train.others for other in others))}
        observed = observe_pairs(learning_task, round_.rows, known, shots, seed)
        test = learning_task.subset(np.setdiff1d(round_.rows, observed))
        trained = np.setdiff1d(np.arange(len(learning_task)), np.setdiff1d(round_.rows, observed))
        train = learning_task.subset(trained)
    hidden = dataclasses.replace(test, measured=np.full(len(test), np.nan))
    ours = SlowdownMethod(level, shots=shots).fit(train, seed)
    forecast = ours.predict(hidden)
    values = {"ours": forecast.value, **{f"candidate {k}": v for k, v in ours.predict_each(hidden).items()}}
    for name, baseline in REFERENCES.items():
        values[name] = baseline(train, hidden, level, seed)
        if shots:
            values[f"{name} without"] = baseline(without, hidden, level, seed)
    if with_aip:
        fitted = AdaptivePrediction(level).fit(train, seed)
        values["aip"] = fitted.predict(hidden).value
        values.update({f"aip {name}": value for name, value in fitted.predict_each(hidden).items()})
    return HeldOut(
        measured=test.measured,
        values=values,
        groups=test.groups("job" if level == "random_pair" else level),
        selected=[ours.selected],
        inside_90=(forecast.lower_90 <= test.measured) & (test.measured <= forecast.upper_90),
        below_99=test.measured <= forecast.upper_99,
        width_90=(1.0 + forecast.upper_90) / (1.0 + forecast.lower_90) - 1.0,
    )


def _regressor(build: Callable[[int], object]) -> Callable[[LearningTask, LearningTask, str, int], FloatArray]:
    """A regressor with its library's settings on the set's own columns, sizes as logarithms, ln(1 + slowdown)."""

    def predict(train: LearningTask, test: LearningTask, level: str, seed: int) -> FloatArray:
        columns = learn_columns(train, level, with_graph=False)
        tables = [np.log1p(np.abs(np.nan_to_num(columns.table(each)))) for each in (train, test)]
        model = build(seed)
        model.fit(tables[0], SLOWDOWN.compress(train.measured))  # type: ignore[attr-defined]
        return SLOWDOWN.expand(np.asarray(model.predict(tables[1]), dtype=np.float64))  # type: ignore[attr-defined]

    return predict


def _known(name: str) -> Callable[[LearningTask, LearningTask, str, int], FloatArray]:
    def predict(train: LearningTask, test: LearningTask, level: str, seed: int) -> FloatArray:
        values = BASELINES[name](train, test, level, seed)
        assert values is not None
        return values

    return predict


REFERENCES: Final[Mapping[str, Callable[[LearningTask, LearningTask, str, int], FloatArray]]] = {
    "mean": _known("mean"),
    "additive": _known("additive"),
    "xgboost": _known("gradient_boosting"),
    "random_forest": _regressor(lambda seed: RandomForestRegressor(n_estimators=60, random_state=seed, n_jobs=1)),
    "nearest_neighbours": _regressor(lambda seed: make_pipeline(StandardScaler(), KNeighborsRegressor())),
}
"""What has to be beaten."""
