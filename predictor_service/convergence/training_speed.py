"""Training speed over workers and parameter servers, fitted to a few short runs.

One over the speed is linear in what the resources cost, with coefficients that cannot be negative:

    asynchronous   w / f = t0 + t1 w/p + t2 w + t3 p
    synchronous    1 / f = t0 M/w + t1 + t2 w/p + t3 w + t4 p
    all-reduce     1 / f = t0 M/w + t1 + [w > 1] (t2 + t3 2(w-1)/w + t4 w)

M is the batch of all workers together. The first two are the paper's; the third is the same idea for jobs without
parameter servers: compute that is affine in the batch of one worker, and a ring whose time has a constant, a part for
the bytes that each worker sends, and a part for the number of its hops. Residuals are divided by the measured time, so
that a fast configuration counts as much as a slow one.

Source: Optimus, section 3.2, Eq. (3) and (4). SJF-BSBF, Eq. (3) and (4), for the last form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from predictor_service.convergence.nonnegative_fit import FloatArray, fit_nonnegative
from predictor_service.errors import invalid_field

SAMPLES_MAX: Final = 10_000
COUNT_MAX: Final = 1_000_000
"""Largest accepted number of workers, of servers, and of samples in a batch."""
STEPS_PER_S_MIN: Final = 1e-9
STEPS_PER_S_MAX: Final = 1e9


class Synchrony(Enum):
    """How workers exchange gradients."""

    ASYNCHRONOUS = "asynchronous"
    SYNCHRONOUS = "synchronous"
    ALL_REDUCE = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job runs on.

    Attributes:
        workers: At least 1.
        servers: Parameter servers, at least 1; not looked at for all-reduce.
        batch: Samples of all workers together in one step; not looked at for asynchronous training.
    """

    workers: int
    servers: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSample:
    """A short run.

    Attributes:
        resources: What it ran on.
        steps_per_s: Its speed, `STEPS_PER_S_MIN` to `STEPS_PER_S_MAX`: steps of all workers for asynchronous training,
            else steps of the job.
    """

    resources: Resources
    steps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedModel:
    """A fitted speed function.

    Attributes:
        synchrony: Which form.
        coefficients: t0, t1, ... of the module's table, seconds, none below 0.
        error_ratio: Mean of |fitted - measured| / measured over the samples.
        left_out_error_ratio: The same for samples that the fit had not seen, each left out once; None below
            coefficients + 1 samples, and for more than 60.
    """

    synchrony: Synchrony
    coefficients: Sequence[float]
    error_ratio: float
    left_out_error_ratio: float | None

    def steps_per_s(self, resources: Resources) -> float:
        """Predicts the speed; above 0."""
        return float(_speeds(self.synchrony, np.asarray(self.coefficients), [resources])[0])


_COMPUTE_COLUMNS: Final = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
_COMPUTE_WEIGHT: Final = 0.1
"""How much every all-reduce run also speaks for a step that only computes. Where few runs leave open what is compute
and what is exchange, all of it could go to the exchange, and one worker would seem infinitely fast."""
_LEFT_OUT_MAX: Final = 60
_MS_MAX: Final = (1 << 63) - 1


def fit_speed(samples: Sequence[SpeedSample], synchrony: Synchrony) -> SpeedModel:
    """Fits a speed function.

    Args:
        samples: Short runs on different resources; five suffice to begin with.
        synchrony: Which form.

    Raises:
        InvalidRequestError: No samples, too many, or a number out of its range.
    """
    _check(samples)
    resources = [sample.resources for sample in samples]
    measured = np.array([sample.steps_per_s for sample in samples])
    coefficients = _fit(synchrony, resources, measured)
    errors = np.abs(_speeds(synchrony, coefficients, resources) / measured - 1)
    return SpeedModel(
        synchrony=synchrony,
        coefficients=tuple(coefficients.tolist()),
        error_ratio=float(errors.mean()),
        left_out_error_ratio=_left_out_error(synchrony, resources, measured),
    )


def remaining_ms(steps: float, steps_per_s: float) -> int:
    """Time until training ends; `steps` = epochs x steps per epoch (the paper's Eq. 6 forgets the second factor)."""
    return min(round(1e3 * steps / steps_per_s), _MS_MAX)


def _columns(synchrony: Synchrony, resources: Sequence[Resources]) -> FloatArray:
    """Costs in one over the speed, shape (resources, coefficients)."""
    workers = np.array([item.workers for item in resources], dtype=np.float64)
    servers = np.array([item.servers for item in resources], dtype=np.float64)
    batch = np.array([item.batch for item in resources], dtype=np.float64)
    one = np.ones_like(workers)
    if synchrony is Synchrony.ASYNCHRONOUS:
        return np.stack([one / workers, one / servers, one, servers / workers], axis=1)
    if synchrony is Synchrony.SYNCHRONOUS:
        return np.stack([batch / workers, one, workers / servers, workers, servers], axis=1)
    many = (workers > 1).astype(np.float64)
    return np.stack([batch / workers, one, many, many * 2 * (workers - 1) / workers, many * workers], axis=1)


def _fit(synchrony: Synchrony, resources: Sequence[Resources], measured: FloatArray) -> FloatArray:
    # A row times the measured speed: the target becomes 1 everywhere, and residuals are relative.
    rows = _columns(synchrony, resources) * measured[:, None]
    if synchrony is Synchrony.ALL_REDUCE:
        rows = np.concatenate([rows, _COMPUTE_WEIGHT * rows * _COMPUTE_COLUMNS])
    target = np.ones(len(rows))
    target[len(measured) :] = _COMPUTE_WEIGHT
    return fit_nonnegative(rows, target)


def _speeds(synchrony: Synchrony, coefficients: FloatArray, resources: Sequence[Resources]) -> FloatArray:
    return np.asarray(1 / np.maximum(_columns(synchrony, resources) @ coefficients, 1e-12))


def _left_out_error(synchrony: Synchrony, resources: Sequence[Resources], measured: FloatArray) -> float | None:
    count = len(measured)
    if not _columns(synchrony, resources[:1]).shape[1] < count <= _LEFT_OUT_MAX:
        return None
    errors = []
    for index in range(count):
        others = [item for place, item in enumerate(resources) if place != index]
        coefficients = _fit(synchrony, others, np.delete(measured, index))
        errors.append(abs(_speeds(synchrony, coefficients, [resources[index]])[0] / measured[index] - 1))
    return float(np.mean(errors))


def _check(samples: Sequence[SpeedSample]) -> None:
    if not 1 <= len(samples) <= SAMPLES_MAX:
        raise invalid_field("samples", f"{len(samples)} samples", f"send 1 to {SAMPLES_MAX}")
    for sample in samples:
        if not STEPS_PER_S_MIN <= sample.steps_per_s <= STEPS_PER_S_MAX:
            raise invalid_field(
                "samples",
                f"steps_per_s is {sample.steps_per_s:g}, not in {STEPS_PER_S_MIN:g} to {STEPS_PER_S_MAX:g}",
                "leave out runs that did not step",
            )
        check_resources(sample.resources, "samples")


def check_resources(resources: Resources, field: str) -> None:
    """Refuses counts out of their range.

    Raises:
        InvalidRequestError: Workers, servers or batch outside 1 to `COUNT_MAX`.
    """
    for name in ("workers", "servers", "batch"):
        count = getattr(resources, name)
        if not 1 <= count <= COUNT_MAX:
            raise invalid_field(field, f"{name} is {count}", f"use 1 to {COUNT_MAX}")
