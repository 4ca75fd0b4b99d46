"""A version in memory, ready to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor_service.features.job_features import INPUT_WAIT
from predictor_service.registry.manifest import OF_ALL_TYPES, Manifest, TargetRecord
from predictor_service.registry.network_bound import NetworkBound, places_of, within
from predictor_service.registry.onnx_model import FeatureArray, FloatArray, OnnxModel
from predictor_service.selection.conformal import ROW_CONFIDENCE_MAX, ConformalBounds, bound_offset, few_groups_factor
from predictor_service.selection.targets import MEMORY, SLOWDOWN, TARGETS_BY_NAME, Target

_OFFSETS_MAX: Final = 64
_IS_TRAINING: Final = "is_training"
_SLOTS: Final = "optimizer_slots"
_ROUNDING: Final = 1e-3
_BOUND: Final = 0.99
"""No interval of at most this coverage reaches above the bound."""
_UNDISTURBED_RATIO: Final = 0.05
"""What others may take of a device while a measurement still counts (`docs/measuring.md`): no share of it is known
better. A job that waits for nothing is measured at 100 % on a quiet device and a little below elsewhere."""

WIDER_PER_UNIT_OUTSIDE: Final = 0.25
"""Added to the half width, in the learned scale, for each unit (of sizes: each factor e) by which a job lies outside of
what was trained. Where this can be checked (half of the stand-in's rows, learned from the smaller half, up to a
factor 1.5 in memory and 5 in time) errors do not grow; farther out nothing was measured at all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounded:
    """Predictions with bounds, in the target's unit; all arrays have shape (rows,)."""

    value: FloatArray
    lower: FloatArray
    upper: FloatArray
    upper_99: FloatArray


class _Reaches(NamedTuple):
    """Half widths and 99 % offsets at one confidence.

    Attributes:
        plain: Of every row alike.
        scores: In units of the spread; None = errors are as large everywhere.
        is_supported: Whether there are enough scores for the half width.
        is_99_supported: Whether there are enough of them for the offset.
        near: Half width of jobs whose graph was measured; None = they are not distinguished.
    """

    plain: tuple[float, float]
    scores: tuple[float, float] | None
    is_supported: bool
    is_99_supported: bool
    near: float | None


class ServedTarget:
    """One target of one device type.

    Args:
        record: Its entry in the manifest.
        model: Its loaded model.
        spread: The loaded model of the spread that the record names; None = errors are as large everywhere.
        familiar: The same of the spread on networks of known families; None = it is that of all.
        partner: The loaded second model that the latter names; None = there is none.
    """

    def __init__(
        self,
        record: TargetRecord,
        model: OnnxModel,
        spread: OnnxModel | None = None,
        familiar: OnnxModel | None = None,
        partner: OnnxModel | None = None,
    ) -> None:
        self.record = record
        self.target: Target = TARGETS_BY_NAME[record.target]
        self._model = model
        self._spread = spread
        self._network_bound = (
            NetworkBound(
                record.familiar,
                record.familiar.columns or record.columns,
                familiar,
                partner,
                (record.value_low, record.value_high),
            )
            if record.familiar and familiar
            else None
        )
        self._offsets: dict[tuple[int, float], tuple[ConformalBounds, float, float]] = {}
        self._kept_reaches: dict[float, _Reaches] = {}
        self._indices = places_of(record.columns)
        self.is_of_all_types = record.basis is not None and record.basis.name == OF_ALL_TYPES
        self.sees_wait = INPUT_WAIT in record.columns
        self._wait_place = record.columns.index(INPUT_WAIT) if self.sees_wait else -1
        nearness = record.near.nearness if record.near else None
        self._near_indices = places_of((*nearness.kind_columns, *nearness.setting_columns) if nearness else ())

    @property
    def scores(self) -> ConformalBounds:
        """Residuals in units of `spread`."""
        return self.record.spread.scores if self.record.spread else self.record.bounds

    def select(self, features: FloatArray) -> FeatureArray:
        """Picks this target's columns from job vectors, shape (rows, len(FEATURES))."""
        return features[:, self._indices].astype(np.float32)

    def predict(self, columns: FeatureArray, analytical_estimate: FloatArray) -> FloatArray:
        """Predicts in the target's unit.

        Args:
            columns: Shape (rows, columns) in the order of the record.
            analytical_estimate: What physics says, shape (rows,).
        """
        return self.target.decode(self._predict_clipped(columns), analytical_estimate)

    def spread(self, columns: FeatureArray) -> FloatArray:
        """How far errors spread at every row relative to the rest, above 0, shape (rows,)."""
        record = self.record.spread
        if record is None or self._spread is None:
            return np.ones(len(columns))
        return within(self._spread.predict(columns), record.lowest, record.highest)

    def _predict_clipped(self, columns: FeatureArray) -> FloatArray:
        return within(self._model.predict(columns), self.record.value_low, self.record.value_high)

    @property
    def nearness_sha256(self) -> str | None:
        """Equal for targets whose `novelty` is; None where all jobs are taken for unseen."""
        return self.record.near.nearness.content_sha256 if self.record.near else None

    def novelty(self, features: FloatArray) -> FloatArray | None:
        """How far jobs are from all measured ones, 0 to 1, see `Nearness`; None where all are taken for unseen.

        Args:
            features: Job vectors, shape (rows, len(FEATURES)).
        """
        near = self.record.near
        return near.nearness.novelty(features[:, self._near_indices]) if near else None

    def is_unlike_all(self, features: FloatArray) -> bool:
        """Whether the `novelty` of jobs is 1 whatever their batch and their input wait; see `Nearness`."""
        near = self.record.near
        return near is not None and near.nearness.is_unlike_all(features[:, self._near_indices])

    def is_familiar(self, features: FloatArray) -> npt.NDArray[np.bool_] | None:
        """Whether jobs' networks are like those of known families, see `OperatorMix`; None where that is not known.

        Args:
            features: Job vectors, shape (rows, len(FEATURES)).
        """
        mix = self.record.operator_mix
        return mix.is_familiar(features) if mix else None

    def network_novelty(self, features: FloatArray) -> FloatArray | None:
        """How unlike those of known families jobs' networks are, 0 to 1, see `OperatorMix`; None = that is not known.

        Args:
            features: Job vectors, shape (rows, len(FEATURES)).
        """
        mix = self.record.operator_mix
        return mix.novelty(features) if mix else None

    def predict_bounded(
        self,
        columns: FeatureArray,
        analytical_estimate: FloatArray,
        confidence: float,
        bounds: ConformalBounds | None = None,
        novelty: FloatArray | None = None,
        *,
        network_novelty: FloatArray | None = None,
        vectors: FloatArray | None = None,
        is_precision_new: bool = False,
        is_mode_new: bool = False,
        excess: FloatArray | None = None,
    ) -> Bounded:
        """Predicts with an interval.

        Args:
            columns: Shape (rows, columns) in the order of the record.
            analytical_estimate: What physics says, shape (rows,).
            confidence: Nominal coverage of the interval.
            bounds: Other residuals than those of the record; they hold for every row alike.
            novelty: From 0, an interval as of jobs whose graph was measured, to 1, as of unseen jobs; None = all are
                unseen. The 99 % bound is always that of unseen jobs.
            network_novelty: Of the jobs' networks, see `OperatorMix`: not families, networks held out teach the bound.
            vectors: Of the jobs, shape (rows, len(FEATURES)), which that bound sees.
            is_precision_new: Whether no training row has the job's precision.
            is_mode_new: Whether none trained, or inferred, as the job does.
            excess: `TrainingDomain.excess` of the columns, where it is at hand.
        """
        raw = self._predict_clipped(columns)
        reach = self._quantiles(bounds, confidence) if bounds else self._reach(columns, confidence)
        half_width, upper_99_offset = reach
        if novelty is not None:
            half_width = self._narrow(half_width, novelty, confidence)
        half_width = self._as_measurable(half_width, analytical_estimate)
        if network_novelty is not None and vectors is not None and self._network_bound is not None:
            upper_99_offset = np.minimum(upper_99_offset, self._network_bound.offset(vectors, raw, network_novelty))
        upwards = half_width
        if self.target is not SLOWDOWN:
            # What is smaller than all that was trained holds less; as bounds never fall, its own would be that of all.
            outside, above = self.record.domain.excess(columns) if excess is None else excess
            above = outside if is_mode_new else above
            half_width = half_width + WIDER_PER_UNIT_OUTSIDE * (outside + float(is_precision_new))
            upper_99_offset = upper_99_offset + WIDER_PER_UNIT_OUTSIDE * (above + float(is_precision_new))
            is_smaller = (outside > above) & (self.target is MEMORY and confidence <= _BOUND)
            upwards = np.where(is_smaller, np.clip(upper_99_offset, 0.0, half_width), half_width)
        ends = np.empty((4, len(raw)))  # decoded at once: few rows are asked, and each call costs more than its rows
        ends[0], ends[1], ends[2] = raw, raw - half_width, raw + upwards
        ends[3] = raw + upper_99_offset
        if network_novelty is not None and confidence <= _BOUND:  # families held out teach the interval
            by_networks = (
                network_novelty < 1.0 if self._network_bound is None else self._network_bound.is_taught(network_novelty)
            )
            by_networks = by_networks | bool(self.record.spread and self.record.spread.bound)
            ends[2] = np.where(by_networks, np.clip(ends[2], raw, ends[3]), ends[2])
        value, lower, upper, upper_99 = self.target.decode(ends, analytical_estimate)
        return Bounded(value=value, lower=lower, upper=upper, upper_99=upper_99)

    def _reach(self, columns: FeatureArray, confidence: float) -> tuple[float | FloatArray, float | FloatArray]:
        """Half width and 99 % offset, of every row where errors are not as large everywhere; see `LocalBounds`."""
        reach = self._reaches(confidence)
        if reach.scores is None:
            return reach.plain
        spread = self.spread(columns)
        half_width, upper_99_offset = spread * reach.scores[0], spread * reach.scores[1]
        if not reach.is_supported:
            half_width = np.minimum(half_width, reach.plain[0])
        if not reach.is_99_supported:
            upper_99_offset = np.minimum(upper_99_offset, reach.plain[1])
        return half_width, upper_99_offset

    def _reaches(self, confidence: float) -> _Reaches:
        """What the record gives at a confidence, kept: sorting its residuals again costs more than asking the model."""
        kept = self._kept_reaches.get(confidence)
        if kept is None:
            spread, near = self.record.spread, self.record.near
            kept = _Reaches(
                plain=self._quantiles(self.record.bounds, confidence),
                scores=(
                    self._quantiles(spread.scores, confidence)[0],
                    bound_offset(spread.scores, spread.bound, _BOUND),
                )
                if spread
                else None,
                is_supported=spread is not None and spread.scores.is_supported(confidence),
                is_99_supported=spread is not None and spread.scores.is_supported(_BOUND),
                near=self._quantiles(near.scores, confidence)[0]
                if near and near.scores.is_supported(confidence)
                else None,
            )
            if len(self._kept_reaches) >= _OFFSETS_MAX:
                self._kept_reaches.clear()
            self._kept_reaches[confidence] = kept
        return kept

    def novel_half_width(self, columns: FeatureArray, analytical_estimate: FloatArray, confidence: float) -> FloatArray:
        """Half widths of what `predict_bounded` returns for unseen jobs, in the target's own scale, shape (rows,)."""
        half_width, _ = self._reach(columns, confidence)
        return np.broadcast_to(self._as_measurable(half_width, analytical_estimate), len(columns))

    def _as_measurable(self, half_width: float | FloatArray, analytical_estimate: FloatArray) -> float | FloatArray:
        return (
            np.maximum(half_width, _UNDISTURBED_RATIO / analytical_estimate)
            if self.target.scale == "share"
            else half_width
        )

    def _narrow(self, far: float | FloatArray, novelty: FloatArray, confidence: float) -> float | FloatArray:
        """Half widths between those of jobs whose graph was measured and of unseen jobs; never above the latter."""
        near = self._reaches(confidence).near
        if near is None:
            return far
        least = np.minimum(near, far)
        return np.asarray(least + novelty * (far - least))

    def _quantiles(self, bounds: ConformalBounds, confidence: float) -> tuple[float, float]:
        """Half width and 99 % offset, kept: sorting residuals again costs more than asking the model."""
        key = (id(bounds), confidence)  # by identity: hashing a thousand residuals would cost as much again
        kept = self._offsets.get(key)
        if kept is None or kept[0] is not bounds:
            if len(self._offsets) >= _OFFSETS_MAX:
                self._offsets.clear()
            half_width = bounds.half_width(confidence)
            if bounds.rows > bounds.groups and confidence <= ROW_CONFIDENCE_MAX:  # else the quantile counts groups
                half_width *= few_groups_factor(bounds.groups, confidence)
            kept = self._offsets[key] = (bounds, half_width, bounds.upper_offset(0.99))
        return kept[1], kept[2]

    @cached_property
    def asked_slots(self) -> int | None:
        """Numbers per parameter that the optimizer of every job is taken to keep when the model is asked.

        None where a job's own are asked about: the rows had several, and networks that ran with more than one. In
        tables of others every network has an optimizer of its own, so that the numbers tell networks apart and nothing
        else; the fewest are asked about, and what a job's own change is known from physics alone.
        """
        if self.target.scale != "log_ratio" or _SLOTS not in self.record.columns:
            return None
        place = self.record.columns.index(_SLOTS)
        low, high = (float(ends[place]) for ends in self.record.domain.trained)
        return round(low) if self.record.is_public or high - low < _ROUNDING else None

    def is_precision_new(self, precision: str) -> bool:
        """Whether no training row has a precision; False where that was not kept."""
        return bool(self.record.precisions) and precision not in self.record.precisions

    def knows_mode(self, mode: str) -> bool:
        """Whether any training row trained, or inferred, as a job does; True where the model does not see that."""
        if _IS_TRAINING not in self.record.columns:
            return True
        place, is_training = self.record.columns.index(_IS_TRAINING), float(mode == "train")
        low, high = (float(ends[place]) for ends in self.record.domain.trained)
        return low - _ROUNDING <= is_training <= high + _ROUNDING

    def excess_but_for_wait(self, columns: FeatureArray) -> FloatArray:
        """How far rows are outside of what was trained, see `TrainingDomain.excess`, if their wait is not."""
        if self.sees_wait:
            columns = columns.copy()
            columns[:, self._wait_place] = self.record.domain.trained[0][self._wait_place]
        return self.record.domain.excess(columns)

    def with_wait(
        self, columns: FeatureArray, excess: FloatArray, input_wait_ratio: float
    ) -> tuple[FeatureArray, FloatArray]:
        """The columns and the excess of jobs that wait for their input so long, from those of other such jobs.

        Args:
            columns: Shape (rows, columns) in the order of the record; left as they are.
            excess: Of these, see `excess_but_for_wait`.
            input_wait_ratio: From 0 to below 1.
        """
        if not self.sees_wait:
            return columns, excess
        columns = columns.copy()
        columns[:, self._wait_place] = input_wait_ratio
        beyond = self.record.domain.excess_at(self._wait_place, float(columns[0, self._wait_place]))
        return columns, np.maximum(excess, np.array(beyond)[:, None]) if beyond[0] > 0.0 else excess

    def accepts_wait(self, input_wait_ratio: float) -> bool:
        """Whether an input wait is no farther outside of its training range than any column may be."""
        if not self.sees_wait:
            return True
        place, domain = self._wait_place, self.record.domain
        return bool(domain.low[place] <= np.float32(input_wait_ratio) <= domain.high[place])

    def contains(self, columns: FeatureArray) -> npt.NDArray[np.bool_]:
        """Returns for every row whether it resembles the training rows."""
        return self.record.domain.contains(columns)


def load_target(record: TargetRecord, files: Mapping[str, bytes]) -> ServedTarget:
    """Loads one target from its files.

    Args:
        record: Its entry in the manifest.
        files: Content by the names that the record has.

    Raises:
        ModelError: A file is no model.
    """
    partner = record.familiar.partner if record.familiar else None
    others = [OnnxModel(files[each.file_name]) if each else None for each in (record.spread, record.familiar, partner)]
    return ServedTarget(record, OnnxModel(files[record.file_name]), *others)


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

    def without_public(self) -> ServedVersion:
        """The same without the models that come with the program."""
        devices = {
            device: {name: model for name, model in models.items() if not model.record.is_public}
            for device, models in self.devices.items()
        }
        return ServedVersion(manifest=self.manifest, devices=devices)
