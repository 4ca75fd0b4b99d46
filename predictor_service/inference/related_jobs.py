"""What was measured of a job at other batches and precisions corrects its predictions at the batch asked about.

One graph with one set of settings errs alike at all batches: the logarithm of measured over predicted is taken as a
normal function of batch and precision whose errors go together the more the nearer both are. It shifts step time and
memory, and narrows the step time's interval by as much as is then known; the interval of memory and its bounds are
never lowered by it, because a peak of another batch does not promise this one's. Corrected curves never fall with the
batch: larger batches take at least as long and at least as much, whatever the noise of the windows was.

What was measured with a reason for doubt moves nothing here but the least memory that larger batches need.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.25 and 2.26.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.inference.observed_jobs import MEMORY_MARGIN, ObservedJob, RelatedJob, weigh_observed_step
from predictor_service.inference.observed_pairs import NOISE
from predictor_service.inference.records import Estimate

FloatArray = npt.NDArray[np.float64]
Curve = Callable[[int], Estimate]
CurveAt = Callable[[str], Curve]
"""From a precision to the predictions at any batch."""

_SHARED: Final = 0.95
"""Correlation of the errors at two batches that hardly differ: intervals of measured graphs at other settings are about
half as wide as those of graphs that were never measured (docs/accuracy.md)."""
_OCTAVES: Final = 12.0
"""Doublings of the batch after which the errors go together by 1/e of it."""
_OTHER_PRECISION: Final = 0.7
"""By how much less they do at another precision."""
_MEMORY_VARIANCE: Final = 0.01**2
"""Of the logarithm of a peak between runs."""
_VARIANCE_MIN: Final = 1e-6
_LEAST: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """Measured over predicted, as logarithms, each of shape (measured,)."""

    octave: FloatArray
    is_same: npt.NDArray[np.bool_]
    ratio: FloatArray
    noise: FloatArray


def follow_step(curve_at: CurveAt, precision: str, batch: int, related: Sequence[RelatedJob]) -> Estimate:
    """Step time at a batch, corrected and weighed against what was measured at that very batch.

    Args:
        curve_at: Predictions of the job.
        precision: Asked about.
        batch: Asked about.
        related: What was measured of the job, at any batch and precision.
    """
    points = [
        (each, each.seen.log_step_ms.mean, each.seen.log_step_ms.mean_variance)
        for each in related
        if each.seen.log_step_ms is not None
    ]
    curve = curve_at(precision)
    known = _compare(points, curve_at, precision)
    if known is None:
        return curve(batch)
    own = {each.batch: each.seen for each, _, _ in points if each.precision == precision}

    def corrected(at: int) -> Estimate:
        return weigh_observed_step(curve(at), own[at]) if at in own else _shift_interval(curve(at), known, at)

    anchors = _pool({at: (corrected(at).value, _count(own[at])) for at in sorted(own)})
    return _move(corrected(batch), _never_falling(lambda at: corrected(at).value, batch, anchors))


def _count(seen: ObservedJob) -> float:
    return seen.log_step_ms.count if seen.log_step_ms else 1.0


def follow_memory(curve_at: CurveAt, precision: str, batch: int, related: Sequence[RelatedJob]) -> Estimate:
    """Memory at a batch, corrected; the arguments are those of `follow_step`."""
    points = [
        (each, math.log(each.seen.memory_peak_bytes), _MEMORY_VARIANCE)
        for each in related
        if each.seen.memory_peak_bytes
    ]
    curve = curve_at(precision)
    known = _compare(points, curve_at, precision)
    if known is None:
        return curve(batch)
    peaks = {
        each.batch: float(each.seen.memory_peak_bytes or 0) for each, _, _ in points if each.precision == precision
    }
    anchors = dict(zip(sorted(peaks), accumulate((peaks[at] for at in sorted(peaks)), max), strict=True))

    def expected(at: int) -> float:
        return curve(at).value * math.exp(_expect(known, at, _log_deviation(curve(at)))[0])

    return _shift_bounds(curve(batch), _never_falling(expected, batch, anchors))


def keep_above_smaller(estimate: Estimate, precision: str, batch: int, related: Sequence[RelatedJob]) -> Estimate:
    """Raises a memory to what smaller batches of the same precision were seen to need, in whatever run."""
    smaller = [each.seen for each in related if each.precision == precision and each.batch <= batch]
    least = float(max((max(seen.memory_peak_bytes or 0, seen.memory_least_bytes or 0) for seen in smaller), default=0))
    promised = least * MEMORY_MARGIN
    if least <= estimate.value and promised <= (estimate.upper_99 or estimate.upper):
        return estimate
    return estimate._replace(
        value=max(estimate.value, least),
        upper=max(estimate.upper, least),
        upper_99=max(estimate.upper_99 or estimate.upper, promised),
        explanation=(),
    )


def _compare(points: Sequence[tuple[RelatedJob, float, float]], curve_at: CurveAt, precision: str) -> _Known | None:
    if not points:
        return None
    predicted = [math.log(max(curve_at(each.precision)(each.batch).value, _LEAST)) for each, _, _ in points]
    return _Known(
        octave=np.array([math.log2(each.batch) for each, _, _ in points]),
        is_same=np.array([each.precision == precision for each, _, _ in points]),
        ratio=np.array([measured for _, measured, _ in points]) - np.array(predicted),
        noise=np.array([variance for _, _, variance in points]),
    )


def _log_deviation(estimate: Estimate) -> float:
    """Standard deviation of the logarithm that an interval promises."""
    deviations = NormalDist().inv_cdf(0.5 + estimate.confidence / 2)
    return math.log(max(estimate.upper, _LEAST) / max(estimate.lower, _LEAST)) / (2 * deviations)


def _expect(known: _Known, batch: int, promised: float) -> tuple[float, float]:
    """What to add to the logarithm of a prediction, and the standard deviation of what is left."""
    # A prediction that is off by more than it promised is not trusted by its promise.
    prior = max(promised**2, float(np.mean(known.ratio**2)), _VARIANCE_MIN)
    apart = np.where(known.is_same[:, None] == known.is_same, 1.0, _OTHER_PRECISION)
    alike = _SHARED * np.exp(-np.abs(known.octave[:, None] - known.octave) / _OCTAVES) * apart
    alike[np.diag_indices(len(alike))] = 1.0
    to_asked = _SHARED * np.exp(-np.abs(known.octave - math.log2(batch)) / _OCTAVES)
    to_asked *= np.where(known.is_same, 1.0, _OTHER_PRECISION)
    weights = np.linalg.solve(prior * alike + np.diag(known.noise), prior * to_asked)
    left = prior - float(weights @ (prior * to_asked))
    return float(weights @ known.ratio), math.sqrt(max(left, _VARIANCE_MIN))


def _shift_interval(estimate: Estimate, known: _Known, batch: int) -> Estimate:
    """A prediction moved to what is expected, its interval as wide as what is then not known and a window's noise."""
    promised = _log_deviation(estimate)
    shift, deviation = _expect(known, batch, promised)
    part = math.hypot(deviation, NOISE) / promised if promised > 0 else 1.0
    value = estimate.value * math.exp(shift)
    return estimate._replace(
        value=value,
        lower=value * (max(estimate.lower, _LEAST) / estimate.value) ** part,
        upper=value * (estimate.upper / estimate.value) ** part,
        explanation=(),
    )


def _pool(values: Mapping[int, tuple[float, float]]) -> dict[int, float]:
    """The non-falling values closest to given ones in their logarithms, by their weights; batches ascend."""
    blocks: list[tuple[list[int], float, float]] = []
    for batch, (value, weight) in values.items():
        blocks.append(([batch], math.log(value), weight))
        while len(blocks) > 1 and blocks[-2][1] > blocks[-1][1]:
            (low, first, one), (high, second, two) = blocks[-2:]
            blocks[-2:] = [(low + high, (one * first + two * second) / (one + two), one + two)]
    return {batch: math.exp(value) for batches, value, _ in blocks for batch in batches}


def _never_falling(value_at: Callable[[int], float], batch: int, anchors: Mapping[int, float]) -> float:
    """The corrected curve at a batch: straight between powers of two and measured batches, and nowhere falling.

    Args:
        value_at: What is expected at batches that were not measured.
        batch: Asked about.
        anchors: Values at measured batches, which do not fall with the batch and are kept.
    """
    last = 1 << (batch - 1).bit_length()
    measured = sorted(anchors)
    knots = sorted({1 << place for place in range(last.bit_length())} | {at for at in measured if at <= last})
    before, below, reached = 0, 0.0, 0.0
    for knot in knots:
        following = bisect_left(measured, knot)
        ceiling = anchors[measured[following]] if following < len(measured) else math.inf
        below, reached = reached, max(reached, anchors[knot] if knot in anchors else min(value_at(knot), ceiling))
        if knot >= batch:
            share = (batch - before) / (knot - before)
            return below + (reached - below) * share if before else reached
        before = knot
    return reached


def _move(estimate: Estimate, value: float) -> Estimate:
    """An estimate with another value, around which its interval keeps its relative width."""
    factor = value / estimate.value
    return estimate._replace(value=value, lower=estimate.lower * factor, upper=estimate.upper * factor, explanation=())


def _shift_bounds(estimate: Estimate, value: float) -> Estimate:
    """A corrected value; bounds rise with it and do not fall."""
    up = max(value / max(estimate.value, 1.0), 1.0)
    return estimate._replace(
        value=value,
        lower=min(estimate.lower * up, value),
        upper=estimate.upper * up,
        upper_99=None if estimate.upper_99 is None else estimate.upper_99 * up,
        explanation=() if value != estimate.value else estimate.explanation,
    )
