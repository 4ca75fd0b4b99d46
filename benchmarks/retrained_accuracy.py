"""A predictor retrained on half of our own measured set, judged on families that it has not seen.

The families are halved at random. A version is trained, as `cotenant retrain` trains it, on the rows all of whose jobs
are of the first half, and answers the rows with a job of the second half; nothing is chosen on those. Slowdowns are
asked for with the jobs measured alone; a half that has too few families of pairs for a model is answered by fair turns,
as the service does. Next to it: the mean of the training rows; an additive model (for slowdowns the
effects of victim and other job, for memory those of optimizer, precision, mode and batch on its logarithm); and the
method that learns public tables. The bar is on the better of mean and additive, all halvings
together; intervals resample families. COTENANT_BENCHMARK_SEEDS (default 10) halvings; half a CPU minute each.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from sklearn.linear_model import Ridge

from predictor_service.evaluation.baselines import BASELINES
from predictor_service.evaluation.fresh_model import described_method
from predictor_service.evaluation.stored_model import StoredModel
from predictor_service.learning.learning_task import FloatArray, Forecast, LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.metrics import measure_forecast, measure_points
from predictor_service.learning.profile_files import read_profiles
from predictor_service.learning.resampling import bootstrap_ratios
from predictor_service.registry.served_version import ServedVersion
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.datasets import Dataset, read_dataset
from predictor_service.retraining.training import train_version
from predictor_service.selection.targets import MEMORY, SLOWDOWN, Target

BAR: Final = 0.8
DEVICE: Final = "cpu-standin"
_TARGETS: Final = (SLOWDOWN, MEMORY)
METRICS: Final[Mapping[str, str]] = {"slowdown": "mae", "memory": "mape_ratio"}
"""What the bar is on, by target."""
_LEVEL: Final = "family"
_OWN_SET: Final = Path(__file__).resolve().parents[1] / "datasets" / "cpu_standin"
_DIGITS: Final = 4
_RIDGE: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """Answers about rows of unseen families.

    Attributes:
        measured: Shape (rows,).
        served: Of the retrained version.
        values: Of everything else by name, each of shape (rows,).
        groups: Families of each row.
        all_unseen: Whether every job of the row is of an unseen family, shape (rows,).
    """

    measured: FloatArray
    served: Forecast
    values: Mapping[str, FloatArray]
    groups: Sequence[frozenset[str]]
    all_unseen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def main() -> dict[str, object]:
    """Halves, retrains and compares."""
    seeds = range(int(os.environ.get("COTENANT_BENCHMARK_SEEDS", "10")))
    dataset, profiles = read_dataset(_OWN_SET), read_profiles(_OWN_SET)
    learning_tasks = {target: read_learning_task(profiles, target, DEVICE).learning_task for target in _TARGETS}
    single = np.flatnonzero([len(others) == 1 for others in learning_tasks[SLOWDOWN].others])
    learning_tasks[SLOWDOWN] = learning_tasks[SLOWDOWN].subset(single)
    judged: dict[Target, list[Judged]] = defaultdict(list)
    for seed in seeds:
        seen = halve_families(dataset, seed)
        sys.stderr.write(f"  halving {seed}: trains on {', '.join(sorted(seen))}\n")
        version = retrain_set(keep_families(dataset, seen), seed)
        for target, learning_task in learning_tasks.items():
            judged[target].append(_judge(version, learning_task, seen, seed))
    return {
        "halvings": len(seeds),
        "families": len({row.family for row in dataset.solo}),
        "architectures": len({row.architecture for row in dataset.solo}),
        **{target.quantity: _compare(target, parts) for target, parts in judged.items()},
    }


def halve_families(dataset: Dataset, seed: int) -> frozenset[str]:
    """Families to learn from: half of them, the larger half where their number is odd."""
    names = sorted({row.family for row in dataset.solo if row.status == "ok"})
    order = np.random.default_rng(seed).permutation(len(names))
    return frozenset(names[int(place)] for place in order[: (len(names) + 1) // 2])


def keep_families(dataset: Dataset, families: frozenset[str]) -> Dataset:
    """The rows all of whose jobs are of some families, with their graphs."""
    solo = tuple(row for row in dataset.solo if row.family in families)
    keys = {row.job_key for row in solo}
    pairs = tuple(row for row in dataset.pairs if {row.victim_job_key, *row.other_job_keys} <= keys)
    hashes = {row.graph_sha256 for row in solo}
    graphs = {name: graph for name, graph in dataset.graphs.items() if name in hashes}
    return dataclasses.replace(dataset, solo=solo, pairs=pairs, graphs=graphs)


def retrain_set(dataset: Dataset, seed: int) -> ServedVersion:
    """The version that `cotenant retrain` would store."""
    trained = train_version([dataset], seed)
    with tempfile.TemporaryDirectory(prefix="cotenant-retrained-") as folder:
        store = VersionStore(Path(folder))
        store.add(trained.manifest, trained.files)
        return store.load(trained.manifest.version)


def _judge(version: ServedVersion, learning_task: LearningTask, seen: frozenset[str], seed: int) -> Judged:
    groups = learning_task.groups(_LEVEL)
    unseen = np.array([not members <= seen for members in groups])
    train, test = learning_task.subset(np.flatnonzero(~unseen)), learning_task.subset(np.flatnonzero(unseen))
    hidden = dataclasses.replace(test, measured=np.full(len(test), np.nan))
    fresh = described_method(learning_task.target, _LEVEL).fit(train, seed)
    mean = BASELINES["mean"](train, hidden, _LEVEL, seed)
    additive = _ADDITIVE[learning_task.target.name](train, hidden, seed)
    assert mean is not None
    tested = test.groups(_LEVEL)
    return Judged(
        measured=test.measured,
        served=_ask(version, hidden, seed),
        values={"mean": mean, "additive": additive, "method of public tables": fresh.predict(hidden).value},
        groups=tested,
        all_unseen=np.array([members.isdisjoint(seen) for members in tested]),
    )


def _ask(version: ServedVersion, hidden: LearningTask, seed: int) -> Forecast:
    if hidden.target is not SLOWDOWN or "slowdown_ratio" in version.devices[DEVICE]:
        return StoredModel(version, hidden.target, DEVICE).predict(hidden)
    fair = BASELINES["roofline"](hidden, hidden, _LEVEL, seed)
    assert fair is not None  # all jobs were measured alone
    zeros, upper = np.zeros(len(hidden)), 2.0 * fair
    return Forecast(value=fair, lower_90=zeros, upper_90=upper, upper_99=upper, in_domain=zeros.astype(bool))


def _additive_slowdown(train: LearningTask, test: LearningTask, seed: int) -> FloatArray:
    values = BASELINES["additive"](train, test, _LEVEL, seed)
    assert values is not None
    return values


def _additive_memory(train: LearningTask, test: LearningTask, seed: int) -> FloatArray:
    """Effects of the settings; an architecture that was never seen has none of its own."""
    labels = sorted({_settings(train, row) for row in range(len(train))})

    def table(learning_task: LearningTask) -> FloatArray:
        batch = np.log([job.batch for job in learning_task.jobs])[:, None]
        settings = [
            [float(_settings(learning_task, row) == label) for label in labels] for row in range(len(learning_task))
        ]
        return np.hstack([batch, np.array(settings)])

    model = Ridge(alpha=_RIDGE).fit(table(train), MEMORY.compress(train.measured))
    return MEMORY.expand(np.asarray(model.predict(table(test)), dtype=np.float64))


def _settings(learning_task: LearningTask, row: int) -> tuple[str, str, str]:
    job = learning_task.jobs[row]
    return job.optimizer, job.precision, job.labels["mode"]


_ADDITIVE: Final[Mapping[str, Callable[[LearningTask, LearningTask, int], FloatArray]]] = {
    SLOWDOWN.name: _additive_slowdown,
    MEMORY.name: _additive_memory,
}


def _compare(target: Target, parts: Sequence[Judged]) -> dict[str, object]:
    """All halvings together: rows with any job of an unseen family, and those of unseen families only."""
    both = np.concatenate([part.all_unseen for part in parts])
    rows = {"any job unseen": np.ones(len(both), dtype=bool), "all jobs unseen": both}
    return {name: _compare_rows(target, parts, chosen) for name, chosen in rows.items() if chosen.any()}


def _compare_rows(
    target: Target, parts: Sequence[Judged], chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> dict[str, object]:
    metric = METRICS[target.quantity]
    measured = np.concatenate([part.measured for part in parts])[chosen]
    groups = [
        group for group, kept in zip((each for part in parts for each in part.groups), chosen, strict=True) if kept
    ]
    served = _join([part.served for part in parts], chosen)
    values = {"served": served.value} | {
        name: np.concatenate([part.values[name] for part in parts])[chosen] for name in parts[0].values
    }
    errors = {name: measure_points(target, each, measured) for name, each in values.items()}
    figures = {name: each.as_mapping()[metric] or 0.0 for name, each in errors.items()}
    against = min(("mean", "additive"), key=lambda name: figures[name])
    intervals = measure_forecast(target, served, measured).as_mapping()
    return {
        "rows": len(measured),
        metric: {name: round(value, _DIGITS) for name, value in figures.items()},
        "against": against,
        "ratio": round(figures["served"] / figures[against], _DIGITS),
        "ratio_95": _rounded(bootstrap_ratios(errors["served"], errors[against], groups, seed=0)[metric]),
        "ratio_of_method_of_public_tables": round(figures["method of public tables"] / figures[against], _DIGITS),
        "limit": BAR,
        "met": figures["served"] <= BAR * figures[against],
        "coverage_90_ratio": round(intervals["coverage_90_ratio"] or 0.0, _DIGITS),
        "coverage_99_ratio": round(intervals["coverage_99_ratio"] or 0.0, _DIGITS),
    }


def _join(parts: Sequence[Forecast], chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Forecast:
    names = ("value", "lower_90", "upper_90", "upper_99", "in_domain")
    return Forecast(**{name: np.concatenate([getattr(part, name) for part in parts])[chosen] for name in names})


def _rounded(ends: tuple[float, float] | None) -> list[float] | None:
    return None if ends is None else [round(end, _DIGITS) for end in ends]
