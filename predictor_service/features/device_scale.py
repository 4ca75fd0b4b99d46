"""From a calibration to a scale: how far the device at hand is from what models say of its type.

    ln(ratio of step times) = trust x mean over the anchors of ln(measured here / said by the models)
    trust = 1 - 1.5 x variance of that mean / its square, at least 0

The models are those that answer: the trained ones of a device type, or whatever stands in for them. Their own error at
the anchors is therefore part of the anchors' disagreement, which widens intervals and takes trust from the ratio: three
networks that are off by as much in either direction say nothing of the device. Nothing here knows which models they
are: a caller that has figures of the anchors can ask.

This is the estimator of James and Stein without negative parts, with the variance that the anchors have. Without trust
three anchors made answers about six of thirteen device types worse that were left out, one by two thirds; with it two,
by a hundredth of their error (`benchmarks.cross_device`).

How far a network that is no anchor may be from it is what the anchors say of their deviation together with what other
devices taught. Three anchors say too little of it: on a second machine like that of datasets/cpu_standin they are the
extremes of thirty networks (deviation 0.29 of 0.18), and ranges by them alone held all of 116 jobs, at an upper end of
3.4 times the lower one (`benchmarks.second_machine`).

Anchors of one precision say less of another: there the ratio is theirs, and ranges are wider by what precisions differ
in on one device. Anchors that ran in the other precision as well move the ratio to theirs as far as their number
outweighs that. By a single one alone answers were worse on device types left out than by three of the wrong precision
(21 % of 18 %), by both together better (16 %; `benchmarks.cross_device_precisions`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from cotenant.device_calibration import Anchor, DeviceCalibration
from predictor_service.features.devices import STANDIN_DEVICE
from predictor_service.features.head_start import HeadStart

FOREIGN_DEVIATION: Final = 0.15
"""Of ln(step time), added where others used the device while it was calibrated."""
_FEW_ANCHORS: Final = 1.5
"""Variances of three anchors are half of the true one too often to be taken as they are. Of factors from 0.5 to 3, 1
and 1.5 err least on device types left out in pairs, and 1.5 less where it errs most."""
_NINE_IN_TEN: Final = statistics.NormalDist().inv_cdf(0.95)
DEVIATION_SEEN: Final = 0.18
"""Of ln(step time / said by the models) between networks on one device, as far as devices agree about it."""
DEVIATION_DEGREES: Final = 2.5
"""As many further anchors is that worth. Both are those of the scaled inverse chi-squared distribution of the variances
of GPU types, which `benchmarks.cross_device` prints."""
PRECISION_DEVIATION: Final = 0.16
"""Of ln(step time / said by the models), between half and single precision on one device: root mean square over the six
GPU types of public sets that trained in both (`benchmarks.cross_device_precisions`)."""
_RUNS_DIFFER_BYTES: Final = 1 << 19
"""Between two runs of one training on a stand-in device: 0.1 and 0.5 MiB were seen."""
_SINGLE_DEVIATION: Final = 0.3
"""Of ln(step time) where a single anchor was measured, which cannot disagree with another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorFigures:
    """What models say of an anchor.

    Attributes:
        step_ms: Duration of a step.
        memory_bytes: Peak memory.
    """

    step_ms: float
    memory_bytes: float


_Pair = tuple[Anchor, AnchorFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceScale:
    """How the device at hand differs from what the models say of its type.

    Attributes:
        step_ratio: What steps take here over what the models say, as far as the anchors agree; 2 = twice as long.
        step_deviation: Standard deviation of its logarithm for a job that is no anchor.
        busy_ratio: Utilization of a job that never waits, 0 to 1: below 1 where something else holds it up.
        busy_deviation: How far the anchors are from that.
        memory_shift_bytes: Added to what the models say; 0 where the anchors do not agree about it.
        memory_deviation_bytes: How far the anchors are from that, and a job that is no anchor may be.
        anchors: How many were used.
        foreign_load: Others used the device meanwhile: rates and shares of time are lower bounds of what it can do.
        head_start_ms: Device time that a job gets after a wait beyond its share.
        precision: Of the jobs that it is for.
        is_precision_measured: Whether any anchor ran in it.
        others: Scales of further precisions in which anchors ran.
    """

    step_ratio: float
    step_deviation: float
    busy_ratio: float
    busy_deviation: float
    memory_shift_bytes: float
    memory_deviation_bytes: float
    anchors: int
    foreign_load: bool = False
    head_start_ms: float = 0.0
    precision: str = "fp32"
    is_precision_measured: bool = True
    others: tuple[DeviceScale, ...] = ()

    @property
    def head_start(self) -> HeadStart:
        """What a wait is worth here: nothing where a job that never waits has all of the device."""
        return HeadStart(device_ms=self.head_start_ms, share=self.busy_ratio)

    @property
    def fastest_ratio(self) -> float:
        """The smallest `step_ratio` that the anchors allow: not above 1 where others may have slowed them down."""
        return min(self.step_ratio, 1.0) if self.foreign_load else self.step_ratio

    def for_pairs(self) -> DeviceScale:
        """The scale by which pairs of jobs are answered.

        What others took while the device was calibrated is nothing that jobs will miss on it: such a calibration makes
        the device no slower and no less able to be busy than its type, and widens nothing.
        """
        if not self.foreign_load:
            return self
        deviation = math.sqrt(max(0.0, self.step_deviation**2 - FOREIGN_DEVIATION**2))
        return replace(
            self,
            step_ratio=self.fastest_ratio,
            step_deviation=deviation,
            busy_ratio=1.0,
            busy_deviation=0.0,
            others=tuple(each.for_pairs() for each in self.others),
        )

    def at(self, precision: str) -> DeviceScale:
        """The scale for jobs of a precision: a wider one where no anchor ran in it."""
        for each in (self, *self.others):
            if each.precision == precision:
                return each
        deviation = math.hypot(self.step_deviation, PRECISION_DEVIATION)
        return replace(self, step_deviation=deviation, precision=precision, is_precision_measured=False, others=())


def scale_of(
    calibration: DeviceCalibration, figures_of: Callable[[Anchor], AnchorFigures | None]
) -> DeviceScale | None:
    """Return the scale that a calibration implies; None when none of its anchors is known.

    It is for the precision of most anchors, of the first one among as many; `DeviceScale.at` has those of others.

    Args:
        calibration: Checked.
        figures_of: What the models that answer say of an anchor; None = they know nothing of it.
    """
    known = [(anchor, figures) for anchor in calibration.anchors if (figures := figures_of(anchor)) is not None]
    if not known:
        return None
    counts = Counter(anchor.precision for anchor, _ in known)
    usual, *further = sorted(counts, key=lambda each: -counts[each])
    pairs = [pair for pair in known if pair[0].precision == usual]
    scale = _scale_of_usual(calibration, pairs)
    others = (_scale_of_other(scale, pairs, [pair for pair in known if pair[0].precision == each]) for each in further)
    return replace(scale, others=tuple(others))


def _scale_of_usual(calibration: DeviceCalibration, pairs: list[_Pair]) -> DeviceScale:
    """By anchors of one precision."""
    logs = _logs(pairs)
    # A GPU is held up by nothing but its own job's host: on an H200 two of three anchors waited for it half of the time
    # and a larger network did not. Only a core under a quota is taken from all jobs alike.
    is_shared_core = calibration.device == STANDIN_DEVICE
    busy_ratios = [anchor.utilization_ratio if is_shared_core else 1.0 for anchor, _ in pairs]
    busy_ratio = statistics.median(busy_ratios)
    shift_bytes, deviation_bytes = _memory_shift(pairs)
    return DeviceScale(
        step_ratio=math.exp(_trusted_shift(logs)),
        step_deviation=_step_deviation(calibration, logs, pairs[0][0].precision),
        busy_ratio=busy_ratio,
        busy_deviation=_reach(busy_ratios),
        memory_shift_bytes=shift_bytes,
        memory_deviation_bytes=deviation_bytes,
        anchors=len(pairs),
        foreign_load=calibration.foreign_load,
        head_start_ms=calibration.head_start_ms,
        precision=pairs[0][0].precision,
    )


def _scale_of_other(usual: DeviceScale, pairs: list[_Pair], own: list[_Pair]) -> DeviceScale:
    """By anchors of another precision, about what those of the usual one say.

    Source:
        The posterior of a normal mean under a normal prior: the mean of the anchors by its precision, the ratio of the
        usual ones by that of how far apart precisions are.
    """
    logs, prior = _logs(own), math.log(usual.step_ratio)
    noise = _between(_logs(pairs)) ** 2 / len(logs)
    trust = PRECISION_DEVIATION**2 / (PRECISION_DEVIATION**2 + noise)
    shift_bytes, deviation_bytes = _memory_shift([*pairs, *own])
    return replace(
        usual,
        step_ratio=math.exp(prior + trust * (statistics.fmean(logs) - prior)),
        step_deviation=math.hypot(usual.step_deviation, PRECISION_DEVIATION * math.sqrt(1.0 - trust)),
        memory_shift_bytes=shift_bytes,
        memory_deviation_bytes=deviation_bytes,
        anchors=len(pairs) + len(own),
        precision=own[0][0].precision,
    )


def _logs(pairs: list[_Pair]) -> list[float]:
    return [math.log(anchor.step_ms / figures.step_ms) for anchor, figures in pairs]


def _memory_shift(pairs: list[_Pair]) -> tuple[float, float]:
    """What anchors hold beyond what is said, as far as they agree about it, and how far a further job may be off."""
    shifts = [anchor.memory_peak_bytes - figures.memory_bytes for anchor, figures in pairs]
    shift = statistics.median(shifts)
    # Anchors that agree about a surplus are taken at their word; shrunk by their reach its upper end would miss it.
    return (shift if abs(shift) > _reach(shifts) else 0.0), _memory_reach(shifts)


def _trusted_shift(logs: list[float]) -> float:
    """The mean of what anchors say, as far as it is beyond what their disagreement alone would make of it."""
    mean, count = statistics.fmean(logs), len(logs)
    variance = statistics.variance(logs) / count if count > 1 else _SINGLE_DEVIATION**2
    return mean * max(0.0, 1.0 - _FEW_ANCHORS * variance / mean**2) if mean else 0.0


def _step_deviation(calibration: DeviceCalibration, logs: list[float], precision: str) -> float:
    """Anchors' disagreement, with what their mean lacks of the truth, what of it is not believed, and noise."""
    count, alike = len(logs), [anchor for anchor in calibration.anchors if anchor.precision == precision]
    between = _between(logs) * (math.sqrt(1 + 1 / count) if count > 1 else 1.0)
    within = statistics.fmean(anchor.step_spread_ratio / 2 for anchor in alike)
    foreign = FOREIGN_DEVIATION if calibration.foreign_load else 0.0
    not_believed = statistics.fmean(logs) - _trusted_shift(logs)
    return math.hypot(between, within, foreign, not_believed)


def _between(logs: list[float]) -> float:
    return between_networks(logs) if len(logs) > 1 else _SINGLE_DEVIATION


def between_networks(logs: list[float]) -> float:
    """How far networks are apart on this device: what anchors say, and what is known of other devices.

    The deviation of three numbers is half or twice the true one as a rule. Three anchors that happen to agree would
    promise what no device keeps, and three that are the extremes of all would make every range useless.

    Args:
        logs: Of two anchors or more, ln(measured here / said by the models).

    Source:
        The mean of the posterior under the conjugate prior of a normal variance, the scaled inverse chi-squared one,
        without its correction for few degrees.
    """
    squares = (len(logs) - 1) * statistics.variance(logs)
    known = DEVIATION_DEGREES * DEVIATION_SEEN**2
    return math.sqrt((known + squares) / (DEVIATION_DEGREES + len(logs) - 1))


def _memory_reach(shifts: list[float]) -> float:
    """The farthest anchor, or what nine in ten further networks stay within where that is more; and their own noise."""
    count = len(shifts)
    expected = statistics.stdev(shifts) * math.sqrt(1 + 1 / count) if count > 1 else 0.0
    return max(_reach(shifts), _NINE_IN_TEN * expected) + _RUNS_DIFFER_BYTES


def _reach(values: list[float]) -> float:
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values)
