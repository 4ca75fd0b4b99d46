"""The 99 % bound by what networks that were held out taught, of a target that a service has loaded."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from predictor_service.features.job_features import FEATURE_INDEX
from predictor_service.registry.onnx_model import FloatArray, OnnxModel
from predictor_service.registry.spread_record import SpreadRecord

_CONFIDENCE = 0.99


class NetworkBound:
    """How far above a prediction the bound of a job is.

    Args:
        record: What is stored of it.
        columns: Names of the features that spread and second model see.
        spread: The loaded model of the spread.
        partner: The loaded second model that the record names; None = there is none.
        value_range: Smallest and largest correction in any training row, in the target's own scale.
    """

    def __init__(
        self,
        record: SpreadRecord,
        columns: tuple[str, ...],
        spread: OnnxModel,
        partner: OnnxModel | None,
        value_range: tuple[float, float],
    ) -> None:
        self.record = record
        self._indices = places_of(columns)
        self._spread = spread
        self._partner = partner
        self._value_range = value_range

    def offset(self, vectors: FloatArray, raw: FloatArray, novelty: FloatArray) -> FloatArray:
        """What is added to predictions, in the target's own scale, shape (rows,).

        Args:
            vectors: Of the jobs, shape (rows, len(FEATURES)).
            raw: The predictions.
            novelty: See `OperatorMix.novelty`.

        Returns:
            Infinity where the record says nothing of networks as strange.
        """
        record, columns = self.record, vectors[:, self._indices].astype(np.float32)
        spread = within(self._spread.predict(columns), record.lowest, record.highest)
        own = spread**record.exponent * self._units + (record.strangers_margin or 0.0) * novelty
        if self._partner is not None:
            partner = within(self._partner.predict(columns), *self._value_range)
            own = np.maximum(own + record.partner_weight * (partner - raw), 0.0)
        return np.where(self.is_taught(novelty), own, np.inf)

    def is_taught(self, novelty: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether the record bounds networks as strange."""
        return np.asarray((novelty < 1.0) | (self.record.strangers_margin is not None))

    @cached_property
    def _units(self) -> float:
        return self.record.scores.upper_offset(_CONFIDENCE)


def within(values: FloatArray, low: float, high: float) -> FloatArray:
    """What numpy.clip returns, in a third of its time for the few rows of a question."""
    return np.minimum(np.maximum(values, low), high)


@lru_cache(maxsize=256)
def places_of(names: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """Places of features in the vector, by name; -1 of one that this program does not know."""
    return np.array([FEATURE_INDEX.get(name, -1) for name in names], dtype=np.intp)
