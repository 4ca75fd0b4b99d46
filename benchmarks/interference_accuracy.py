"""How well slowdowns are predicted that were not trained on, against the bars of the project.

Every figure is a ratio of mean absolute errors on the same rows and folds, with a 95 % interval over groups, all seeds
together. Public sets are read from COTENANT_SHARED_DATA and left out where it is not set. Folds are drawn with
COTENANT_BENCHMARK_SEEDS (default 5) seeds; families are left out one by one, which no seed changes, so that they are
done once unless observed pairs are drawn. No further seed is begun after COTENANT_BENCHMARK_MINUTES (default 120).
COTENANT_BENCHMARK_TASKS names tasks, e.g. "alnair, family, 0 shots", joined by ;, instead of all. "campaigns_differ" is
the mean difference of a pair's slowdown between Gavel's two campaigns, by device type.

Takes about eight CPU minutes a seed; one process per core.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.interference_rounds import SETS, SHOTS, HeldOut, join_parts, predict_held_out
from cotenant.profile_schema import PairRow, read_rows
from predictor_service.learning.learning_task import FloatArray
from predictor_service.learning.metrics import measure_points
from predictor_service.learning.resampling import bootstrap_ratios
from predictor_service.selection.targets import SLOWDOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One data set by one rule.

    Attributes:
        data: Name in `SETS`.
        level: What is unseen.
        shots: Pairs observed of every new job.
    """

    data: str
    level: str
    shots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What was promised: ours at most `limit` times the best of some others.

    Attributes:
        task: On which rows.
        against: Names of the others.
        limit: Largest ratio; None = nothing was promised.
    """

    task: Task
    against: Sequence[str]
    limit: float | None


_PUBLIC: Final = ("gavel_2019_k80", "gavel_2019_v100", "alnair")
_UNPROMISED: Final = ("gavel_2020_k80", "gavel_2020_v100", "gavel_2020", "gavel")
"""Added after the bars were set; the last two pool device types, the last one campaigns too, as larger files do."""
_BEST_OF: Final = ("xgboost", "random_forest", "nearest_neighbours")
BARS: Final = (
    *(Bar(task=Task(data=data, level="random_pair"), against=("xgboost",), limit=0.65) for data in _PUBLIC),
    *(Bar(task=Task(data=data, level="job"), against=_BEST_OF, limit=0.80) for data in _PUBLIC),
    Bar(task=Task(data="gavel_2019_k80", level="family"), against=("mean",), limit=0.75),
    Bar(task=Task(data="gavel_2019_v100", level="family"), against=("mean",), limit=1.0),
    Bar(task=Task(data="alnair", level="family"), against=("mean",), limit=0.75),
    *(
        Bar(task=Task(data=data, level="family", shots=SHOTS), against=("additive without",), limit=0.5)
        for data in _PUBLIC
    ),
    *(Bar(task=Task(data=data, level="random_pair"), against=_BEST_OF, limit=None) for data in _UNPROMISED),
    *(Bar(task=Task(data=data, level="job"), against=_BEST_OF, limit=None) for data in _UNPROMISED[:2]),
    *(Bar(task=Task(data=data, level="family"), against=("mean",), limit=None) for data in _UNPROMISED[:2]),
)
_SHIPPED: Final = Path(__file__).resolve().parents[1] / "datasets" / "public"
_OWN: Final = tuple(Task(data="cpu_standin", level=level) for level in ("random_pair", "job", "family"))


def main() -> dict[str, object]:
    """Predicts everything and compares."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    seeds = range(int(os.environ.get("COTENANT_BENCHMARK_SEEDS", "5")))
    named = os.environ.get("COTENANT_BENCHMARK_TASKS", "")
    wanted = dict.fromkeys([*(bar.task for bar in BARS if root), *_OWN])
    tasks = [task for task in wanted if not named or _name(task) in named.split(";")]
    parts = _predict_all(tasks, list(seeds), root)
    results = {task: join_parts(each) for task, each in parts.items()}
    return {
        "seeds": {_name(task): len(each) for task, each in parts.items()},
        "bars": [_compare(bar, results[bar.task]) for bar in BARS if bar.task in results],
        "tables": {_name(task): _table(result) for task, result in results.items()},
        "campaigns_differ": compare_campaigns(_SHIPPED / "gavel"),
        "left_out": [] if root else [f"{data}: COTENANT_SHARED_DATA is not set" for data in (*_PUBLIC, *_UNPROMISED)],
    }


def compare_campaigns(folder: Path) -> dict[str, float]:
    """Mean absolute difference of the slowdown of the same two jobs between campaigns, by device type."""
    found: dict[tuple[str, str, tuple[str, ...]], dict[str, list[float]]] = {}
    for row in read_rows(folder / "pairs.csv.gz", PairRow):
        if row.status == "ok" and row.slowdown_ratio is not None:
            by_campaign = found.setdefault((row.device, row.victim_job_key, row.other_job_keys), {})
            by_campaign.setdefault(row.campaign, []).append(row.slowdown_ratio)
    differences: dict[str, list[float]] = {}
    for (device, _, _), by_campaign in found.items():
        means = [fmean(values) for values in by_campaign.values()]
        if len(means) > 1:
            differences.setdefault(device, []).append(max(means) - min(means))
    return {device: round(fmean(values), 3) for device, values in sorted(differences.items())}


def _predict_all(tasks: Sequence[Task], seeds: Sequence[int], root: str) -> dict[Task, list[HeldOut]]:
    """All tasks with the first seed, then with the next, until the seeds or the minutes are used up."""
    parts: dict[Task, list[HeldOut]] = {task: [] for task in tasks}
    end_s = time.monotonic() + 60.0 * float(os.environ.get("COTENANT_BENCHMARK_MINUTES", "120"))
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        for seed in seeds:
            drawn = [task for task in tasks if _is_drawn(task) or seed == seeds[0]]
            for task, part in zip(drawn, pool.map(_predict, [(task, seed, root) for task in drawn]), strict=True):
                sys.stderr.write(f"seed {seed}: {_name(task)}\n")
                parts[task].append(part)
            if time.monotonic() > end_s:
                break
    return parts


def _name(task: Task) -> str:
    return f"{task.data}, {task.level}, {task.shots} shots"


def _is_drawn(task: Task) -> bool:
    """Whether another seed gives other rows: families are left out one by one, in whatever order."""
    return task.level != "family" or task.shots > 0


def _predict(job: tuple[Task, int, str]) -> HeldOut:
    task, seed, root = job
    learning_task = SETS[task.data].read(Path(root) if root else None)
    return predict_held_out(learning_task, task.level, seed, shots=task.shots, with_aip=not task.shots)


def _compare(bar: Bar, result: HeldOut) -> dict[str, object]:
    errors = {name: _mae(result.values[name], result.measured) for name in ("ours", *bar.against)}
    against = min(bar.against, key=lambda name: errors[name])
    ratio = errors["ours"] / errors[against]
    interval = bootstrap_ratios(
        measure_points(SLOWDOWN, result.values["ours"], result.measured),
        measure_points(SLOWDOWN, result.values[against], result.measured),
        result.groups,
        seed=0,
    )["mae"]
    return {
        "data": bar.task.data,
        "unseen": bar.task.level,
        "shots": bar.task.shots,
        "against": against,
        "mae_ours": round(errors["ours"], 4),
        "mae_against": round(errors[against], 4),
        "ratio": round(ratio, 3),
        "ratio_95": None if interval is None else [round(end, 3) for end in interval],
        "limit": bar.limit,
        "met": None if bar.limit is None else ratio <= bar.limit,
    }


def _table(result: HeldOut) -> dict[str, object]:
    chosen = Counter(result.selected).most_common()
    return {
        "predictions": len(result.measured),
        "groups": len(frozenset[str]().union(*result.groups)),
        "selected": dict(chosen),
        "coverage_90_ratio": round(float(result.inside_90.mean()), 3),
        "coverage_99_ratio": round(float(result.below_99.mean()), 3),
        "width_90_of_shared_time_median": round(float(np.median(result.width_90)), 3),
        "methods": {name: _figures(values, result.measured) for name, values in result.values.items()},
    }


def _figures(values: FloatArray, measured: FloatArray) -> Mapping[str, float]:
    """Mean absolute error of the slowdown, and of the shared time as a share of it."""
    shared = float(np.mean(np.abs(values - measured) / (1.0 + measured)))
    return {"mae": round(_mae(values, measured), 4), "shared_time_error_ratio": round(shared, 4)}


def _mae(values: FloatArray, measured: FloatArray) -> float:
    return float(np.mean(np.abs(values - measured)))
