"""A version in memory, ready to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.features.job_features import FEATURE_INDEX
from predictor_service.registry.manifest import Manifest, TargetRecord
from predictor_service.registry.onnx_model import FeatureArray, FloatArray, OnnxModel
from predictor_service.selection.conformal import ROW_CONFIDENCE_MAX, ConformalBounds, stretch_for_groups
from predictor_service.selection.targets import TARGETS_BY_NAME, Target

_OFFSETS_MAX: Final = 64
_UNDISTURBED_RATIO: Final = 0.05
"""What others may take of a device while a measurement still counts (`docs/measuring.md`): no share of it is known
better. A job that waits for nothing is measured at 100 % on a quiet device and a little below elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounded:
    """Predictions with bounds, in the target's unit; all arrays have shape (rows,)."""

    value: FloatArray
    lower: FloatArray
    upper: FloatArray
    upper_99: FloatArray


class ServedTarget:
    """One target of one device type.

    Args:
        record: Its entry in the manifest.
        model: Its loaded model.
        spread: The loaded model of the spread that the record names; None = errors are as large everywhere.
    """

    def __init__(self, record: TargetRecord, model: OnnxModel, spread: OnnxModel | None = None) -> None:
        self.record = record
        self.target: Target = TARGETS_BY_NAME[record.target]
        self._model = model
        self._spread = spread
        self._offsets: dict[tuple[int, float], tuple[ConformalBounds, float, float]] = {}
        self._indices = _places(record.columns)
        nearness = record.near.nearness if record.near else None
        self._near_indices = _places((*nearness.kind_columns, *nearness.setting_columns) if nearness else ())

    @property
    def scores(self) -> ConformalBounds:
        """Residuals in units of `spread`."""
        return self.record.spread.scores if self.record.spread else self.record.bounds

    def select(self, features: FloatArray) -> FeatureArray:
        """Picks this target's columns from job vectors, shape (rows, len(FEATURES))."""
        return features[:, self._indices].astype(np.float32)

    def predict(self, columns: FeatureArray, anchor: FloatArray) -> FloatArray:
        """Predicts in the target's unit.

        Args:
            columns: Shape (rows, columns) in the order of the record.
            anchor: What physics says, shape (rows,).
        """
        return self.target.decode(self._predict_clipped(columns), anchor)

    def spread(self, columns: FeatureArray) -> FloatArray:
        """How far errors spread at every row beside elsewhere, above 0, shape (rows,)."""
        record = self.record.spread
        if record is None or self._spread is None:
            return np.ones(len(columns))
        return np.clip(self._spread.predict(columns), record.lowest, record.highest)

    def _predict_clipped(self, columns: FeatureArray) -> FloatArray:
        return np.clip(self._model.predict(columns), self.record.value_low, self.record.value_high)

    def strangeness(self, features: FloatArray) -> FloatArray | None:
        """How far jobs are from all measured ones, 0 to 1, see `Nearness`; None where all are taken for strangers.

        Args:
            features: Job vectors, shape (rows, len(FEATURES)).
        """
        near = self.record.near
        return near.nearness.strangeness(features[:, self._near_indices]) if near else None

    def predict_bounded(
        self,
        columns: FeatureArray,
        anchor: FloatArray,
        confidence: float,
        bounds: ConformalBounds | None = None,
        strangeness: FloatArray | None = None,
    ) -> Bounded:
        """Predicts with an interval.

        Args:
            columns: Shape (rows, columns) in the order of the record.
            anchor: What physics says, shape (rows,).
            confidence: Nominal coverage of the interval.
            bounds: Other residuals than those of the record; they hold for every row alike.
            strangeness: From 0, an interval as of jobs whose graph was measured, to 1, as of strangers; None = all are
                strangers. The 99 % bound is that of strangers always.
        """
        raw = self._predict_clipped(columns)
        half_width, upper_99_offset = (
            self._quantiles(bounds, confidence) if bounds else self._reach(columns, confidence)
        )
        if strangeness is not None:
            half_width = self._narrow(half_width, strangeness, confidence)
        half_width = self._as_measurable(half_width, anchor)
        return Bounded(
            value=self.target.decode(raw, anchor),
            lower=self.target.decode(raw - half_width, anchor),
            upper=self.target.decode(raw + half_width, anchor),
            upper_99=self.target.decode(raw + upper_99_offset, anchor),
        )

    def _reach(self, columns: FeatureArray, confidence: float) -> tuple[float | FloatArray, float | FloatArray]:
        """Half width and 99 % offset, of every row where errors are not as large everywhere; see `LocalBounds`."""
        plain = self._quantiles(self.record.bounds, confidence)
        record = self.record.spread
        if record is None:
            return plain
        spread, scores = self.spread(columns), self._quantiles(record.scores, confidence)
        half_width, upper_99_offset = spread * scores[0], spread * scores[1]
        if not record.scores.is_supported(confidence):
            half_width = np.minimum(half_width, plain[0])
        if not record.scores.is_supported(0.99):
            upper_99_offset = np.minimum(upper_99_offset, plain[1])
        return half_width, upper_99_offset

    def stranger_half_width(self, columns: FeatureArray, anchor: FloatArray, confidence: float) -> FloatArray:
        """Half widths of what `predict_bounded` says of strangers, in the target's own scale, shape (rows,)."""
        half_width, _ = self._reach(columns, confidence)
        return np.broadcast_to(self._as_measurable(half_width, anchor), len(columns))

    def _as_measurable(self, half_width: float | FloatArray, anchor: FloatArray) -> float | FloatArray:
        return np.maximum(half_width, _UNDISTURBED_RATIO / anchor) if self.target.scale == "share" else half_width

    def _narrow(self, far: float | FloatArray, strangeness: FloatArray, confidence: float) -> float | FloatArray:
        """Half widths between those of jobs whose graph was measured and those of strangers; never above the latter."""
        near = self.record.near
        if near is None or not near.scores.is_supported(confidence):
            return far
        least = np.minimum(self._quantiles(near.scores, confidence)[0], far)
        return np.asarray(least + strangeness * (far - least))

    def _quantiles(self, bounds: ConformalBounds, confidence: float) -> tuple[float, float]:
        """Half width and 99 % offset, kept: sorting residuals again costs more than asking the model."""
        key = (id(bounds), confidence)  # by identity: hashing a thousand residuals would cost as much again
        kept = self._offsets.get(key)
        if kept is None or kept[0] is not bounds:
            if len(self._offsets) >= _OFFSETS_MAX:
                self._offsets.clear()
            half_width = bounds.half_width(confidence)
            if bounds.rows > bounds.groups and confidence <= ROW_CONFIDENCE_MAX:  # else the quantile counts groups
                half_width *= stretch_for_groups(bounds.groups, confidence)
            kept = self._offsets[key] = (bounds, half_width, bounds.upper_offset(0.99))
        return kept[1], kept[2]

    def contains(self, columns: FeatureArray) -> npt.NDArray[np.bool_]:
        """Tells for every row whether it resembles the training rows."""
        return self.record.domain.contains(columns)


def load_target(record: TargetRecord, files: Mapping[str, bytes]) -> ServedTarget:
    """Loads one target from its files.

    Args:
        record: Its entry in the manifest.
        files: Content by the names that the record has.

    Raises:
        ModelError: A file is no model.
    """
    spread = record.spread
    return ServedTarget(
        record, OnnxModel(files[record.file_name]), OnnxModel(files[spread.file_name]) if spread else None
    )


def _places(names: Sequence[str]) -> npt.NDArray[np.intp]:
    return np.array([FEATURE_INDEX.get(name, -1) for name in names], dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedVersion:
    """All models of a version.

    Attributes:
        manifest: Where they come from.
        devices: By device type, then by target name.
    """

    manifest: Manifest
    devices: Mapping[str, Mapping[str, ServedTarget]]

    @property
    def version(self) -> str:
        """Name of the version."""
        return self.manifest.version
