"""Step times at every number of GPUs and micro-batch, from what was measured alone at some of them.

What was measured is what is known of that shape. Any other shape is the foreseen time, corrected by how far measured
shapes were off, until three numbers of GPUs were measured: from then on a curve that the predictor fits to them
tells the other numbers. A measurement that agrees with what was foreseen changes nothing.

Source:
    Optimus, section 3.2: speed functions fitted online to measured steps (Eq. 3 and 4 fit them with servers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log
from typing import Final

from scheduler_service.core.predictions.measured_averages import SoloStep, with_steps
from scheduler_service.core.predictions.task_speeds import REFIT_RATIO, Tasks, TaskSpeedFit, with_task_speeds
from scheduler_service.core.records import JobPrediction, Level

Shape = tuple[int, int]
"""Number of GPUs, and samples per GPU and pass."""

COUNTS_MIN: Final = 3
"""Numbers of GPUs that must have been measured before a curve is fitted."""
SHAPES_MAX: Final = 64
"""Measured shapes kept of a key; the longest unchanged one leaves first."""
AGREEMENT_RATIO: Final = 0.03
"""A measured step time that is off by less confirms what was foreseen."""


class StepTimeBasis(StrEnum):
    """Where a step time comes from, best first."""

    MEASURED = "measured"
    FITTED = "fitted"
    CORRECTED = "corrected"
    FORESEEN = "foreseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFit:
    """A curve over numbers of GPUs, or the question for one.

    Attributes:
        samples: (GPUs, step time in ms) that it is fitted to.
        counts: Numbers of GPUs that it was asked about.
        global_batch_size: Samples of one step over all GPUs.
        step_ms: The curve at these, the whole share of the batch in one pass; empty = none was fitted yet.
        fitted_samples: To how many samples the present curve is fitted.
        error_ratio: Mean of |fitted - measured| / measured over the samples.
        is_asked: An answer is awaited.
    """

    samples: tuple[tuple[int, float], ...]
    counts: tuple[int, ...]
    global_batch_size: int
    step_ms: Mapping[int, float] = field(default_factory=dict)
    fitted_samples: int = 0
    error_ratio: float = 0.0
    is_asked: bool = False


class MeasuredSpeeds:
    """Step times measured alone, by key, and the curves that are fitted to them; bounded for each key.

    Attributes:
        is_used: They take the place of what was foreseen; else they are only kept.
    """

    def __init__(self) -> None:
        self.is_used = True
        self._solo: dict[str, dict[tuple[str, int, int, int], SoloStep]] = {}
        self._fits: dict[str, dict[str, SpeedFit]] = {}
        self._task_fits: dict[str, dict[str, TaskSpeedFit]] = {}
        self._foreseen: dict[str, dict[str, Mapping[Shape, float]]] = {}

    def solo(self, key: str, device: str, shape: Shape, servers: int) -> SoloStep | None:
        """Return what was measured of a key alone at one shape with so many parameter servers, or None."""
        return self._solo.get(key, {}).get((device, *shape, servers))

    def foreseen(self, key: str, device: str) -> Mapping[Shape, float]:
        """Return the step times that were predicted of a key before any was measured."""
        return self._foreseen.get(key, {}).get(device, {})

    def observe(
        self, key: str, device: str, shape: Shape, *, steps: int, window_ms: int, is_doubtful: bool, servers: int = 0
    ) -> SoloStep:
        """Add one window measured alone; return the mean of all."""
        by_shape = self._solo.setdefault(key, {})
        past = by_shape.pop((device, *shape, servers), None)
        present = with_steps(past, steps, window_ms, is_doubtful=is_doubtful)
        by_shape[(device, *shape, servers)] = present
        if len(by_shape) > SHAPES_MAX:
            del by_shape[next(iter(by_shape))]
        return present

    def sound_step_ms(self, key: str, device: str) -> dict[Shape, float]:
        """Return the step times without servers that were measured while no other job used the GPUs, by shape."""
        return {
            (gpus, micro_batch_size): solo.step_ms
            for (where, gpus, micro_batch_size, servers), solo in self._solo.get(key, {}).items()
            if where == device and not servers and not solo.is_doubtful
        }

    def sound_task_step_ms(self, key: str, device: str) -> dict[Tasks, float]:
        """Return the same of jobs with parameter servers, at the largest micro-batch measured with each number."""
        solo = sorted(self._solo.get(key, {}).items(), key=lambda item: item[0])
        return {
            (workers, servers): one.step_ms
            for (where, workers, _, servers), one in solo
            if where == device and servers and not one.is_doubtful
        }

    def fit(self, key: str, device: str) -> SpeedFit | None:
        """Return the curve of a key on a device type, or the question for one; None = neither."""
        return self._fits.get(key, {}).get(device)

    def put_fit(self, key: str, device: str, fit: SpeedFit) -> None:
        """Keep a curve, or the question for one."""
        self._fits.setdefault(key, {})[device] = fit

    def task_fit(self, key: str, device: str) -> TaskSpeedFit | None:
        """Return the curve over workers and parameter servers, or the question for one; None = neither."""
        return self._task_fits.get(key, {}).get(device)

    def put_task_fit(self, key: str, device: str, fit: TaskSpeedFit) -> None:
        """Keep a curve over workers and parameter servers, or the question for one."""
        self._task_fits.setdefault(key, {})[device] = fit

    def asked_of_tasks(self) -> Iterator[tuple[str, str, TaskSpeedFit]]:
        """Yield every question about workers and parameter servers whose answer is awaited."""
        for key, fits in self._task_fits.items():
            yield from ((key, device, fit) for device, fit in fits.items() if fit.is_asked)

    def asked(self) -> Iterator[tuple[str, str, SpeedFit]]:
        """Yield every question whose answer is awaited."""
        for key, fits in self._fits.items():
            yield from ((key, device, fit) for device, fit in fits.items() if fit.is_asked)

    def forget(self, key: str) -> None:
        """Drop everything about a key."""
        for table in (self._solo, self._fits, self._task_fits, self._foreseen):
            table.pop(key, None)

    def stored_solo(self) -> tuple[tuple[str, str, int, int, SoloStep], ...]:
        """Return what was measured of jobs without parameter servers, for a snapshot."""
        return tuple(
            (key, device, gpus, micro_batch_size, solo)
            for key, shapes in self._solo.items()
            for (device, gpus, micro_batch_size, servers), solo in shapes.items()
            if not servers
        )

    def stored_tasks(self) -> tuple[tuple[str, str, int, int, int, SoloStep], ...]:
        """Return what was measured of jobs with parameter servers, for a snapshot."""
        return tuple(
            (key, *shape, solo) for key, shapes in self._solo.items() for shape, solo in shapes.items() if shape[3]
        )

    def stored_task_fits(self) -> tuple[tuple[str, str, TaskSpeedFit], ...]:
        """Return the curves over workers and parameter servers, for a snapshot."""
        return tuple((key, device, fit) for key, fits in self._task_fits.items() for device, fit in fits.items())

    def stored_fits(self) -> tuple[tuple[str, str, SpeedFit], ...]:
        """Return the curves, for a snapshot."""
        return tuple((key, device, fit) for key, fits in self._fits.items() for device, fit in fits.items())

    def load(
        self, solo: tuple[tuple[str, str, int, int, SoloStep], ...], fits: tuple[tuple[str, str, SpeedFit], ...]
    ) -> tuple[tuple[str, str], ...]:
        """Fill it with what a snapshot has; return the keys and device types that it is about."""
        for key, device, gpus, micro_batch_size, one in solo:
            self._solo.setdefault(key, {})[device, gpus, micro_batch_size, 0] = one
        for key, device, fit in fits:
            self.put_fit(key, device, fit)
        return tuple(dict.fromkeys((key, device) for key, device, *_ in solo))

    def load_tasks(
        self,
        tasks: tuple[tuple[str, str, int, int, int, SoloStep], ...],
        fits: tuple[tuple[str, str, TaskSpeedFit], ...],
    ) -> tuple[tuple[str, str], ...]:
        """The same of jobs with parameter servers."""
        for key, device, gpus, micro_batch_size, servers, one in tasks:
            self._solo.setdefault(key, {})[device, gpus, micro_batch_size, servers] = one
        for key, device, fit in fits:
            self.put_task_fit(key, device, fit)
        return tuple(dict.fromkeys((key, device) for key, device, *_ in tasks))

    def known(self, key: str, device: str, prediction: JobPrediction | None) -> JobPrediction | None:
        """Return a prediction with the step times that follow from what was measured."""
        tasks = self.sound_task_step_ms(key, device) if key in self._solo and self.is_used else {}
        if prediction is None and tasks:
            prediction = JobPrediction(key=key, device=device, utilization_ratio=1.0, level=Level.FALLBACK)
        if prediction is None:
            return None
        self._foreseen.setdefault(key, {})[device] = prediction.step_ms
        if key not in self._solo or not self.is_used:
            return prediction
        known = with_speeds(prediction, self.sound_step_ms(key, device), self.fit(key, device))
        return with_task_speeds(known, tasks, self.task_fit(key, device))

    def basis(self, prediction: JobPrediction, shape: Shape) -> tuple[StepTimeBasis, int]:
        """Return where a known step time comes from, and how many measurements tell it."""
        measured = self.sound_step_ms(prediction.key, prediction.device)
        fit = self.fit(prediction.key, prediction.device)
        if shape in measured:
            return StepTimeBasis.MEASURED, 1
        if fit is not None and shape[0] in fit.step_ms:
            return StepTimeBasis.FITTED, fit.fitted_samples
        if prediction.step_ms[shape] != self.foreseen(prediction.key, prediction.device).get(shape):
            return StepTimeBasis.CORRECTED, len(measured)
        return StepTimeBasis.FORESEEN, 0

    def task_basis(self, prediction: JobPrediction, tasks: Tasks) -> tuple[StepTimeBasis, int] | None:
        """Return the same of workers and parameter servers; None = it was neither measured nor fitted."""
        fit = self.task_fit(prediction.key, prediction.device)
        if tasks in prediction.measured_tasks:
            return StepTimeBasis.MEASURED, 1
        return (StepTimeBasis.FITTED, fit.fitted_samples) if fit is not None and tasks in fit.step_ms else None


def with_speeds(prediction: JobPrediction, measured: Mapping[Shape, float], fit: SpeedFit | None) -> JobPrediction:
    """Return a prediction whose step times are measured, else fitted, else corrected by the nearest measured shape."""
    if not measured:
        return prediction
    foreseen = prediction.step_ms
    corrected = {shape: step_ms * _correction(shape, foreseen, measured) for shape, step_ms in foreseen.items()}
    known = corrected | _fitted(foreseen, fit) if fit is not None else dict(corrected)
    known |= {shape: _settled(taken_ms, foreseen.get(shape, 0.0)) for shape, taken_ms in measured.items()}
    gpus = tuple(sorted({count for count, _ in measured}))
    return replace(prediction, step_ms=foreseen if known == foreseen else known, measured_gpus=gpus)


def agrees(measured_ms: float, expected_ms: float) -> bool:
    """Say whether a measured step time confirms an expected one; 0 = nothing was expected."""
    return abs(measured_ms - expected_ms) <= AGREEMENT_RATIO * expected_ms


def _settled(measured_ms: float, expected_ms: float) -> float:
    return expected_ms if agrees(measured_ms, expected_ms) else measured_ms


def _correction(shape: Shape, foreseen: Mapping[Shape, float], measured: Mapping[Shape, float]) -> float:
    """Return by which factor a shape is off, as far as measured ones tell; 1.0 = nothing does.

    At a number of GPUs that was measured it is that of the nearest micro-batch. Between two such numbers its logarithm
    is linear in that of the number, and beyond the last it stays.
    """
    shared = [one for one in measured if foreseen.get(one, 0.0) > 0]
    below = max((gpus for gpus, _ in shared if gpus <= shape[0]), default=0)
    above = min((gpus for gpus, _ in shared if gpus >= shape[0]), default=0)
    factors = [
        _settled(measured[one], foreseen[one]) / foreseen[one]
        for one in (_nearest(shared, gpus, shape[1]) for gpus in (below, above) if gpus)
    ]
    if below == above or len(factors) < 2:
        return factors[0] if factors else 1.0
    weight = log(shape[0] / below) / log(above / below)
    return float(factors[0] ** (1 - weight) * factors[1] ** weight)


def _nearest(shapes: Sequence[Shape], gpus: int, micro_batch_size: int) -> Shape:
    """Return the shape with so many GPUs whose micro-batch is nearest; of two, the smaller."""
    sizes = sorted(size for count, size in shapes if count == gpus)
    return gpus, min(sizes, key=lambda size: abs(log(size / micro_batch_size)))


def _fitted(foreseen: Mapping[Shape, float], fit: SpeedFit) -> dict[Shape, float]:
    """Return the curve; smaller micro-batches take as much longer than the whole share as was foreseen."""
    found: dict[Shape, float] = {}
    for gpus, step_ms in fit.step_ms.items():
        sizes = sorted((size for count, size in foreseen if count == gpus), reverse=True)
        if not sizes:
            found[gpus, -(-fit.global_batch_size // gpus)] = step_ms
        elif (whole_ms := foreseen[gpus, sizes[0]]) > 0:
            found |= {(gpus, size): step_ms * foreseen[gpus, size] / whole_ms for size in sizes}
    return found


def samples_to_fit(foreseen: Mapping[Shape, float], measured: Mapping[Shape, float]) -> tuple[tuple[int, float], ...]:
    """Return (GPUs, step time in ms) at the largest micro-batch measured with each, as if it were the whole share."""
    largest: dict[int, int] = {}
    for gpus, size in measured:
        largest[gpus] = max(size, largest.get(gpus, 0))
    return tuple(
        (gpus, measured[gpus, size] * _whole_ratio(gpus, size, foreseen)) for gpus, size in sorted(largest.items())
    )


def _whole_ratio(gpus: int, size: int, foreseen: Mapping[Shape, float]) -> float:
    """Return how much longer the whole share in one pass takes than this micro-batch, as foreseen."""
    whole = max((one for one in foreseen if one[0] == gpus), default=None)
    known_ms = foreseen.get((gpus, size), 0.0)
    return foreseen[whole] / known_ms if whole is not None and known_ms > 0 else 1.0


def needs_fit(fit: SpeedFit | None, samples: tuple[tuple[int, float], ...], counts: tuple[int, ...]) -> bool:
    """Say whether a curve is worth asking for: enough numbers of GPUs, and something new since the last question."""
    if len(samples) < COUNTS_MIN or (fit is not None and fit.is_asked):
        return False
    if fit is None or not set(counts) <= set(fit.counts):
        return True
    before = dict(fit.samples)
    return any(abs(step_ms - before.get(gpus, 0.0)) > REFIT_RATIO * before.get(gpus, 0.0) for gpus, step_ms in samples)
