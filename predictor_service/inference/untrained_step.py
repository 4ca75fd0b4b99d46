"""Step time of a job on a device type without a model of its own: from all types that were measured, or from peaks."""

from __future__ import annotations

from typing import Final

from predictor_service.cross_device.step_model import answers_for, generations_of, load_step_model
from predictor_service.cross_device.step_physics import StepKind
from predictor_service.cross_device.step_work import StepWork, work_of_table
from predictor_service.features.devices import DEVICE_TYPES, DeviceType
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.features.operator_times import FloatArray
from predictor_service.inference.job_work import JobWork
from predictor_service.registry.served_version import Bounded

STEP_FALLBACK_FACTOR: Final = 4.0
"""How far off a bare roofline is taken to be, either way, on a processor without measurements."""


def estimate_untrained_step(work: JobWork, points: slice, confidence: float, roofline_ms: FloatArray) -> Bounded:
    """Estimates the step at consecutive points of the grid.

    Args:
        work: The job.
        points: Which points.
        confidence: Coverage of the range; of GPUs it is that of device types left out, of processors a round factor.
        roofline_ms: At the device's peaks, at the same points, without waiting.
    """
    device = work.device
    if not answers_for(device):
        upper = roofline_ms * STEP_FALLBACK_FACTOR
        return Bounded(value=roofline_ms, lower=roofline_ms / STEP_FALLBACK_FACTOR, upper=upper, upper_99=upper)
    step_work = _work_at(work, points)
    found = load_step_model().estimate(step_work, _kind_of(work), confidence)
    return Bounded(value=found.value, lower=found.lower, upper=found.upper, upper_99=found.upper)


def step_of_all_types_ms(work: JobWork, points: slice) -> FloatArray:
    """What the model of all device types says of a step at consecutive points of the grid, without waiting."""
    step_work = _work_at(work, points)
    return load_step_model().time_ms(step_work, [_kind_of(work)])


def step_of_all_types_at_ms(work: JobWork, batch: int) -> float:
    """The same at one batch."""
    step_work = work_of_table(work.graph.at(batch), work.graph.description.arrays)
    return float(load_step_model().time_ms(step_work, [_kind_of(work)])[0])


def _work_at(work: JobWork, points: slice) -> StepWork:
    return work_of_table(work.graph.table(points.stop), work.graph.description.arrays).rows(points)


def _kind_of(work: JobWork) -> StepKind:
    settings = work.settings
    return StepKind(
        device=work.device,
        precision=settings.precision,
        is_training=settings.mode == "train",
        optimizer_slots=float(OPTIMIZER_SLOTS[settings.optimizer]),
    )


def is_step_range_calibrated(device: DeviceType) -> bool:
    """Whether ranges were checked on devices like this one: a whole one of a generation that taught the model."""
    return device.name in DEVICE_TYPES and device.generation in generations_of(load_step_model().devices)
