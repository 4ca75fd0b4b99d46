"""The analytical estimate of a job that runs alone, with as few coefficients fitted as physics leaves open.

memory      a sum of parts: context, weights with optimizer state, what backward needs, the widest tensors, the input
step_time   a sum of parts: arithmetic and traffic at the device's peaks, launches, weights; or the simulated step, or
            the roofline of a graph, where these are known
shares      of a step in which the device is busy: kernels against host and input, see `busy_share`; they are learned
            as differences of arcsines, in which a correction of a small share is small

Every part has a coefficient of at least 0, fitted to the training rows by relative error: libraries and allocators
decide how much of each is really held or reached, and they differ between frameworks, not between jobs. Corrections
are learned relative to these figures, so that a model that knows nothing answers physics, a job larger than every
training row is answered by its parts, and a device without rows by its peaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.analytical_memory import PART_NAMES, described_parts
from predictor_service.features.devices import STANDIN_DEVICE, find_device_type
from predictor_service.features.step_simulation import STEP_PART_NAMES, described_step_parts
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.selection.targets import MEMORY, STEP, Target
from predictor_service.table_methods.busy_share import fit_shares, read_shares, share_parts
from predictor_service.table_methods.part_coefficients import fit_sums, fit_times

_RECKONED_MS: Final = ("roofline_ms", "simulated_launched_ms")
_NO_PARTS: Final = np.zeros(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalyticalModel:
    """A fitted analytical estimate.

    Attributes:
        target: What is predicted.
        coefficients: Of the parts; empty where nothing was fitted.
        typical: Answer for rows whose facts are not known, in the target's unit.
    """

    target: Target
    coefficients: FloatArray
    typical: float

    def analytical_estimate(self, learning_task: LearningTask) -> FloatArray:
        """The analytical estimate of every row, in the target's unit, above 0."""
        combine = _combine_shares if self.target.scale == "share" else _combine
        values = combine(_parts(learning_task), self.coefficients)
        return np.where(np.isfinite(values) & (values > 0), values, self.typical)

    def encode(self, measured: FloatArray, analytical_estimate: FloatArray) -> FloatArray:
        """From the target's unit to the learned scale; same shapes."""
        if self.target.scale == "share":
            return _arcsine(measured) - _arcsine(analytical_estimate)
        return self.target.encode(measured, analytical_estimate)

    def decode(self, value: FloatArray, analytical_estimate: FloatArray) -> FloatArray:
        """From the learned scale to the target's unit, within its possible range; same shapes."""
        if self.target.scale == "share":
            return np.asarray(np.sin(np.clip(value + _arcsine(analytical_estimate), 0.0, np.pi / 2)) ** 2)
        return self.target.decode(value, analytical_estimate)


def _arcsine(shares: FloatArray) -> FloatArray:
    """The scale in which shares scatter alike from idle to busy, so that a correction of a small share is small."""
    return np.asarray(np.arcsin(np.sqrt(np.clip(shares, 0.0, 1.0))))


def fit_analytical_model(learning_task: LearningTask) -> AnalyticalModel:
    """Fits the estimate to training rows."""
    positive = learning_task.measured[learning_task.measured > 0]
    typical = float(np.exp(np.log(positive).mean())) if len(positive) else 1.0
    coefficients = (_fit_shares if learning_task.target.scale == "share" else _fit_parts)(learning_task)
    return AnalyticalModel(target=learning_task.target, coefficients=coefficients, typical=typical)


def largest_possible(learning_task: LearningTask) -> FloatArray:
    """The most that can be measured of each row, in the target's unit, infinite where nothing ends it; shape (rows,).

    A run that needs more than its device has leaves no memory to measure, and libraries take workspace only of what
    is free. The stand-in has the memory of its host, which is not known.
    """
    if learning_task.target is not MEMORY:
        return np.full(len(learning_task), np.inf)
    devices = [None if job.device == STANDIN_DEVICE else find_device_type(job.device) for job in learning_task.jobs]
    return np.array([np.inf if device is None else float(device.memory_bytes) for device in devices])


def _combine_shares(parts: FloatArray, coefficients: FloatArray) -> FloatArray:
    known = np.isfinite(parts).all(axis=1)
    shares = np.full(len(parts), np.nan)
    if len(coefficients) and known.any():
        shares[known] = read_shares(parts[known], coefficients)
    return shares


def _combine(parts: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Rows whose parts were unknown in training, and rows without parts, come out as NaN."""
    if parts.shape[1] != len(coefficients):
        return np.full(len(parts), np.nan)
    return np.asarray(parts @ coefficients)


def _parts(learning_task: LearningTask) -> FloatArray:
    """Parts of every row, shape (rows, parts), in the target's unit; NaN where a row's graph is not known."""
    read = _PARTS.get(learning_task.target.name, share_parts)
    rows = [read(job) for job in learning_task.jobs]
    width = max((len(row) for row in rows if row is not None), default=1)
    return np.array([np.full(width, np.nan) if row is None else row for row in rows]).reshape(len(rows), width)


def _memory_parts(job: JobFacts) -> FloatArray | None:
    parts = described_parts(job.graph, job.micro_batch_size, job.optimizer, job.precision)
    return None if parts is None else np.array([parts[name] for name in PART_NAMES])


def _step_parts(job: JobFacts) -> FloatArray | None:
    """The described parts and what a simulation or a roofline reckons, 0 where there is none."""
    reckoned_ms = next((job.graph[name] for name in _RECKONED_MS if name in job.graph), None)
    device = find_device_type(job.device)
    described = None
    if device is not None:
        mode = job.labels.get("mode", "train")
        described = described_step_parts(job.graph, job.micro_batch_size, device, job.precision, mode)
    if described is None and reckoned_ms is None:
        return None
    parts = [0.0 if described is None else described[name] for name in STEP_PART_NAMES]
    return np.array([*parts, reckoned_ms or 0.0])


_PARTS: Final[Mapping[str, Callable[[JobFacts], FloatArray | None]]] = {
    MEMORY.name: _memory_parts,
    STEP.name: _step_parts,
}


def _fit_parts(learning_task: LearningTask) -> FloatArray:
    parts = _parts(learning_task)
    known = np.isfinite(parts).all(axis=1)
    if learning_task.target is MEMORY:
        return fit_sums(parts[known], learning_task.measured[known])
    known &= parts.any(axis=1)
    return fit_times(parts[known], learning_task.measured[known])


def _fit_shares(learning_task: LearningTask) -> FloatArray:
    parts = _parts(learning_task)
    known = np.isfinite(parts).all(axis=1)
    fitted = fit_shares(parts[known], learning_task.measured[known]) if known.any() else None
    return _NO_PARTS if fitted is None else fitted
