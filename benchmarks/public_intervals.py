"""Whether intervals as they are served hold on public rows, by how near the asked job is, as JSON.

The rows of timm's memory have no ONNX graph, so that they are learned from the columns of `cotenant evaluate` with its
physics, and kinds of jobs differ by the figures of the traced step; folds, candidates, widths and nearness are those
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
from benchmarks.solo_learning_tasks import TASKS, read_task
from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.fitting.fit import FittingTask
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.selection.folds import Fold, grouped_folds, setting_folds
from predictor_service.selection.targets import MEMORY
from predictor_service.table_methods.analytical_estimate import fit_analytical_model
from predictor_service.table_methods.solo_columns import at_batches, learn_solo_columns

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
    learning_task = whole.subset(
        [row for row, job in enumerate(whole.jobs) if sum(job.architecture.encode()) % every == 0]
    )
    with threadpool_limits(1):
        return {"rows": len(learning_task), TASK: {level: judge(learning_task, level) for level in LEVELS}}


def judge(learning_task: LearningTask, level: str) -> dict[str, Any]:
    """Leaves parts of a level out, a fifth at a time, and asks about them."""
    labels = [next(iter(group)) for group in learning_task.groups({LEVELS[0]: "job"}.get(level, level))]
    features = np.stack([vector_of(job) for job in learning_task.jobs])
    ways: dict[str, Any] = {}
    for fold in splits(learning_task, level):
        task = task_of(learning_task, features, fold)
        for way, bounded in ask_part(part(task, fold.train), part(task, fold.test)).items():
            ways.setdefault(way, []).append((fold.test, bounded))
    return {way: score(answers, learning_task.measured, labels) for way, answers in ways.items()}


def splits(learning_task: LearningTask, level: str) -> Iterator[Fold]:
    """Yields a fifth of the families, or of each larger part, of which the rest stays."""
    if level == LEVELS[-1]:
        yield from grouped_folds(learning_task.groups(level), folds_max=_FOLDS)
        return
    names = ([job.job_key for job in learning_task.jobs], [job.architecture for job in learning_task.jobs])
    codes = codes_of(dict(zip(LEVELS, (*names, [job.family for job in learning_task.jobs]), strict=True)))
    yield from setting_folds(codes[LEVELS[LEVELS.index(level) + 1]], codes[level], _FOLDS)


def task_of(learning_task: LearningTask, features: FloatArray, fold: Fold) -> FittingTask:
    """All rows as the training rows of a fold teach to see them."""
    jobs, known = at_batches(learning_task), at_batches(learning_task.subset(fold.train))
    analytical_model = fit_analytical_model(known)
    analytical_estimate = analytical_model.analytical_estimate(jobs)
    columns = learn_solo_columns(known, "family", analytical_model.analytical_estimate(known)).table(
        jobs, analytical_estimate
    )
    return FittingTask(
        target=MEMORY,
        device=learning_task.device,
        columns=columns.astype(np.float32),
        measured=learning_task.measured,
        analytical_estimate=analytical_estimate,
        groups=learning_task.groups("family"),
        seed=0,
        features=features,
    )


def vector_of(job: JobFacts) -> FloatArray:
    """What distinguishes kinds and settings of jobs, from figures of the traced step; all else is 0."""
    figures = {
        "log_batch": float(np.log(job.micro_batch_size)),
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
