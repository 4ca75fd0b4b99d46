"""Whether ranges of slowdowns hold where they are sold: about jobs that nothing but their graphs is known of.

Families of `datasets/cpu_standin` are held out, a few at a time. A version is trained, as `cotenant retrain` trains it,
on the rows none of whose jobs is of them, and a predictor with that version is asked about all jobs at once, as a
service is: once with what each was measured to do alone, once with its graph and settings only. Judged are the ordered
pairs with a job of a held-out family; a job with its copy is not, whose steps a campaign begins at one instant. "light"
pairs slowed the victim down by less than half.

About two CPU minutes; it takes no arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.interference_online import ReadGraphs, World, read_known_world, read_own_world
from benchmarks.retrained_accuracy import keep_families, retrain_set
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import PairJob, PairsQuestion
from predictor_service.learning.learning_task import BoolArray, FloatArray
from predictor_service.registry.served_version import ServedVersion
from predictor_service.retraining.datasets import Dataset, read_dataset
from predictor_service.selection.folds import grouped_folds

DEVICE: Final = "cpu-standin"
PARTS: Final = 7
LIGHT: Final = 0.5
SEED: Final = 0
_DIGITS: Final = 4
_OWN_SET: Final = Path(__file__).resolve().parents[1] / "datasets" / "cpu_standin"


@dataclass(frozen=True, slots=True)
class _Trained:
    """One version, for a predictor."""

    version: ServedVersion

    def current(self) -> ServedVersion | None:
        return self.version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """What was said of judged pairs; arrays of shape (pairs,)."""

    measured: FloatArray
    value: FloatArray
    lower: FloatArray
    upper: FloatArray


def main() -> dict[str, object]:
    """Holds out every family once."""
    dataset, world = read_dataset(_OWN_SET), read_own_world(_OWN_SET)
    ways = {"jobs known alone": _with_figures(world, read_known_world(_OWN_SET)), "graphs alone": world.jobs}
    family_of = {row.graph_sha256 or "": row.family for row in dataset.solo}
    families = [family_of[job.graph_sha256] for job in world.jobs]
    asked: dict[str, list[Answers]] = {way: [] for way in ways}
    for left_out in split_families(families):
        version = retrain_set(keep_families(dataset, _all_families(dataset) - left_out), SEED)
        is_judged = judged_pairs(world, np.array([family in left_out for family in families]))
        for way, jobs in ways.items():
            asked[way].append(ask(version, world, jobs, is_judged))
    return {way: score(answers) for way, answers in asked.items()}


def _all_families(dataset: Dataset) -> frozenset[str]:
    return frozenset(row.family for row in dataset.solo)


def _with_figures(world: World, known: World) -> Sequence[PairJob]:
    """The jobs of a world with what each was measured to do alone."""
    return [
        dataclasses.replace(
            job,
            known_step_ms=figures.known_step_ms,
            known_utilization_ratio=figures.known_utilization_ratio,
            known_memory_bytes=figures.known_memory_bytes,
        )
        for job, figures in zip(world.jobs, known.jobs, strict=True)
    ]


def split_families(families: Sequence[str]) -> Sequence[frozenset[str]]:
    """The families of jobs in `PARTS` parts, which are held out one after the other."""
    folds = grouped_folds([frozenset({family}) for family in families], PARTS)
    return [frozenset(families[place] for place in fold.test.tolist()) for fold in folds]


def judged_pairs(world: World, is_left_out: BoolArray) -> BoolArray:
    """Measured pairs of two different jobs at least one of which is left out, shape (jobs, jobs)."""
    is_new = is_left_out[:, None] | is_left_out[None, :]
    return np.isfinite(world.truth) & is_new & ~np.eye(len(is_left_out), dtype=bool)


def ask(version: ServedVersion, world: World, jobs: Sequence[PairJob], is_judged: BoolArray) -> Answers:
    """Asks a predictor about all jobs."""
    library = GraphLibrary(ReadGraphs(world.graphs), None)
    for name in sorted(world.graphs):
        library.describe(name.encode("ascii"), {})
    answer = Predictor(library, _Trained(version)).predict_pairs(PairsQuestion(device=DEVICE, jobs=jobs))
    return Answers(
        measured=world.truth[is_judged],
        value=answer.slowdown_ratio[is_judged].astype(np.float64),
        lower=answer.lower[is_judged].astype(np.float64),
        upper=answer.upper[is_judged].astype(np.float64),
    )


def score(answers: Sequence[Answers]) -> Mapping[str, Mapping[str, float]]:
    """Errors, coverage and width over all parts, of all pairs and of light ones."""
    joined = Answers(
        **{
            field.name: np.concatenate([getattr(each, field.name) for each in answers])
            for field in dataclasses.fields(Answers)
        }
    )
    chosen = {"all": np.ones(len(joined.measured), dtype=bool), "light": joined.measured < LIGHT}
    return {name: _figures(joined, rows) for name, rows in chosen.items() if rows.any()}


def _figures(answers: Answers, rows: BoolArray) -> Mapping[str, float]:
    measured, value, lower, upper = (
        each[rows] for each in (answers.measured, answers.value, answers.lower, answers.upper)
    )
    figures = {
        "mae": np.abs(value - measured).mean(),
        "bias": (value - measured).mean(),
        "coverage_90_ratio": ((lower <= measured) & (measured <= upper)).mean(),
        "width_90_mean": (upper - lower).mean(),
    }
    return {"pairs": int(rows.sum()), **{name: round(float(each), _DIGITS) for name, each in figures.items()}}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
