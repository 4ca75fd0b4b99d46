"""Whether a new version may replace the one that is served. Pure: held-out predictions in, a verdict out.

Both versions are judged on the same measured rows, each row predicted by both without having seen its families. Errors
are taken in the scale in which a target is learned, so that large jobs do not outvote small ones.

The rule. For every target of every device type that is served, ours / theirs of the mean absolute error over the
common rows may exceed 1 by no more than the noise margin: two standard errors of that ratio when families are
resampled, at least 2 % and at most 10 %. Half a per cent of the measured value is always allowed.
A job that was measured anew since is the same row; both are judged by what was measured last. A version that lacks
a served target, or that shares fewer than half of the rows that the served one was judged on, is refused too, because
then nothing shows that it is not worse.

Rows of before a device changed are no judges of what it does now. A target that changed is judged by what was measured
last, of every job once: over at least `CHANGED_GROUPS_MIN` families the new version, which has not seen the job's
family, must err less than the served one by a tenth even at the upper end of the 95 % interval over resampled families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from predictor_service.learning.learning_task import FloatArray
from predictor_service.learning.metrics import RowErrors
from predictor_service.learning.resampling import bootstrap_ratios
from predictor_service.registry.held_out import HeldOut, HeldOutRows

MARGIN_MIN: Final = 0.02
MARGIN_MAX: Final = 0.10
COMMON_ROWS_RATIO_MIN: Final = 0.5
GAIN_MIN: Final = 0.1
CHANGED_GROUPS_MIN: Final = 5
"""Of fewer families chance lets all agree too often: of four in one of sixteen cases."""
MEASURING_NOISE: Final = 0.005
"""A larger error by less than this, in the learned scale, is below what repeating a measurement changes."""
_INTERVAL_PER_STANDARD_ERROR: Final = 2 * 1.96
_STANDARD_ERRORS: Final = 2.0
_ERROR: Final = "error"


class Objection(NamedTuple):
    """Why a target of a device type may not be served as it was learned."""

    device: str
    target: str
    why: str

    def __str__(self) -> str:
        return f"{self.device}, {self.target}: {self.why}"


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
    common = _common_rows(champion, challenger)
    # Of what was measured anew, the newer value is what both are judged by.
    measured = list(champion.measured)
    for index, place in common:
        measured[index] = challenger.measured[place]
    theirs = errors_of(target, replace(champion, measured=tuple(measured)))[[index for index, _ in common]]
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


def _common_rows(champion: HeldOutRows, challenger: HeldOutRows) -> list[tuple[int, int]]:
    """Places of the same rows in both, then of jobs that were measured anew: each once in what is left of both."""
    place = {row: index for index, row in enumerate(challenger.row_ids)}
    common = [(index, place[row]) for index, row in enumerate(champion.row_ids) if row in place]
    left = [
        _places_of_jobs(rows.jobs, frozenset(known))
        for rows, known in zip((champion, challenger), zip(*common, strict=True) if common else ((), ()), strict=True)
    ]
    return [*common, *((left[0][job], left[1][job]) for job in left[0] if job in left[1])]


def _places_of_jobs(jobs: Sequence[str], known: Collection[int]) -> dict[str, int]:
    """Place of every job that has one row beyond those at known places."""
    left = [(job, index) for index, job in enumerate(jobs) if index not in known]
    count = Counter(job for job, _ in left)
    return {job: index for job, index in left if count[job] == 1}


def compare_newest(
    device: str, target: str, *, champion: HeldOutRows, challenger: Mapping[str, float], seed: int
) -> TargetComparison:
    """Compares both versions on what was measured last of a target that changed.

    Args:
        device: Device type.
        target: Name with its unit.
        champion: By job key, in place of a row's name, what was measured last and what the served version says of it.
        challenger: What the new version says of the jobs whose families it was not shown, by job key.
        seed: Of the resampling of families.
    """
    places = [place for place, name in enumerate(champion.row_ids) if name in challenger]
    groups = [frozenset(champion.groups[place]) for place in places]
    theirs = errors_of(target, champion)[places]
    predicted = tuple(challenger.get(name, 1.0) for name in champion.row_ids)
    ours = errors_of(target, replace(champion, predicted=predicted))[places]
    objection = _object_to_newest(ours, theirs, groups, seed)
    return TargetComparison(
        device=device,
        target=target,
        rows=len(places),
        champion_error=float(theirs.mean()) if places else 0.0,
        challenger_error=float(ours.mean()) if places else 0.0,
        margin_ratio=-GAIN_MIN,
        objection=objection,
    )


def _object_to_newest(ours: FloatArray, theirs: FloatArray, groups: list[frozenset[str]], seed: int) -> str:
    families = len(frozenset[str]().union(*groups))
    if families < CHANGED_GROUPS_MIN:
        return f"it changed, but jobs of only {families} families were measured since; {CHANGED_GROUPS_MIN} can judge"
    parts = [RowErrors((_ERROR,), errors.reshape(-1, 1)) for errors in (ours, theirs)]
    interval = bootstrap_ratios(parts[0], parts[1], groups, seed)[_ERROR]
    if interval is None or interval[1] > 1 - GAIN_MIN:
        upper = "" if interval is None else f" (up to {interval[1]:.2f} times the served one's)"
        return f"it changed, but the new version is not clearly better on the {len(ours)} jobs measured last{upper}"
    return ""


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
