"""Estimates of one job on the very device that was calibrated, from those of its type and a scale.

The time in which a job waits for input stays as it is: a disk or a network does not become faster with the device. What
it computes takes the scale's ratio as long, less what a wait is worth there. Both together give the share of time in
which the device is busy. The intervals are the models' own, combined with the disagreement of the anchors.
"""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Final

from predictor_service.features.device_scale import DeviceScale
from predictor_service.features.memory_states import MemoryStates
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.records import Contribution, Estimate, Level, PairJob
from predictor_service.registry.manifest import BasisRecord
from predictor_service.selection.oom_risk import MemoryEstimate
from predictor_service.selection.targets import MEMORY, STEP, Target

_ROOFLINE_DEVIATION: Final = 0.25
"""Of ln(step time) between networks on one device about a roofline that anchors were measured against."""
_BUSY_LEAST: Final = 0.02
"""No share of a device is known better, see `served_version`."""


class CalibratedEstimator(JobEstimator):
    """Answers as an estimator of the device type does, corrected by what was measured of the device at hand.

    Args:
        inner: Of the job on the device type.
        scale: Of the device at hand.
        input_wait_ratio: Share of a step that the job waits on a device of the type at its usual speed.
        of_device: Whether utilization is the share of the device's own capacity that the job needs, which is what jobs
            compete for, instead of what is measured where something else holds the device up.
    """

    def __init__(
        self, inner: JobEstimator, scale: DeviceScale, input_wait_ratio: float, *, of_device: bool = False
    ) -> None:
        self._inner = inner
        self._scale = scale
        self._wait_ratio = input_wait_ratio
        self._of_device = of_device

    def memory(self, batch: int) -> Estimate:
        """See `JobEstimator.memory`."""
        return self._shifted(self._inner.memory(batch))

    def accumulated_memory(self, micro_batch_size: int, passes: int) -> Estimate:
        """See `JobEstimator.accumulated_memory`."""
        return self._shifted(self._inner.accumulated_memory(micro_batch_size, passes))

    def step(self, batch: int) -> Estimate:
        """See `JobEstimator.step`."""
        return self._scaled(self._inner.step(batch))

    def accumulated_step(self, micro_batch_size: int, passes: int) -> Estimate:
        """See `JobEstimator.accumulated_step`."""
        return self._scaled(self._inner.accumulated_step(micro_batch_size, passes), passes)

    def memory_states(self, batch: int, memory: Estimate) -> MemoryStates:
        """See `JobEstimator.memory_states`."""
        return self._inner.memory_states(batch, memory)

    def utilization(self, batch: int) -> Estimate:
        """See `JobEstimator.utilization`."""
        return self._held_up(self._inner.utilization(batch), self._shortening(batch))

    def sm_activity(self, batch: int) -> Estimate | None:
        """See `JobEstimator.sm_activity`."""
        return self._inner.sm_activity(batch)

    def largest_batch(self, memory_bytes: int) -> int:
        """See `JobEstimator.largest_batch`."""
        scale = self._scale
        return self._inner.largest_batch(round(memory_bytes - scale.memory_shift_bytes - scale.memory_deviation_bytes))

    @property
    def has_memory_model(self) -> bool:
        """See `JobEstimator.has_memory_model`."""
        return self._inner.has_memory_model

    def oom_risk(self, batch: int, device_memory_bytes: float) -> float | None:
        """See `JobEstimator.oom_risk`."""
        return self._inner.oom_risk(batch, max(1.0, device_memory_bytes - self._scale.memory_shift_bytes))

    def estimate_memory(self, batch: int) -> MemoryEstimate | None:
        """See `JobEstimator.estimate_memory`."""
        estimate = self._inner.estimate_memory(batch)
        if estimate is None:
            return None
        value_bytes = max(1.0, estimate.value_bytes + self._scale.memory_shift_bytes)
        return MemoryEstimate(value_bytes=value_bytes, bounds=estimate.bounds, spread=estimate.spread)

    def novelty(self, batch: int) -> dict[str, float]:
        """See `JobEstimator.novelty`."""
        return self._inner.novelty(batch)

    def step_basis(self) -> BasisRecord | None:
        """See `JobEstimator.step_basis`."""
        return self._inner.step_basis()

    def explain(self, estimate: Estimate, target: Target, batch: int) -> Estimate:
        """See `JobEstimator.explain`; what the calibration changed is one contribution more."""
        asked = self._inner.step(batch) if target is STEP else self._inner.utilization(batch)
        asked = self._inner.memory(batch) if target is MEMORY else asked
        explanation = self._inner.explain(asked, target, batch).explanation
        if not explanation:
            return estimate
        change = Contribution(
            feature="calibration",
            feature_value=self._scale.step_ratio,
            contribution=estimate.value - asked.value,
        )
        return estimate._replace(explanation=(*explanation, change))

    def _scaled(self, estimate: Estimate, passes: int = 1) -> Estimate:
        ratio = self._scale.step_ratio
        busy_ms, wait_ms = estimate.value * (1 - self._wait_ratio), estimate.value * self._wait_ratio
        below = math.log(estimate.value / max(estimate.lower, 1e-9 * estimate.value))
        above = math.log(estimate.upper / estimate.value)
        least_ms = self._scale.fastest_ratio * busy_ms * math.exp(-self._step_reach(estimate, below))
        most_ms = ratio * busy_ms * math.exp(self._step_reach(estimate, above))
        below, above = (self._between_networks(estimate, each) for each in (below, above))
        return estimate._replace(
            value=self._step_ms(ratio * busy_ms, wait_ms, passes),
            lower=self._step_ms(least_ms, wait_ms * math.exp(-below), passes),
            upper=self._step_ms(most_ms, wait_ms * math.exp(above), passes),
        )

    def _step_reach(self, estimate: Estimate, reach: float) -> float:
        """How far a step may be from what is said, a logarithm, given how far it may be on a device of the type."""
        between = self._between_networks(estimate, reach)
        measured = math.hypot(between, self._reach(estimate, self._scale.step_deviation))
        # In a precision in which no anchor ran nothing narrows what holds where nothing was measured.
        return measured if self._scale.is_precision_measured else max(measured, reach)

    def _between_networks(self, estimate: Estimate, reach: float) -> float:
        """What of that is between networks: a fallback's factor is about devices, and this one was measured."""
        is_fallback = estimate.level is Level.FALLBACK
        return min(reach, self._reach(estimate, _ROOFLINE_DEVIATION)) if is_fallback else reach

    def _step_ms(self, busy_ms: float, wait_ms: float, passes: int = 1) -> float:
        """Of a step whose passes each wait and compute as long."""
        return wait_ms + passes * self._scale.head_start.computing_ms(busy_ms / passes, wait_ms / passes)

    def _shortening(self, batch: int) -> float:
        """A step over what it would take if its wait were worth nothing, above 0 to 1."""
        if not (self._wait_ratio and self._scale.head_start_ms):
            return 1.0
        step_ms = self._inner.step(batch).value
        busy_ms, wait_ms = self._scale.step_ratio * step_ms * (1 - self._wait_ratio), step_ms * self._wait_ratio
        return self._step_ms(busy_ms, wait_ms) / (busy_ms + wait_ms)

    def _held_up(self, estimate: Estimate, shortening: float) -> Estimate:
        scale = self._scale

        def share_of(share: float, ratio: float) -> float:
            return min(1.0, busy_share(share, ratio) / shortening)

        noise = math.exp(self._reach(estimate, scale.step_deviation))
        busy_ratio, reach = (1.0, 0.0) if self._of_device else (scale.busy_ratio, scale.busy_deviation + _BUSY_LEAST)
        value = busy_ratio * share_of(estimate.value, scale.step_ratio)
        lower = max(0.0, busy_ratio - reach) * share_of(estimate.lower, scale.step_ratio / noise)
        most = 1.0 if scale.foreign_load else min(1.0, busy_ratio + reach)
        upper = most * share_of(estimate.upper, scale.step_ratio * noise)
        return estimate._replace(value=value, lower=min(lower, value), upper=max(upper, value))

    def _shifted(self, estimate: Estimate) -> Estimate:
        shift, reach = self._scale.memory_shift_bytes, self._scale.memory_deviation_bytes
        upper_99 = None if estimate.upper_99 is None else max(1.0, estimate.upper_99 + shift + reach)
        return estimate._replace(
            value=max(1.0, estimate.value + shift),
            lower=max(0.0, estimate.lower + shift - reach),
            upper=max(1.0, estimate.upper + shift + reach),
            upper_99=upper_99,
        )

    @staticmethod
    def _reach(estimate: Estimate, deviation: float) -> float:
        return NormalDist().inv_cdf(0.5 + estimate.confidence / 2) * deviation


def busy_share(share: float, ratio: float) -> float:
    """Return the share of time in which a device is busy once its part of a step takes `ratio` as long.

    Args:
        share: The share before, 0 to 1.
        ratio: 0 or more; what a step waits stays as it is.
    """
    share = min(1.0, max(0.0, share))
    busy = ratio * share
    return busy / (busy + 1.0 - share) if busy else 0.0


def share_of_capacity(job: PairJob, scale: DeviceScale | None) -> PairJob:
    """Return a job with its measured utilization as the share of the device's own capacity that it needs.

    Where something else holds the device up, a job that never waits is seen to use less than all of it, and competes
    for it like one that uses all.
    """
    if scale is None or job.known_utilization_ratio is None or scale.busy_ratio <= 0:
        return job
    return dataclasses.replace(job, known_utilization_ratio=min(1.0, job.known_utilization_ratio / scale.busy_ratio))
