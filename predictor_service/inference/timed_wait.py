"""Estimates of a job that waits for its input for a known time, whatever it runs on.

Models know a wait as a share of a step, which is true where the step was measured: on a device that is twice as fast a
job computes half as long and waits as long as before. So the share is that of the job without a wait on the device, as
the training set counts it, and with it follows what models say of memory. The time of a step is the wait and what is
computed on the device at hand: that of the job without a wait, longer by as much as models learned of jobs that wait
(caches are cold after a wait: on the stand-in device by 7 % in the median), and shorter where a wait gives it a head
start. In that part of a step it keeps the device busy for as long as without a wait.

A loader works sample by sample: a step of another batch waits in proportion to its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from cotenant.job_settings import JobSettings
from predictor_service.features.head_start import HeadStart
from predictor_service.features.memory_states import MemoryStates
from predictor_service.inference.calibrated_estimator import busy_share
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.records import Contribution, Estimate
from predictor_service.registry.manifest import BasisRecord
from predictor_service.selection.oom_risk import MemoryEstimate
from predictor_service.selection.targets import STEP, Target

_BUSY_RATIO_MAX: Final = 1.5
"""Where a wait is most of a step, an error of a whole step is many times that of what is computed in it."""
_SHARE_DIGITS: Final = 6
"""Shares that differ by less are one job to the models, whose estimators are kept."""


class TimedWaitEstimator(JobEstimator):
    """Answers as the estimator of the job that waits for the share of a step that its wait is, at each batch.

    Args:
        settings: With a wait in milliseconds, of a step of their batch.
        on_type: The job on the device type that waits for a share of a step.
        at_share: The same on the device at hand; the share is that on the device type.
        head_start: What a wait is worth on the device at hand.
    """

    def __init__(
        self,
        settings: JobSettings,
        on_type: Callable[[float], JobEstimator],
        at_share: Callable[[float], JobEstimator],
        head_start: HeadStart,
    ) -> None:
        self._settings = settings
        self._head_start = head_start
        self._on_type = on_type
        self._without_wait_on_type = on_type(0.0)
        self._at_share = at_share
        self._without_wait = at_share(0.0)
        self._kept: dict[int, JobEstimator] = {}

    def memory(self, batch: int) -> Estimate:
        """See `JobEstimator.memory`."""
        return self._at(batch).memory(batch)

    def accumulated_memory(self, micro_batch_size: int, passes: int) -> Estimate:
        """See `JobEstimator.accumulated_memory`."""
        return self._at(micro_batch_size).accumulated_memory(micro_batch_size, passes)

    def step(self, batch: int) -> Estimate:
        """See `JobEstimator.step`."""
        return self._lengthened(self._without_wait.step(batch), batch)

    def accumulated_step(self, micro_batch_size: int, passes: int) -> Estimate:
        """See `JobEstimator.accumulated_step`."""
        busy = self._without_wait.accumulated_step(micro_batch_size, passes)
        return self._lengthened(busy, micro_batch_size, passes)

    def memory_states(self, batch: int, memory: Estimate) -> MemoryStates:
        """See `JobEstimator.memory_states`."""
        return self._at(batch).memory_states(batch, memory)

    def utilization(self, batch: int) -> Estimate:
        """See `JobEstimator.utilization`; how long the job computes is not known exactly, so neither is the share.

        A step keeps the device busy for as long as one without the wait, and is itself longer: it has one length, and
        a job that is said to compute for 22 of its 40 ms is not said to need the device for 15 of them.
        """
        busy, step = self._without_wait.utilization(batch), self._without_wait.step(batch)
        computes = self._busy_ratio(batch) * step.value / self.step(batch).value
        value, lower, upper = (min(1.0, computes * each) for each in (busy.value, busy.lower, busy.upper))
        lower, upper = _further(value, lower, step.lower / step.value), _further(value, upper, step.upper / step.value)
        return self._at(batch).utilization(batch)._replace(value=value, lower=lower, upper=upper)

    def sm_activity(self, batch: int) -> Estimate | None:
        """See `JobEstimator.sm_activity`."""
        return self._at(batch).sm_activity(batch)

    def largest_batch(self, memory_bytes: int) -> int:
        """See `JobEstimator.largest_batch`."""
        return self._at(self._settings.global_batch_size).largest_batch(memory_bytes)

    @property
    def has_memory_model(self) -> bool:
        """See `JobEstimator.has_memory_model`."""
        return self._without_wait.has_memory_model

    def oom_risk(self, batch: int, device_memory_bytes: float) -> float | None:
        """See `JobEstimator.oom_risk`."""
        return self._at(batch).oom_risk(batch, device_memory_bytes)

    def estimate_memory(self, batch: int) -> MemoryEstimate | None:
        """See `JobEstimator.estimate_memory`."""
        return self._at(batch).estimate_memory(batch)

    def novelty(self, batch: int) -> dict[str, float]:
        """See `JobEstimator.novelty`."""
        return self._at(batch).novelty(batch)

    def step_basis(self) -> BasisRecord | None:
        """See `JobEstimator.step_basis`."""
        return self._without_wait.step_basis()

    def explain(self, estimate: Estimate, target: Target, batch: int) -> Estimate:
        """See `JobEstimator.explain`; the wait is one contribution more to a step."""
        if target is not STEP:
            return self._at(batch).explain(estimate, target, batch)
        explanation = self._without_wait.explain(self._without_wait.step(batch), target, batch).explanation
        if not explanation:
            return estimate
        wait_ms = self._settings.at_batch(batch).input_wait_ms
        contribution = estimate.value - self._without_wait.step(batch).value
        wait = Contribution(feature="input_wait_ms", feature_value=wait_ms, contribution=contribution)
        return estimate._replace(explanation=(*explanation, wait))

    def _lengthened(self, busy: Estimate, batch: int, passes: int = 1) -> Estimate:
        """The time of a step from that of the job without a wait."""
        wait_ms = self._settings.at_batch(batch).input_wait_ms
        ratio = self._busy_ratio(batch) / passes
        value, lower, upper = (
            passes * (wait_ms + self._head_start.computing_ms(ratio * each, wait_ms))
            for each in (busy.value, busy.lower, busy.upper)
        )
        return busy._replace(value=value, lower=lower, upper=upper)

    def _busy_ratio(self, batch: int) -> float:
        """How many times as long the job computes as one that does not wait, by the models of the type."""
        share = self._share_on_type(batch)
        ratio = self._on_type(share).step(batch).value / self._type_step_ms(batch) - share / (1 - share)
        return min(max(ratio, 1.0), _BUSY_RATIO_MAX)

    def _share_on_type(self, batch: int) -> float:
        settings = self._settings.at_batch(batch)
        step_ms = self._type_step_ms(batch) + settings.input_wait_ms
        return round(settings.input_wait_share(step_ms), _SHARE_DIGITS)

    def _type_step_ms(self, batch: int) -> float:
        return self._without_wait_on_type.step(batch).value

    def _at(self, batch: int) -> JobEstimator:
        known = self._kept.get(batch)
        if known is None:
            known = self._kept[batch] = self._at_share(self._share_on_type(batch))
        return known


def _further(share: float, bound: float, ratio: float) -> float:
    """The bound of a busy share where, independently, the time that is computed may be a ratio of what was taken."""
    if not (0 < share < 1 and 0 < bound < 1 and ratio > 0):
        return bound
    reach = math.hypot(math.log(bound / (1 - bound) * (1 - share) / share), math.log(ratio))
    return busy_share(share, math.exp(math.copysign(reach, bound - share)))
