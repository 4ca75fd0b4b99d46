"""What the model of all device types says of measured rows: the other basis that step times can be relative to.

Rows are learned from, and judged, by what models say that have not seen the rows' families (`step_model_folds.json`):
the model that serves has seen the rows of public sets themselves.
"""

from __future__ import annotations

import numpy as np

from predictor_service.cross_device.step_model import (
    CrossDeviceStep,
    answers_for,
    fold_of_family,
    load_step_folds,
    load_step_model,
)
from predictor_service.cross_device.step_physics import StepKind
from predictor_service.cross_device.step_work import StepWork, work_of_facts
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.fitting.table_rows import stated_settings
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.selection.targets import STEP


def served_step_ms(learning_task: LearningTask) -> FloatArray | None:
    """What the model of all types says, waiting included, shape (rows,); None where it cannot say it of every row."""
    asked = _ask(learning_task)
    return None if asked is None else asked.times_ms(load_step_model())


def unseen_step_ms(learning_task: LearningTask) -> FloatArray | None:
    """The same by models that have not seen the family of the row, on whatever device."""
    asked = _ask(learning_task)
    if asked is None:
        return None
    by_fold = np.stack([asked.times_ms(model) for model in load_step_folds()])
    folds = [fold_of_family(job.family) for job in learning_task.jobs]
    return np.asarray(by_fold[folds, np.arange(len(folds))], dtype=np.float64)


class _Asked:
    """Rows as the model is asked about them."""

    def __init__(self, learning_task: LearningTask, work: StepWork, device: DeviceType) -> None:
        self._work = work
        self._kinds = [_kind_of(job, device) for job in learning_task.jobs]
        self._busy_ratios = np.array([1.0 - job.input_wait_ratio for job in learning_task.jobs])

    def times_ms(self, model: CrossDeviceStep) -> FloatArray:
        """What a model says of them."""
        return np.asarray(model.time_ms(self._work, self._kinds) / self._busy_ratios, dtype=np.float64)


def _ask(learning_task: LearningTask) -> _Asked | None:
    if learning_task.target is not STEP or not len(learning_task):
        return None
    found = {job.device: find_device_type(job.device) for job in learning_task.jobs}
    device = found[learning_task.jobs[0].device]
    if device is None or not answers_for(device) or any(other != device for other in found.values()):
        return None
    work = work_of_facts([(job.graph, job.micro_batch_size) for job in learning_task.jobs])
    return None if work is None else _Asked(learning_task, work, device)


def _kind_of(job: JobFacts, device: DeviceType) -> StepKind:
    settings = stated_settings(job)
    return StepKind(
        device=device,
        precision=settings.precision,
        is_training=settings.mode == "train",
        optimizer_slots=float(OPTIMIZER_SLOTS[settings.optimizer]),
    )
