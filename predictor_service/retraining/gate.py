"""Whether a new version may replace the one that is served. Pure: held-out predictions in, a verdict out.

Both versions are judged on the same measured rows, each row predicted by both without having seen its families. Errors
are taken in the scale in which a target is learned, so that large jobs do not outvote small ones.

The rule. For every target of every device type that is served, ours / theirs of the mean absolute error over the
common rows may exceed 1 by no more than the noise margin: two standard errors of that ratio when families are
resampled, at least 2 % and at most 10 %. Half a per cent of the measured value is always allowed. A version that lacks
a served target, or that shares fewer than half of the rows that the served one was judged on, is refused too, because
then nothing shows that it is not worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray
from predictor_service.learning.metrics import RowErrors
from predictor_service.learning.resampling import bootstrap_ratios
from predictor_service.registry.held_out import HeldOut, HeldOutRows

MARGIN_MIN: Final = 0.02
MARGIN_MAX: Final = 0.10
COMMON_ROWS_RATIO_MIN: Final = 0.5
MEASURING_NOISE: Final = 0.005
"""A larger error by less than this, in the learned scale, is below what repeating a measurement changes."""
_INTERVAL_PER_STANDARD_ERROR: Final = 2 * 1.96
_STANDARD_ERRORS: Final = 2.0
_ERROR: Final = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComparison:
    """One target of one device type.

    Attributes:
        device: Device type.
        target: Name with its unit.
        rows: Measured rows that both predicted.
        champion_error: Mean absolute error of the served version, in the learned scale.
        challenger_error: Same of the new one.
        margin_ratio: How much larger the latter may be, as a share.
        objection: Why the new version may not replace the served one; empty when it may.
    """

    device: str
    target: str
    rows: int
    champion_error: float
    challenger_error: float
    margin_ratio: float
    objection: str

    def as_json(self) -> dict[str, Any]:
        """For the history; numbers rounded to 6 digits."""
        numbers = {name: float(f"{getattr(self, name):.6g}") for name in ("champion_error", "challenger_error")}
        return {
            "device": self.device,
            "target": self.target,
            "rows": self.rows,
            **numbers,
            "margin_ratio": round(self.margin_ratio, 4),
            "objection": self.objection,
        }


def compare_held_out(champion: HeldOut, challenger: HeldOut, seed: int) -> list[TargetComparison]:
    """Compares every target that the champion has.

    Args:
        champion: Held-out predictions of the served version.
        challenger: Of the new one.
        seed: Of the resampling of families.
    """
    return list(_compare(champion, challenger, seed))


def _compare(champion: HeldOut, challenger: HeldOut, seed: int) -> Iterator[TargetComparison]:
    for device, targets in sorted(champion.items()):
        for target, theirs in sorted(targets.items()):
            ours = challenger.get(device, {}).get(target)
            yield (_missing(device, target) if ours is None else _compare_target(device, target, theirs, ours, seed))


def _missing(device: str, target: str) -> TargetComparison:
    return TargetComparison(
        device=device,
        target=target,
        rows=0,
        champion_error=0.0,
        challenger_error=0.0,
        margin_ratio=0.0,
        objection="is served now and would be lost",
    )


def _compare_target(
    device: str, target: str, champion: HeldOutRows, challenger: HeldOutRows, seed: int
) -> TargetComparison:
    place = {row: index for index, row in enumerate(challenger.row_ids)}
    common = [(index, place[row]) for index, row in enumerate(champion.row_ids) if row in place]
    theirs = errors_of(target, champion)[[index for index, _ in common]]
    ours = errors_of(target, challenger)[[index for _, index in common]]
    groups = [frozenset(champion.groups[index]) for index, _ in common]
    margin = _margin(ours, theirs, groups, seed) if common else MARGIN_MIN
    champion_error = float(theirs.mean()) if common else 0.0
    challenger_error = float(ours.mean()) if common else 0.0
    objection = ""
    if len(common) < COMMON_ROWS_RATIO_MIN * len(champion.row_ids):
        objection = f"only {len(common)} of {len(champion.row_ids)} rows are among the new data"
    elif challenger_error > max(champion_error * (1 + margin), champion_error + MEASURING_NOISE):
        worse = challenger_error / champion_error - 1 if champion_error > 0 else float("inf")
        objection = f"error {worse:+.1%} on the same {len(common)} rows, more than the margin of {margin:.1%}"
    return TargetComparison(
        device=device,
        target=target,
        rows=len(common),
        champion_error=champion_error,
        challenger_error=challenger_error,
        margin_ratio=margin,
        objection=objection,
    )


def errors_of(target: str, rows: HeldOutRows) -> FloatArray:
    """Absolute errors in the learned scale: logarithms of sizes and of shared time, plain differences of shares."""
    measured, predicted = np.array(rows.measured), np.array(rows.predicted)
    if target in ("memory_bytes", "step_ms"):
        return np.asarray(np.abs(np.log(np.maximum(predicted, 1e-9) / np.maximum(measured, 1e-9))))
    if target == "slowdown_ratio":
        return np.asarray(np.abs(np.log1p(np.maximum(predicted, -0.9)) - np.log1p(np.maximum(measured, -0.9))))
    return np.asarray(np.abs(predicted - measured))


def _margin(ours: FloatArray, theirs: FloatArray, groups: list[frozenset[str]], seed: int) -> float:
    parts = [RowErrors((_ERROR,), errors.reshape(-1, 1)) for errors in (ours, theirs)]
    interval = bootstrap_ratios(parts[0], parts[1], groups, seed)[_ERROR]
    standard_error = 0.0 if interval is None else (interval[1] - interval[0]) / _INTERVAL_PER_STANDARD_ERROR
    return float(np.clip(_STANDARD_ERRORS * standard_error, MARGIN_MIN, MARGIN_MAX))
