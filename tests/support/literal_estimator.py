"""Estimates made target by target and share by share, nothing kept: the yardstick of questions answered at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DeviceType
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.job_features import FEATURES, tabulate_job
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.features.operator_times import FloatArray
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.job_work import JobWork
from predictor_service.inference.measured_graph import GRID, MeasuredGraph
from predictor_service.registry.served_version import Bounded, ServedTarget, ServedVersion
from predictor_service.selection.conformal import ROW_CONFIDENCE_MAX, ConformalBounds, few_groups_factor
from predictor_service.selection.targets import MEMORY, STEP, Target
from tests.support.literal_features import literal_step_ms, literal_values


class LiteralEstimator(JobEstimator):
    """Asks models the slow way; curves, domain and notices are the service's."""

    def __init__(
        self,
        graph: GraphDescription,
        settings: JobSettings,
        device: DeviceType,
        version: ServedVersion | None,
        confidence: float,
    ) -> None:
        if settings.precision == "tf32" and device.peak("tf32") == device.peak("fp32"):
            settings = replace(
                settings, precision="fp32"
            )  # of the devices that are asked about none rounds at one rate
        models = version.devices.get(device.name, {}) if version else {}
        work = JobWork(MeasuredGraph(graph), settings, device, models, tuple(version.devices) if version else ())
        super().__init__(work, settings.input_wait_ratio, confidence)
        self._literal = graph, settings, device, models, confidence

    def _bounded(self, target: Target, points: slice) -> Bounded:
        _, settings, _, models, confidence = self._literal
        model = models.get(target.name)
        if model is None:
            return super()._bounded(target, points)
        batches = GRID[points]
        anchors = np.array([self._anchor_of(target, batch) for batch in batches])
        vectors = np.array([self._vector(batch, settings) for batch in batches])
        asked = np.array([self._vector(batch, as_taught(model, settings)) for batch in batches])
        if target in {MEMORY, STEP}:
            return bounded_of(model, vectors, anchors, confidence, settings.precision, asked=asked)
        places = [slice(place, place + 1) for place in range(len(batches))]
        rows = [
            bounded_of(model, vectors[here], anchors[here], confidence, settings.precision, asked=asked[here])
            for here in places
        ]
        names = ("value", "lower", "upper", "upper_99")
        return Bounded(**{name: np.concatenate([getattr(row, name) for row in rows]) for name in names})

    def _vector(self, batch: int, settings: JobSettings) -> list[float]:
        graph, _, device, _, _ = self._literal
        values = literal_values(graph.at_batch(batch), settings, device)
        return [values[feature.name] for feature in FEATURES]

    def _anchor_of(self, target: Target, batch: int) -> float:
        graph, settings, device, _, _ = self._literal
        if target is MEMORY:
            alone = MeasuredGraph(graph).at(batch)
            return tabulate_job(alone, settings, device).row(0).analytical_memory_bytes
        ceiling_ratio = 1.0 - settings.input_wait_ratio
        if target is STEP:
            return literal_step_ms(graph.at_batch(batch), settings, device) / ceiling_ratio
        return ceiling_ratio


def as_taught(model: ServedTarget, settings: JobSettings) -> JobSettings:
    """The settings about which a model is asked: with the optimizer that it was taught, if that was one alone."""
    if model.asked_slots is None or settings.mode != "train":
        return settings
    names = [name for name, slots in OPTIMIZER_SLOTS.items() if slots == model.asked_slots]
    return replace(settings, optimizer=names[0]) if names else settings


def bounded_of(
    model: ServedTarget,
    vectors: FloatArray,
    analytical_estimate: FloatArray,
    confidence: float,
    precision: str,
    *,
    asked: FloatArray,
) -> Bounded:
    """What a target says of the asked vectors with its interval, every step of it worked out for this question."""
    record, columns, taught = model.record, model.select(vectors), model.select(asked)
    raw = np.clip(model._model.predict(taught), record.value_low, record.value_high)
    half_width, offset = (np.full(len(raw), each) for each in widths(record.bounds, confidence))
    if record.spread is not None:
        assert model._spread is not None
        spread = np.clip(model._spread.predict(taught), record.spread.lowest, record.spread.highest)
        scores = record.spread.scores
        scaled_width, scaled_offset = (spread * each for each in widths(scores, confidence))
        half_width = scaled_width if scores.is_supported(confidence) else np.minimum(scaled_width, half_width)
        offset = scaled_offset if scores.is_supported(0.99) else np.minimum(scaled_offset, offset)
    novelty = model.novelty(vectors)
    if novelty is not None and record.near is not None and record.near.scores.is_supported(confidence):
        least = np.minimum(widths(record.near.scores, confidence)[0], half_width)
        half_width = least + novelty * (half_width - least)
    if model.target.scale == "share":
        half_width = np.maximum(half_width, 0.05 / analytical_estimate)
    outside = np.array([farthest_outside(model, row) for row in columns])
    outside += float(bool(record.precisions) and precision not in record.precisions)
    if "is_training" in record.columns:
        place = record.columns.index("is_training")
        is_new = (columns[:, place] < record.domain.trained[0][place]) | (
            columns[:, place] > record.domain.trained[1][place]
        )
        outside[:, 1] = np.where(is_new, outside[:, 0], outside[:, 1])
    half_width, offset = half_width + 0.25 * outside[:, 0], offset + 0.25 * outside[:, 1]
    above = raw + half_width
    if model.target is MEMORY and confidence <= 0.99:
        above = np.where(outside[:, 0] > outside[:, 1], np.minimum(above, raw + offset), above)
    return Bounded(
        value=decoded(model.target, raw, analytical_estimate),
        lower=decoded(model.target, raw - half_width, analytical_estimate),
        upper=decoded(model.target, above, analytical_estimate),
        upper_99=decoded(model.target, raw + offset, analytical_estimate),
    )


def farthest_outside(model: ServedTarget, row: FloatArray) -> tuple[float, float]:
    """In the unit of the column that is farthest outside of the values trained, on either side and above only.

    What rounding does is inside.
    """
    farthest = above = 0.0
    for value, low, high in zip(row, model.record.domain.low, model.record.domain.high, strict=True):
        margin = min((high - low) / 6.0, np.log(2.0))
        above = max(above, value - (high - margin))
        farthest = max(farthest, above, (low + margin) - value)
    return max(0.0, farthest - 1e-5), max(0.0, above - 1e-5)


def decoded(target: Target, value: FloatArray, analytical_estimate: FloatArray) -> FloatArray:
    if target.scale == "log_ratio":
        return np.asarray(np.exp(np.clip(value, -12.0, 12.0)) * analytical_estimate)
    return np.asarray(np.clip(value, 0.0, 1.0 / analytical_estimate) * analytical_estimate)


def widths(bounds: ConformalBounds, confidence: float) -> tuple[float, float]:
    """Half width and 99 % offset of rows whose errors are those that were stored."""
    half_width = bounds.half_width(confidence)
    if bounds.rows > bounds.groups and confidence <= ROW_CONFIDENCE_MAX:
        half_width *= few_groups_factor(bounds.groups, confidence)
    return half_width, bounds.upper_offset(0.99)
