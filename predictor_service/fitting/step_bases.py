"""What the model of all device types says of measured rows: the other basis that step times can be relative to.

Rows are learned from, and judged, by what models say that have not seen the rows' families (`step_model_folds.json`):
the model that serves has seen the rows of public sets themselves, and would be judged by what it was told. Of a user's
own rows this errs on the safe side: the model that serves knows a fifth more families.
"""

from __future__ import annotations

import numpy as np

from predictor_service.cross_device.step_model import (
    CrossDeviceStep,
    answers_for,
    fold_of_family,
    load_step_folds,
)
from predictor_service.cross_device.step_physics import StepKind
from predictor_service.cross_device.step_work import StepWork, work_of_facts
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.fitting.table_rows import stated_settings
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.registry.manifest import OF_ALL_TYPES, OF_DEVICE, BasisRecord
from predictor_service.selection.incumbent import Groups, is_beyond_chance
from predictor_service.selection.targets import STEP


def unseen_step_ms(learning_task: LearningTask) -> FloatArray | None:
    """What models of all types say that have not seen the family of the row, on whatever device.

    Args:
        learning_task: Rows.

    Returns:
        Waiting included, shape (rows,); None where the model cannot say it of every row.
    """
    asked = _ask(learning_task)
    if asked is None:
        return None
    by_fold = np.stack([asked.times_ms(model) for model in load_step_folds()])
    folds = [fold_of_family(job.family) for job in learning_task.jobs]
    return np.asarray(by_fold[folds, np.arange(len(folds))], dtype=np.float64)


def choose_basis(*, of_device: FloatArray, of_all_types: FloatArray, groups: Groups) -> BasisRecord:
    """The model of all types, unless the few families of one type show beyond chance that its own peaks err less.

    Args:
        of_device: Absolute errors on groups not seen, in the target's own scale, shape (rows,).
        of_all_types: The same relative to the model of all types.
        groups: Of each row.
    """
    name = OF_DEVICE if is_beyond_chance(of_all_types - of_device, groups) else OF_ALL_TYPES
    errors = {OF_DEVICE: of_device, OF_ALL_TYPES: of_all_types}
    return BasisRecord(name=name, errors={key: round(float(each.mean()), 9) for key, each in errors.items()})


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
