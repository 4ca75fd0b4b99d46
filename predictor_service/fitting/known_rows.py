"""What a service knows of jobs, as the columns and analytical estimates that it learns from and answers by.

A row can be answered when the job's graph was described, by its file or by a table's figures, on a device type with
known peaks, and its step, where that is asked for, is no compiled model's and of no other memory layout; a row of two
jobs when both were measured alone. It can be learned from when, in addition, one device ran undivided batches: a step
of several passes is not that of the features of its part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.devices import find_device_type
from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.features.pair_features import SoloFigures, build_pair_features, fair_share_slowdowns
from predictor_service.fitting.table_rows import has_usual_settings, is_described, served_figures
from predictor_service.learning.cross_device_rows import USUAL_LAYOUT, steps_as_usual
from predictor_service.learning.learning_task import BoolArray, JobFacts, LearningTask
from predictor_service.learning.learning_task import SoloFigures as MeasuredAlone
from predictor_service.learning.learning_task_reader import NOT_COMPARABLE
from predictor_service.registry.held_out import name_jobs, name_row
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.selection.targets import MEMORY, SLOWDOWN, SM_ACTIVITY, STEP, UTILIZATION, Target

_ANCHORS: Final[Mapping[str, Callable[[JobFacts], float]]] = {
    UTILIZATION.name: lambda job: 1.0 - job.input_wait_ratio,
    SM_ACTIVITY.name: lambda job: 1.0 - job.input_wait_ratio,
    MEMORY.name: lambda job: job.graph["analytical_memory_bytes"],
    STEP.name: lambda job: job.graph["roofline_ms"],
}
WITHOUT_GRAPH: Final = "without its graph"
ODD_SETTINGS: Final = "with settings that no job can state, e.g. fp64"
ODD_STEP: Final = "of a compiled model or another memory layout, whose step no column tells apart"
DOUBTED: Final = "its batch or the unit of its step is not published as others state it"
_ANY_TARGET: Final = ("batch",)
_NEEDED_LABELS: Final = {STEP.name: ("batch", "step_ms")}
"""Labels that say, where they are `NOT_COMPARABLE`, that a row must not be compared with those of other jobs."""
_AT_ANY_TIME: Final = ("collected", "outcomes")
"""How names of campaigns begin whose jobs a scheduler placed. All others begin both jobs of a pair at one instant."""
WITHOUT_PEAKS: Final = "of a device type without peaks"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownRows:
    """Arrays of some rows; the first axis is the row.

    Attributes:
        columns: The target's columns, 32-bit as served.
        analytical_estimate: What physics says, in the target's unit.
        features: Whole vectors of jobs alone, shape (rows, len(FEATURES)); None for pairs.
    """

    columns: FeatureArray
    analytical_estimate: FloatArray
    features: FloatArray | None


def why_unanswerable(target: Target, job: JobFacts, others: Sequence[JobFacts]) -> str:
    """Why a service cannot answer a row; empty when it can."""
    if target is not SLOWDOWN:
        if find_device_type(job.device) is None:
            return WITHOUT_PEAKS
        if is_described(job):
            return ODD_STEP if target is STEP and not _steps_as_usual(job) else ""
        return ODD_SETTINGS if job.graph and not has_usual_settings(job) else WITHOUT_GRAPH
    if not all(_is_measured(each.solo) for each in (job, *others)):
        return "a job's step time, utilization or memory alone is not known"
    return "" if find_device_type(job.device) else "a device type whose memory is not known"


def why_unlearnable(target: Target, job: JobFacts, others: Sequence[JobFacts]) -> str:
    """Why a service cannot learn from a row; empty when it can."""
    reason = why_unanswerable(target, job, others)
    if reason or target is SLOWDOWN:
        return reason or ("" if len(others) == 1 else "more than two jobs")
    if any(job.labels.get(name) == NOT_COMPARABLE for name in _NEEDED_LABELS.get(target.name, _ANY_TARGET)):
        return DOUBTED
    if job.gpus != 1:
        return "more than one device"
    return "" if job.micro_batch_size == job.batch else "its batch was divided"


def split_learnable(learning_task: LearningTask) -> tuple[LearningTask, Counter[str]]:
    """The rows that a service can learn from, and how many it cannot by reason."""
    rows = zip(learning_task.jobs, learning_task.others, strict=True)
    reasons = [why_unlearnable(learning_task.target, job, others) for job, others in rows]
    return learning_task.subset([row for row, reason in enumerate(reasons) if not reason]), Counter(
        filter(None, reasons)
    )


def name_rows(learning_task: LearningTask) -> list[str]:
    """Names of rows that are equal wherever the same was measured of the same jobs; see `held_out.name_row`."""
    rows = zip(learning_task.jobs, learning_task.others, learning_task.measured.tolist(), strict=True)
    return [
        name_row(
            learning_task.device, learning_task.target.name, tuple(each.job_key for each in (job, *others)), measured
        )
        for job, others, measured in rows
    ]


def name_jobs_of(learning_task: LearningTask) -> list[str]:
    """Names of the jobs of rows, whatever was measured of them; see `held_out.name_jobs`."""
    return [
        name_jobs(learning_task.device, learning_task.target.name, tuple(each.job_key for each in (job, *others)))
        for job, others in zip(learning_task.jobs, learning_task.others, strict=True)
    ]


def _steps_as_usual(job: JobFacts) -> bool:
    return steps_as_usual(job.labels.get("campaign", ""), job.labels.get("layout", USUAL_LAYOUT))


def _is_measured(alone: MeasuredAlone) -> bool:
    figures = (alone.step_ms, alone.utilization_ratio, alone.memory_bytes)
    known = [value for value in figures if value is not None and math.isfinite(value)]
    return len(known) == len(figures) and (alone.step_ms or 0.0) > 0


def read_known_rows(learning_task: LearningTask) -> KnownRows:
    """Reads rows for which `why_unanswerable` has no reason, each of one device type, pairs of two jobs each."""
    if learning_task.target is SLOWDOWN:
        return _read_pairs(learning_task)
    jobs = [served_figures(job) for job in learning_task.jobs]
    named = np.array([[job.graph[feature.name] for feature in FEATURES] for job in jobs])
    features = named.reshape(len(learning_task), len(FEATURES))
    analytical_estimate = _ANCHORS[learning_task.target.name]
    return KnownRows(
        columns=features[:, [FEATURE_INDEX[name] for name in learning_task.target.columns]].astype(np.float32),
        analytical_estimate=np.array([analytical_estimate(job) for job in jobs], dtype=np.float64),
        features=features,
    )


def _read_pairs(learning_task: LearningTask) -> KnownRows:
    jobs = [*learning_task.jobs, *(others[0] for others in learning_task.others)]
    figures = SoloFigures(
        utilization_ratio=np.array([job.solo.utilization_ratio for job in jobs], dtype=np.float64),
        step_ms=np.array([job.solo.step_ms for job in jobs], dtype=np.float64),
        memory_bytes=np.array([job.solo.memory_bytes for job in jobs], dtype=np.float64),
        input_wait_ratio=np.array([job.input_wait_ratio for job in jobs], dtype=np.float64),
    )
    device = find_device_type(learning_task.jobs[0].device) if len(learning_task) else None
    victim = np.arange(len(learning_task))
    other = victim + len(learning_task)
    turns = fair_share_slowdowns(figures, victim, other)
    return KnownRows(
        columns=build_pair_features(figures, victim, other, device.memory_bytes if device else 1),
        analytical_estimate=np.where(_stay_in_phase(learning_task), figures.utilization_ratio[victim], turns),
        features=None,
    )


def _stay_in_phase(learning_task: LearningTask) -> BoolArray:
    """Whether each row is a job with its copy, both begun at one instant, shape (rows,).

    Their steps take equally long, so that both want the device at the same times, a share u of each step; jobs that a
    scheduler places begin at any time and meet for u x u. Two trainings that waited three fifths of a step lost 29 to
    36 % begun together, 5 % begun half a step apart: read as turns, such rows teach that any two jobs that wait cost
    each other more than they do.
    """
    rows = zip(learning_task.jobs, learning_task.others, strict=True)
    return np.array(
        [
            job.job_key == others[0].job_key and not job.labels.get("campaign", "").startswith(_AT_ANY_TIME)
            for job, others in rows
        ],
        dtype=bool,
    )
