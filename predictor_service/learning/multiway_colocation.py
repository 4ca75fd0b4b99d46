"""Victims co-located with several jobs: their pairs are predicted, and composed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from predictor_service.features.slowdown_composition import compose_slowdowns
from predictor_service.features.time_slicing import COLOCATED_JOBS_MAX, exceed_sum
from predictor_service.learning.learning_task import BoolArray, FloatArray, IndexArray, JobFacts, LearningTask

_TAKES_TURNS: Final = "time_slicing"


def pair_up(learning_task: LearningTask) -> tuple[LearningTask, IndexArray]:
    """Splits rows of several jobs co-located with the victim into one row per such job.

    Returns:
        The rows and, for each, the place of the row that it came from.
    """
    places = [row for row, others in enumerate(learning_task.others) for _ in others]
    pairs = learning_task.subset(places)
    others = tuple((other,) for co_located in learning_task.others for other in co_located)
    return dataclasses.replace(pairs, others=others), np.array(places, dtype=np.intp)


def compose_multiway_slowdowns(
    learning_task: LearningTask, slowdown_ratio: FloatArray, row_of_pair: IndexArray
) -> FloatArray:
    """Composes the slowdowns of paired-up rows: their sum, and longer turns where jobs take turns.

    Args:
        learning_task: Rows as they were before `pair_up`.
        slowdown_ratio: Of each pair, shape (pairs,).
        row_of_pair: Row of each pair, shape (pairs,).

    Returns:
        Slowdown ratios, shape (rows,).
    """
    rows = zip(learning_task.jobs, learning_task.others, strict=True)
    longer = np.array([_longer_turns(job, others) for job, others in rows], dtype=np.float64)
    return compose_slowdowns(slowdown_ratio, row_of_pair, len(learning_task)) + longer


def widest_pair(widths: FloatArray, row_of_pair: IndexArray, rows: int) -> FloatArray:
    """Widths of rows: a row of several jobs is as uncertain as the most uncertain of its pairs; shape (rows,)."""
    result = np.zeros(rows)
    np.maximum.at(result, row_of_pair, widths)
    return result


def every_pair(flags: BoolArray, row_of_pair: IndexArray, rows: int) -> BoolArray:
    """Whether a flag holds for every pair of each row, shape (rows,)."""
    result = np.ones(rows, dtype=bool)
    np.logical_and.at(result, row_of_pair, flags)
    return result


def _longer_turns(victim: JobFacts, others: Sequence[JobFacts]) -> float:
    """0 where the jobs do not take turns, or where it is not known how long they want the device."""
    shares = [job.solo.utilization_ratio for job in (victim, *others)]
    known = np.array([share for share in shares if share is not None], dtype=np.float64)
    if not 3 <= len(known) == len(shares) <= COLOCATED_JOBS_MAX or victim.labels.get("share_mode") != _TAKES_TURNS:
        return 0.0
    return float(exceed_sum(known)[0])
