"""Which measured rows of the public sets a service refuses, and how two ways of learning answer them, as JSON.

`refused` counts rows of jobs alone by set, target, device type and reason (`fitting.known_rows.why_unanswerable`).
`errors` has, of refused rows and of whole device types left out, the error of the method that `cotenant evaluate`
answers them by (`evaluated`), and that of the fit that a service stores, given the same table's columns and figures
(`as_served`): relative errors, of shares absolute ones, and what part of the rows the 90 % interval holds. A case has
at most COTENANT_BENCHMARK_ROWS rows (default 300), drawn by seed 0, in three folds.

Reads datasets/public; two to three CPU minutes.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from predictor_service.evaluation.fresh_model import described_method
from predictor_service.evaluation.scoring import plan_rounds
from predictor_service.features.devices import find_device_type
from predictor_service.fitting.conversion import NotLearnable
from predictor_service.fitting.fit import FittedTarget, FittingTask, fit_target
from predictor_service.fitting.known_rows import why_unanswerable
from predictor_service.learning.learning_task import ALL_DEVICES, FloatArray, JobFacts, LearningTask
from predictor_service.learning.learning_task_reader import list_devices, read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles, read_profiles
from predictor_service.regressors.interface import FeatureArray
from predictor_service.selection.targets import MEMORY, SOLO_TARGETS, STEP, TARGETS_BY_QUANTITY, Target
from predictor_service.table_methods.raw_columns import RawColumns, learn_columns
from predictor_service.table_methods.solo_method import inner_folds

PUBLIC: Final = Path(__file__).parents[1] / "datasets" / "public"
_FOLDS: Final = 3
_WAIT_LEFT_MIN: Final = 0.01
_ESTIMATES: Final[Mapping[str, str]] = {STEP.name: "roofline_ms", MEMORY.name: "analytical_memory_bytes"}


class Case(NamedTuple):
    """Refused rows of one target of a set, or, with the level device, all of its rows."""

    data: str
    target: str
    device: str
    level: str


CASES: Final = (
    Case("alnair", "utilization", "alnair-unnamed-gpu", "job"),
    Case("alnair", "step_time", "alnair-unnamed-gpu", "job"),
    Case("gpumemnet", "memory", "NVIDIA A100-SXM4-40GB", "architecture"),
    Case("timm_bench", "step_time", "NVIDIA GeForce RTX 5090", "family"),
    Case("torchvision_bench", "step_time", "NVIDIA GeForce RTX 2080 Ti", "family"),
    Case("torchvision_bench", "step_time", ALL_DEVICES, "device"),
    Case("miso", "step_time", ALL_DEVICES, "device"),
    Case("gavel", "step_time", ALL_DEVICES, "device"),
)


def main() -> dict[str, Any]:
    """Counts, and compares."""
    most = int(os.environ.get("COTENANT_BENCHMARK_ROWS", "300"))
    sets = {folder.name: read_profiles(folder) for folder in sorted(PUBLIC.iterdir()) if folder.is_dir()}
    with threadpool_limits(1):
        errors = {"; ".join(case): compare(sets[case.data], case, most) for case in CASES}
    return {"refused": {name: count_refused(profiles) for name, profiles in sets.items()}, "errors": errors}


def count_refused(profiles: MeasuredProfiles) -> dict[str, dict[str, int]]:
    """Rows by target and device type, and by why a service cannot answer them; those that it can are `answered`."""
    found = {}
    for target in SOLO_TARGETS:
        for device in list_devices(profiles, target):
            jobs = read_learning_task(profiles, target, device).learning_task.jobs
            reasons = Counter(why_unanswerable(target, job, ()) or "answered" for job in jobs)
            if reasons:
                found[f"{target.quantity}; {device}"] = dict(reasons)
    return found


def compare(profiles: MeasuredProfiles, case: Case, rows_max: int) -> dict[str, Any]:
    """Errors of both ways on the rows of a case, none of which was learned from."""
    target = TARGETS_BY_QUANTITY[case.target]
    rows = read_learning_task(profiles, target, case.device).learning_task.in_content_order()
    if case.device != ALL_DEVICES:
        rows = rows.subset([row for row, job in enumerate(rows.jobs) if why_unanswerable(target, job, ())])
    if len(rows) > rows_max:
        rows = rows.subset(np.sort(np.random.default_rng(0).choice(len(rows), rows_max, replace=False)))
    rounds = plan_rounds(rows, case.level, _FOLDS, 0)
    scores: dict[str, Any] = {"rows": len(rows), "groups": len(frozenset[str]().union(*rows.groups(case.level)))}
    for way, method in (("evaluated", described_method(target, case.level)), ("as_served", _AsServed(case.level))):
        try:
            answers = [_answer(method, part.train or part.test, part.test) for part in rounds]
        except NotLearnable as reason:
            scores[way] = str(reason)
            continue
        value, lower, upper = np.hstack(answers)
        scores[way] = _score(target, value, lower, upper, np.concatenate([part.test.measured for part in rounds]))
    return scores


def _answer(method: Any, train: LearningTask, test: LearningTask) -> FloatArray:  # noqa: ANN401 (of two kinds)
    found = method.fit(train, 0).predict(dataclasses.replace(test, measured=np.full(len(test), np.nan)))
    return np.stack([found.value, found.lower_90, found.upper_90])


def _score(
    target: Target, value: FloatArray, lower: FloatArray, upper: FloatArray, measured: FloatArray
) -> dict[str, float]:
    errors = np.abs(value - measured) / (1.0 if target.scale == "share" else measured)
    held = (lower <= measured) & (measured <= upper)
    return {"error": round(float(errors.mean()), 4), "inside_90_ratio": round(float(held.mean()), 3)}


class _Ends(NamedTuple):
    value: FloatArray
    lower_90: FloatArray
    upper_90: FloatArray


@dataclasses.dataclass(frozen=True, slots=True)
class _AsServed:
    """The fit that a service stores, with a table's columns in place of a graph's."""

    level: str

    def fit(self, learning_task: LearningTask, seed: int) -> _FittedAsServed:
        columns = learn_columns(learning_task, self.level, with_graph=True)
        figures = _figures(columns, learning_task)
        middle = np.array([np.median(known) if len(known := one[np.isfinite(one)]) else 0.0 for one in figures.T])
        typical = float(np.exp(np.log(np.maximum(learning_task.measured, 1e-9)).mean()))
        fitted = _FittedAsServed(columns=columns, middle=middle, typical=typical)
        task = FittingTask(
            target=learning_task.target,
            device=learning_task.jobs[0].device,
            columns=fitted.table(learning_task),
            measured=learning_task.measured,
            analytical_estimate=fitted.estimate(learning_task),
            groups=inner_folds(learning_task, self.level)[1],
            seed=seed,
        )
        return dataclasses.replace(fitted, target=fit_target(task))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FittedAsServed:
    columns: RawColumns
    middle: FloatArray
    typical: float
    target: FittedTarget | None = None

    def table(self, learning_task: LearningTask) -> FeatureArray:
        figures = _figures(self.columns, learning_task)
        known = np.where(np.isfinite(figures), figures, self.middle)
        return np.asarray(np.sign(known) * np.log1p(np.abs(known)), dtype=np.float32)

    def estimate(self, learning_task: LearningTask) -> FloatArray:
        name = _ESTIMATES.get(learning_task.target.name)
        if name is None:
            return np.array([max(1.0 - job.input_wait_ratio, _WAIT_LEFT_MIN) for job in learning_task.jobs])
        return np.array([job.graph.get(name, self.typical) for job in learning_task.jobs])

    def predict(self, learning_task: LearningTask) -> _Ends:
        assert self.target is not None
        found = self.target.served.predict_bounded(self.table(learning_task), self.estimate(learning_task), 0.9)
        return _Ends(found.value, found.lower, found.upper)


def _figures(columns: RawColumns, learning_task: LearningTask) -> FloatArray:
    """The table's columns, and the device's peaks."""
    return np.hstack([columns.table(learning_task), np.array([_peaks(job) for job in learning_task.jobs])])


def _peaks(job: JobFacts) -> Sequence[float]:
    device = find_device_type(job.device)
    if device is None:
        return (np.nan, np.nan)
    return (device.peak(job.precision), device.memory_bytes_per_s)
