"""Which way to compose slowdowns fits measured multiway co-locations best: a victim and two or more jobs.

Reads every data set of this repository and those in COTENANT_CROWD_DATA (folders or files in our schema, joined by the
path separator). For each row with several jobs next to the victim, the measured slowdowns with each of them alone are
composed in every way known and compared with what was measured; ways that learn a number learn it from the groups of
other jobs. Says so where no set has such rows.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.features.slowdown_composition import COMPOSITIONS, compose_slowdowns
from predictor_service.features.time_slicing import compose_time_slices, exceed_sum, slow_by_fair_time_slices
from predictor_service.learning.learning_task import BoolArray, FloatArray, JobFacts, LearningTask
from predictor_service.learning.learning_task_reader import list_devices, read_learning_task
from predictor_service.learning.metrics import measure_points
from predictor_service.learning.profile_files import read_profiles
from predictor_service.learning.resampling import bootstrap, bootstrap_ratios
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.table_methods.slowdown_pairs import name_job

_OWN_SETS: Final = Path(__file__).resolve().parents[1] / "datasets"
_DIGITS: Final = 4
StringArray = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultiwayColocation:
    """A victim co-located with several jobs, with what was measured of its pairs and of its jobs alone.

    Attributes:
        members: What its rows have in common: all of its jobs.
        measured: Slowdown of the victim co-located with all others.
        pairs: Slowdown of each job with each other one alone, the victim first; the diagonal is 0.
        shares: Utilization of each job alone.
    """

    members: str
    measured: float
    pairs: FloatArray
    shares: FloatArray

    @property
    def co_located(self) -> FloatArray:
        """Slowdowns of the victim with each other job alone."""
        return self.pairs[0, 1:]


def _composed(how: str) -> Callable[[MultiwayColocation], float]:
    def way(colocation: MultiwayColocation) -> float:
        return float(
            compose_slowdowns(colocation.co_located, np.zeros(len(colocation.co_located), dtype=np.intp), 1, how)[0]
        )

    return way


def _power(colocation: MultiwayColocation, exponent: float) -> float:
    """Between the worst co-located job (a large exponent) and more than the sum (one below 1)."""
    return float(np.sum(np.maximum(colocation.co_located, 0.0) ** exponent) ** (1.0 / exponent))


DEFAULT: Final = "sum and longer turns"
WAYS: Final[Mapping[str, Callable[[MultiwayColocation], float]]] = {
    **{how: _composed(how) for how in COMPOSITIONS},
    DEFAULT: lambda colocation: float(colocation.co_located.sum() + exceed_sum(colocation.shares)[0]),
    "turns": lambda colocation: float(compose_time_slices(colocation.shares, colocation.pairs)[0]),
    "fair_turns, utilization alone": lambda colocation: float(slow_by_fair_time_slices(colocation.shares)[0]),
    "capacity, utilization alone": lambda colocation: max(float(colocation.shares.sum()) - 1.0, 0.0),
}
"""Ways that learn nothing."""
LEARNED: Final[Mapping[str, tuple[Callable[[MultiwayColocation, float], float], FloatArray]]] = {
    "sum, learned factor": (
        lambda colocation, factor: factor * float(colocation.co_located.sum()),
        np.linspace(0.5, 2.0, 61),
    ),
    "turns, learned factor": (lambda colocation, factor: factor * WAYS["turns"](colocation), np.linspace(0.5, 2.0, 61)),
    "learned power": (_power, np.linspace(0.6, 4.0, 69)),
}
"""Ways with one number, and the numbers that are tried."""
CHOSEN: Final = "chosen on other crowds"
_LEARNING_GROUPS_MIN: Final = 3


def main() -> dict[str, object]:
    """Compares on every data set and device type."""
    extra = [Path(part) for part in os.environ.get("COTENANT_CROWD_DATA", "").split(os.pathsep) if part]
    own = sorted(folder for folder in _OWN_SETS.iterdir() if (folder / "pairs.csv").is_file())
    figures: dict[str, object] = {}
    for path in [*own, *extra]:
        profiles = read_profiles(path)
        for device in list_devices(profiles, SLOWDOWN):
            figures[f"{profiles.name}, {device}"] = compare_compositions(
                read_learning_task(profiles, SLOWDOWN, device).learning_task
            )
    return {"default": DEFAULT, "sets": figures}


def compare_compositions(learning_task: LearningTask) -> Mapping[str, object]:
    """Compares the ways to compose on the multiway co-locations of one learning task.

    Args:
        learning_task: Rows of pairs and of larger groups.

    Returns:
        Number of rows with a group whose every pair was measured too, and of distinct groups; by way the mean absolute
        error of the slowdown with its 95 % interval over groups, its ratio to the sum's, and the error of the shared
        time as a share of it.
    """
    colocations = list(_read_colocations(learning_task))
    figures: dict[str, object] = {
        "rows": len(colocations),
        "crowds": len({colocation.members for colocation in colocations}),
    }
    if not colocations:
        return figures
    measured = np.array([colocation.measured for colocation in colocations])
    members = np.array([colocation.members for colocation in colocations])
    values = {name: np.array([way(colocation) for colocation in colocations]) for name, way in WAYS.items()}
    if len(np.unique(members)) >= _LEARNING_GROUPS_MIN:
        tables = {
            name: np.array([[way(colocation, float(number)) for number in numbers] for colocation in colocations])
            for name, (way, numbers) in LEARNED.items()
        }
        every = np.ones(len(colocations), dtype=bool)
        chosen = _choose(values, tables, measured, members)
        values.update({name: _learn(table, measured, members, every) for name, table in tables.items()})
        values[CHOSEN] = chosen
    groups = [frozenset({colocation.members}) for colocation in colocations]
    baseline = measure_points(SLOWDOWN, values["sum"], measured)
    for name, predicted in values.items():
        errors = measure_points(SLOWDOWN, predicted, measured)
        off = np.abs(predicted - measured)
        figures[name] = {
            "mae": round(float(off.mean()), _DIGITS),
            "mae_95": _rounded(bootstrap(errors, groups, seed=0)["mae"]),
            "ratio_to_sum_95": _rounded(bootstrap_ratios(errors, baseline, groups, seed=0)["mae"]),
            "bias": round(float((predicted - measured).mean()), _DIGITS),
            "shared_time_error_ratio": round(float((off / (1.0 + measured)).mean()), _DIGITS),
        }
    return figures


def _rounded(ends: tuple[float, float] | None) -> list[float] | None:
    return None if ends is None else [round(end, _DIGITS) for end in ends]


def _read_colocations(learning_task: LearningTask) -> Iterator[MultiwayColocation]:
    """Rows with several jobs next to the victim, where every pair among them was measured and every job alone."""
    alone: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job, others, measured in zip(learning_task.jobs, learning_task.others, learning_task.measured, strict=True):
        if len(others) == 1:
            alone[name_job(job), name_job(others[0])].append(float(measured))
    for job, others, measured in zip(learning_task.jobs, learning_task.others, learning_task.measured, strict=True):
        jobs = (job, *others)
        shares = [each.solo.utilization_ratio for each in jobs]
        pairs = _pairs_among(jobs, alone)
        if len(others) > 1 and pairs is not None and None not in shares:
            yield MultiwayColocation(
                members="|".join(sorted(name_job(each) for each in jobs)),
                measured=float(measured),
                pairs=pairs,
                shares=np.array(shares, dtype=np.float64),
            )


def _pairs_among(jobs: Sequence[JobFacts], alone: Mapping[tuple[str, str], Sequence[float]]) -> FloatArray | None:
    names = [name_job(job) for job in jobs]
    pairs = np.zeros((len(jobs), len(jobs)))
    for victim, other in zip(*np.nonzero(~np.eye(len(jobs), dtype=bool)), strict=True):
        measured = alone.get((names[victim], names[other]))
        if not measured:
            return None
        pairs[victim, other] = float(np.mean(measured))
    return pairs


def _learn(table: FloatArray, measured: FloatArray, members: StringArray, rows: BoolArray) -> FloatArray:
    """Answers of some rows, each by the number that fits the other groups among them best; NaN for other rows.

    Args:
        table: Answer of each row by each number that is tried, shape (rows, numbers).
        measured: Shape (rows,).
        members: Co-located jobs of each row.
        rows: Which rows take part, of at least two groups.
    """
    errors = np.abs(table - measured[:, None])
    answers = np.full(len(members), np.nan)
    for name in np.unique(members[rows]):
        mine = rows & (members == name)
        best = int(errors[rows & ~mine].mean(axis=0).argmin())
        answers[mine] = table[mine, best]
    return answers


def _choose(
    fixed: Mapping[str, FloatArray], tables: Mapping[str, FloatArray], measured: FloatArray, members: StringArray
) -> FloatArray:
    """Every group's answer by the way that errs least on the other groups; what learns is judged by folds of those."""
    every = np.ones(len(members), dtype=bool)
    learned = {name: _learn(table, measured, members, every) for name, table in tables.items()}
    answers = np.full(len(members), np.nan)
    for name in np.unique(members):
        mine = members == name
        inner = {**fixed, **{each: _learn(table, measured, members, ~mine) for each, table in tables.items()}}
        errors = {each: float(np.abs(values - measured)[~mine].mean()) for each, values in inner.items()}
        best = min(errors, key=lambda each: errors[each])
        answers[mine] = {**fixed, **learned}[best][mine]
    return answers
