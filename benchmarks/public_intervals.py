"""Whether intervals as they are served hold on public rows, by how near the asked job is, as JSON.

The rows of timm's memory have no ONNX graph, so that they are learned from the columns of `cotenant evaluate` with its
physics, and kinds of jobs are told by the figures of the traced step; folds, candidates, widths and nearness are those
that a training would serve. One model in COTENANT_BENCHMARK_EVERY (default 6) takes part; see `served_intervals` for
levels and columns. Public sets are read from COTENANT_SHARED_DATA. Three CPU minutes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.served_intervals import LEVELS, ask_part, codes_of, part, score
from benchmarks.solo_problems import TASKS, read_task
from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.fitting.fit import FittingTask
from predictor_service.learning.problem import FloatArray, JobFacts, Problem
from predictor_service.learning.solo_columns import at_batches, learn_solo_columns
from predictor_service.learning.solo_physics import fit_physics
from predictor_service.selection.folds import Fold, grouped_folds, setting_folds
from predictor_service.selection.targets import MEMORY

TASK: Final = "memory, timm, unseen family"
_FOLDS: Final = 5
_COUNTS: Final = tuple(name for name in FEATURE_INDEX if name.startswith("log_") and name.endswith("_nodes"))


def main() -> dict[str, Any]:
    """Judges every level."""
    root = os.environ.get("COTENANT_SHARED_DATA", "")
    if not root:
        return {"left_out": [f"{TASK}: COTENANT_SHARED_DATA is not set"]}
    every = int(os.environ.get("COTENANT_BENCHMARK_EVERY", "6"))
    whole = read_task(TASKS[TASK], Path(root))
    problem = whole.subset([row for row, job in enumerate(whole.jobs) if sum(job.architecture.encode()) % every == 0])
    with threadpool_limits(1):
        return {"rows": len(problem), TASK: {level: judge(problem, level) for level in LEVELS}}


def judge(problem: Problem, level: str) -> dict[str, Any]:
    """Leaves parts of a level out, a fifth at a time, and asks about them."""
    labels = [next(iter(group)) for group in problem.groups({LEVELS[0]: "job"}.get(level, level))]
    features = np.stack([vector_of(job) for job in problem.jobs])
    ways: dict[str, Any] = {}
    for fold in splits(problem, level):
        task = task_of(problem, features, fold)
        for way, bounded in ask_part(part(task, fold.train), part(task, fold.test)).items():
            ways.setdefault(way, []).append((fold.test, bounded))
    return {way: score(answers, problem.measured, labels) for way, answers in ways.items()}


def splits(problem: Problem, level: str) -> Iterator[Fold]:
    """Yields a fifth of the families, or of each larger part, of which the rest stays."""
    if level == LEVELS[-1]:
        yield from grouped_folds(problem.groups(level), folds_max=_FOLDS)
        return
    names = ([job.job_key for job in problem.jobs], [job.architecture for job in problem.jobs])
    codes = codes_of(dict(zip(LEVELS, (*names, [job.family for job in problem.jobs]), strict=True)))
    yield from setting_folds(codes[LEVELS[LEVELS.index(level) + 1]], codes[level], _FOLDS)


def task_of(problem: Problem, features: FloatArray, fold: Fold) -> FittingTask:
    """All rows as the training rows of a fold teach to see them."""
    jobs, known = at_batches(problem), at_batches(problem.subset(fold.train))
    physics = fit_physics(known)
    anchor = physics.anchor(jobs)
    columns = learn_solo_columns(known, "family", physics.anchor(known)).table(jobs, anchor)
    return FittingTask(
        target=MEMORY,
        device=problem.device,
        columns=columns.astype(np.float32),
        measured=problem.measured,
        anchor=anchor,
        groups=problem.groups("family"),
        seed=0,
        features=features,
    )


def vector_of(job: JobFacts) -> FloatArray:
    """What tells kinds and settings of jobs apart, from figures of the traced step; all else is 0."""
    figures = {
        "log_batch": float(np.log(job.sub_batch)),
        "input_wait_ratio": job.input_wait_ratio,
        "is_training": 1.0,
        f"precision_is_{job.precision}": 1.0,
        "log_parameters": float(np.log1p(job.graph["parameters"])),
        "log_flops_per_sample": float(np.log1p(job.graph["forward_macs_per_sample"])),
        **{name: float(np.log1p(job.graph.get(name.removeprefix("log_"), 0.0))) for name in _COUNTS},
    }
    return np.array([figures.get(feature.name, 0.0) for feature in FEATURES])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
