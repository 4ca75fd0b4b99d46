"""Estimates of one job on one device type, with trained models or, where there are none, from peaks alone."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from predictor_service.features.devices import DeviceType
from predictor_service.features.job_features import FEATURE_INDEX, JobFeatures, JobTable
from predictor_service.features.memory_states import MemoryStates, split_memory
from predictor_service.features.operator_times import FloatArray
from predictor_service.features.uncalibrated_memory import do_bounds_keep_gradients, estimate_uncalibrated
from predictor_service.features.uncalibrated_utilization import busy_ms, estimate_utilization
from predictor_service.features.untaught_settings import bucket_copies_ms, memory_factors, step_factors
from predictor_service.inference.accumulation import accumulate, keep_gradients
from predictor_service.inference.batch_curve import (
    JobSamples,
    largest_within,
    nearest_point,
    neighbours,
    points_up_to,
)
from predictor_service.inference.bounded_curve import BoundedCurve, CurvePoint, read_between
from predictor_service.inference.contributions import list_contributions
from predictor_service.inference.job_work import JobWork
from predictor_service.inference.measured_graph import GRID
from predictor_service.inference.memory_of_others import widen_to_contexts, widen_to_device
from predictor_service.inference.records import Estimate, Level
from predictor_service.inference.untrained_step import (
    estimate_untrained_step,
    is_step_range_calibrated,
    step_of_all_types_at_ms,
    step_of_all_types_ms,
)
from predictor_service.inference.unusual_features import UnusualFeatures, as_known_here, find_unusual
from predictor_service.registry.manifest import BasisRecord
from predictor_service.registry.served_version import Bounded, ServedTarget
from predictor_service.selection.oom_risk import MemoryEstimate, estimate_chance_above
from predictor_service.selection.targets import MEMORY, SM_ACTIVITY, STEP, UTILIZATION, Target

_LENGTHENED_BY: Final = 4
_WORK: Final = [FEATURE_INDEX[name] for name in ("log_flops", "log_traffic_bytes", "is_training")]
_DEPTH: Final = FEATURE_INDEX["log_depth"]
_UNLIKE_ALL: Final = np.ones(len(GRID))


class JobEstimator:
    """Answers questions about one job at any batch; safe for many threads.

    Args:
        work: The job but for how long it waits for its input.
        input_wait_ratio: Share of a step that it does.
        confidence: Coverage of the intervals; the same for all jobs of one `work`.
    """

    def __init__(self, work: JobWork, input_wait_ratio: float, confidence: float) -> None:
        self._work = work
        self._device = work.device
        self._models = work.models
        self._confidence = confidence
        self._input_wait_ratio = input_wait_ratio
        self._samples = JobSamples(work, input_wait_ratio)
        self._curves: dict[str, BoundedCurve] = {}
        self._shares: dict[tuple[str, int], CurvePoint] = {}
        self._unusual: dict[tuple[str, int], UnusualFeatures] = {}
        self._last_novelty: tuple[tuple[object, ...], FloatArray | None] | None = None

    def memory(self, batch: int) -> Estimate:
        """Peak memory at a batch, bytes; `upper_99` is set."""
        return self._read(MEMORY, batch)

    def accumulated_memory(self, micro_batch_size: int, passes: int) -> Estimate:
        """Peak memory of a step of several passes over `micro_batch_size` samples each, bytes; see `memory`."""
        one = self.memory(micro_batch_size)
        if passes == 1 or self._work.settings.mode != "train":
            return one
        place = nearest_point(micro_batch_size)
        counted = self._samples.table(place + 1).counted_memory[place]
        is_uncalibrated = MEMORY.name not in self._models and self._work.memory_of_others is None
        return keep_gradients(one, counted, is_in_bounds=is_uncalibrated and do_bounds_keep_gradients(self._device))

    def step(self, batch: int) -> Estimate:
        """Time of one step at a batch, milliseconds."""
        return self._read(STEP, batch)

    def accumulated_step(self, micro_batch_size: int, passes: int) -> Estimate:
        """Time of one optimizer step made of several passes over `micro_batch_size` samples each, milliseconds."""
        place = nearest_point(micro_batch_size)
        once_ratio = float(self._samples.table(place + 1).optimizer_ratio[place])
        return accumulate(self.step(micro_batch_size), passes, once_ratio)

    def memory_states(self, batch: int, memory: Estimate) -> MemoryStates:
        """What of an estimate of its memory at a batch it holds all the time, if it releases the rest in between."""
        place = nearest_point(batch)
        table = self._samples.table(place + 1)
        return split_memory(
            memory.value,
            table.counted_memory[place],
            input_wait_ratio=self._input_wait_ratio,
            once_ratio=float(table.optimizer_ratio[place]),
        )

    def utilization(self, batch: int) -> Estimate:
        """Share of time in which the device is busy, alone."""
        if UTILIZATION.name in self._models:
            return self._share(UTILIZATION, batch)
        return self._uncalibrated_utilization(batch)

    def sm_activity(self, batch: int) -> Estimate | None:
        """Share of multiprocessor time with work; None where the device's data lack it."""
        return self._share(SM_ACTIVITY, batch) if SM_ACTIVITY.name in self._models else None

    def largest_batch(self, memory_bytes: int) -> int:
        """Largest batch whose memory bound fits; 0 = none."""
        return largest_within(GRID, self._curve(MEMORY, len(GRID)).upper_99, memory_bytes)

    @property
    def has_memory_model(self) -> bool:
        """Whether a trained model answers for the job's memory, so that `oom_risk` is a number."""
        return self._checked_memory is not None

    @property
    def _checked_memory(self) -> ServedTarget | None:
        """The model of memory, if its errors are those of machines here."""
        model = self._models.get(MEMORY.name)
        return None if model is None or model.record.is_public or self._work.untaught else model

    def oom_risk(self, batch: int, device_memory_bytes: float) -> float | None:
        """Chance that the job alone exceeds a device, 0 to 1; None without a trained model."""
        memory_estimate = self.estimate_memory(batch)
        return estimate_chance_above(memory_estimate, device_memory_bytes) if memory_estimate else None

    def estimate_memory(self, batch: int) -> MemoryEstimate | None:
        """The estimate of the job's memory; None without a trained model."""
        model = self._checked_memory
        if model is None:
            return None
        place, spreads = nearest_point(batch), {} if model.sees_wait else self._work.memory_spreads
        if place not in spreads:
            spreads[place] = float(model.spread(model.select(self._nearest_vector(batch)))[0])
        value_bytes = self._curve(MEMORY, points_up_to(batch)).at(batch)[0]
        return MemoryEstimate(value_bytes=value_bytes, bounds=model.scores, spread=spreads[place])

    def novelty(self, batch: int) -> dict[str, float]:
        """How far the job is from all measured ones, 0 to 1, by target; without those whose intervals do not ask."""
        vector = self._nearest_vector(batch)
        near = {name: model.novelty(vector) for name, model in self._models.items()}
        return {name: float(values[0]) for name, values in near.items() if values is not None}

    def step_basis(self) -> BasisRecord | None:
        """What the model of step times is relative to, and what else was tried; None where nothing else was."""
        model = self._models.get(STEP.name)
        return model.record.basis if model else None

    def explain(self, estimate: Estimate, target: Target, batch: int) -> Estimate:
        """Adds the largest contributions of inputs; they add up to the estimate."""
        model = self._models.get(target.name)
        if model is None:
            return estimate
        sample = self._samples.at(batch)
        taught = self._work.as_taught(model)
        asked = sample if taught is self._work else JobSamples(taught, self._input_wait_ratio).at(batch)
        row = model.select(asked.values[None, :])[0]
        analytical_estimate = _analytical_estimate(target, sample)
        if model.is_of_all_types:
            analytical_estimate = step_of_all_types_at_ms(self._work, batch) / sample.utilization_ceiling_ratio
        explanation = list_contributions(
            model.record.columns,
            row,
            (model.record.domain.rows * model.record.domain.scale).mean(axis=0),
            lambda rows: model.predict(rows, np.full(len(rows), analytical_estimate)),
            estimate.value,
        )
        return estimate._replace(explanation=explanation)

    def _nearest_vector(self, batch: int) -> FloatArray:
        """The vector at the grid point that an answer mostly depends on, shape (1, len(FEATURES))."""
        place = nearest_point(batch)
        return self._samples.table(place + 1).values[place : place + 1]

    def _bounded(self, target: Target, points: slice) -> Bounded:
        """Predictions of a target at consecutive points of `GRID`."""
        table, model = self._samples.table(points.stop), self._models.get(target.name)
        if model is None and target is MEMORY:
            return self._memory_without_model(table, points)
        analytical_estimate = _analytical_estimates(target, table)[points]
        if model is None:
            return self._untrained_step(points, analytical_estimate)
        if model.is_of_all_types:
            analytical_estimate = step_of_all_types_ms(self._work, points) / table.utilization_ceiling_ratio
        found = self._ask(model, points, table.values, analytical_estimate)
        if target is not MEMORY or not model.record.is_public:
            return found
        return widen_to_contexts(found)

    def _ask(self, model: ServedTarget, points: slice, vectors: FloatArray, analytical_estimate: FloatArray) -> Bounded:
        near = self._novelty_at(model, points, vectors[points])
        columns, excess = self._work.columns(model, points, vectors, self._input_wait_ratio)
        taught, asked = self._work.as_taught(model), vectors
        if taught is not self._work:
            asked = taught.table(points.stop).waiting(self._input_wait_ratio).values
            columns, _ = taught.columns(model, points, asked, self._input_wait_ratio)
        return model.predict_bounded(
            columns,
            analytical_estimate,
            self._confidence,
            novelty=near,
            network_novelty=self._work.network_novelty(model),
            vectors=asked[points],
            is_precision_new=model.is_precision_new(taught.settings.precision),
            is_mode_new=not model.knows_mode(taught.settings.mode),
            excess=excess,
        )

    def _novelty_at(self, model: ServedTarget, points: slice, vectors: FloatArray) -> FloatArray | None:
        """How far the job is from all measured ones; asked again where the target before was measured elsewhere."""
        key = (model.nearness_sha256, points.start, points.stop)
        last = self._last_novelty
        if last is None or last[0] != key:
            near = _UNLIKE_ALL[: len(vectors)] if self._work.is_unlike_all(model, points) else model.novelty(vectors)
            last = self._last_novelty = (key, near)
        return last[1]

    def _untrained_step(self, points: slice, roofline_ms: FloatArray) -> Bounded:
        """The estimate of the work, lengthened by what a step waits."""
        busy_ratio = self._samples.table(1).utilization_ceiling_ratio
        found = estimate_untrained_step(self._work, points, self._confidence, roofline_ms * busy_ratio)
        value, lower, upper = (each / busy_ratio for each in (found.value, found.lower, found.upper))
        return Bounded(value=value, lower=lower, upper=upper, upper_99=upper)

    def _memory_without_model(self, table: JobTable, points: slice) -> Bounded:
        """By what others measured of such jobs on another device type, else by constants."""
        other = self._work.memory_of_others
        if other is not None:
            on_measured = JobEstimator(other, self._input_wait_ratio, self._confidence)
            return widen_to_device(on_measured._bounded(MEMORY, points), self._device)
        return self._uncalibrated_memory(table, points)

    def _uncalibrated_memory(self, table: JobTable, points: slice) -> Bounded:
        precision = self._work.settings.precision
        found = [
            estimate_uncalibrated(counted, self._device, convolves=table.convolves, precision=precision)
            for counted in table.counted_memory[points]
        ]
        return Bounded(
            value=np.array([memory.expected_bytes for memory in found]),
            lower=np.array([memory.lower_bytes for memory in found]),
            upper=np.array([memory.upper_bytes for memory in found]),
            upper_99=np.array([memory.bound_bytes for memory in found]),
        )

    def _curve(self, target: Target, points: int) -> BoundedCurve:
        """The curve over at least so many grid points; a longer one has the same values at shorter batches."""
        curve = self._curves.get(target.name) or self._work.curves.get(target.name)
        if curve is None or curve.points < points:
            # Larger and larger batches would otherwise have the curve made again at each power of two.
            reach = min(points if curve is None else max(points, curve.points + _LENGTHENED_BY), len(GRID))
            kept = self._work.curves if self._work.is_the_same(target, reach) else self._curves
            bounded = self._bounded(target, slice(0, reach))
            curve = kept[target.name] = BoundedCurve(self._with_untaught(target, bounded, reach))
        return curve

    def _with_untaught(self, target: Target, bounded: Bounded, points: int) -> Bounded:
        """What the settings change that no model sees, at the first points of the grid."""
        if not self._work.untaught:
            return bounded
        table, settings = self._samples.table(points), self._work.settings
        copies = 0.0, 0.0, 0.0
        if target is STEP:
            factors = step_factors(settings, convolves=table.convolves)
            gradients_bytes = table.counted_memory[0].gradients_bytes
            copies = bucket_copies_ms(settings, gradients_bytes, self._device.memory_bytes_per_s)
        else:
            layers = math.expm1(float(table.values[0, _DEPTH]))
            factors = memory_factors(settings, table.counted_memory[:points], layers)
        return Bounded(
            value=bounded.value * factors.value + copies[0],
            lower=bounded.lower * factors.lower + copies[1],
            upper=bounded.upper * factors.upper + copies[2],
            upper_99=bounded.upper_99 * factors.upper_99 + copies[2],
        )

    def _read(self, target: Target, batch: int) -> Estimate:
        value, lower, upper, upper_99 = self._curve(target, points_up_to(batch)).at(batch)
        model = self._models.get(target.name)
        if model is None:
            bound = upper_99 if target is MEMORY else None
            unchecked = target is not STEP or bool(self._work.untaught) or not is_step_range_calibrated(self._device)
            return Estimate(
                value,
                lower,
                upper,
                self._confidence,
                Level.FALLBACK,
                False,
                bound,
                (),
                unchecked,
                self._work.unmeasured,
            )
        texts, is_beyond = self._find_unusual(model, batch)
        # By position: names double the time, and every answer has three.
        bound = upper_99 if target is MEMORY else None
        return Estimate(value, lower, upper, self._confidence, Level.GRAPH, not texts, bound, (), is_beyond, texts)

    def _share(self, target: Target, batch: int) -> Estimate:
        low, high = neighbours(batch)
        point = self._share_at(target, low, high)
        if high != low:
            point = read_between(point, self._share_at(target, high, high), GRID[low], batch)
        value, lower, upper, _ = point
        texts, is_beyond = self._find_unusual(self._models[target.name], batch)
        return Estimate(value, lower, upper, self._confidence, Level.GRAPH, not texts, None, (), is_beyond, texts)

    def _share_at(self, target: Target, place: int, last: int) -> CurvePoint:
        """The prediction of a share at a point of `GRID`; those up to the last one are asked with it."""
        known = self._shares.get((target.name, place))
        if known is None:
            bounded = self._bounded(target, slice(place, last + 1))
            bounds = (bounded.value, bounded.lower, bounded.upper, bounded.upper_99)
            points = list(zip(*(each.tolist() for each in bounds), strict=True))
            self._shares.update({(target.name, place + offset): point for offset, point in enumerate(points)})
            known = points[0]
        return known

    def _find_unusual(self, model: ServedTarget, batch: int) -> UnusualFeatures:
        """In what the grid point that the answer mostly depends on is unlike the training rows."""
        key = (model.target.name, nearest_point(batch))
        known = self._unusual.get(key)
        if known is None:
            known = self._unusual[key] = as_known_here(model, self._ask_unusual(model, key, batch), self._work.untaught)
        return known

    def _ask_unusual(self, model: ServedTarget, key: tuple[str, int], batch: int) -> UnusualFeatures:
        """Asks the model, unless the answer is the same for every wait that it accepts: other features decide it."""
        accepts_wait = model.accepts_wait(self._input_wait_ratio)
        known = self._work.unusual.get(key) if accepts_wait else None
        if known is None:
            vector, precision = self._nearest_vector(batch)[0], self._work.settings.precision
            known = find_unusual(model, vector, precision, is_familiar=self._work.is_familiar(model) is not False)
            if accepts_wait and (known.is_beyond or not model.sees_wait):
                self._work.unusual[key] = known
        return known

    def _uncalibrated_utilization(self, batch: int) -> Estimate:
        low, high = neighbours(batch)
        table, precision = self._samples.table(high + 1), self._work.settings.precision
        busy = _busy_ms(table, low, self._device, precision)
        if high != low:
            busy += (batch / GRID[low] - 1.0) * (_busy_ms(table, high, self._device, precision) - busy)
        found = estimate_utilization(busy, table.utilization_ceiling_ratio)
        return Estimate(
            value=found.expected_ratio,
            lower=found.lower_ratio,
            upper=found.upper_ratio,
            confidence=self._confidence,
            level=Level.FALLBACK,
            in_domain=False,
            range_not_calibrated=True,
            unusual_features=self._work.unmeasured,
        )


def _busy_ms(table: JobTable, place: int, device: DeviceType, precision: str) -> float:
    flops, traffic_bytes, training = table.values[place, _WORK].tolist()
    optimizer_ms = float(table.optimizer_ratio[place] * table.roofline_ms[place])
    work = math.expm1(flops), math.expm1(traffic_bytes)
    return busy_ms(*work, device, precision, training=bool(training), optimizer_ms=optimizer_ms)


def _analytical_estimate(target: Target, sample: JobFeatures) -> float:
    """The analytical estimate of a target at one batch."""
    if target is MEMORY:
        return sample.analytical_memory_bytes
    return sample.roofline_ms if target is STEP else sample.utilization_ceiling_ratio


def _analytical_estimates(target: Target, table: JobTable) -> FloatArray:
    """The same at every batch of a table."""
    if target is MEMORY:
        return table.analytical_memory_bytes
    return table.roofline_ms if target is STEP else np.full(len(table), table.utilization_ceiling_ratio)
