"""Where the one job on each GPU stands by the service that it has had, as one number, kept from event to event.

A number changes with a fact about its GPU, when its job leaves a level of service, and when the job has run long enough
to be stopped: three instants in a life. All else that is asked of running jobs in every round follows from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from math import ceil, inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays
from scheduler_service.core.cluster_view.remaining_times import JobService, KeptRemainingTimes

LEVEL_MS: Final = 2.0**44
"""More than any time of submission: a level and a submission are one number, exact for hundreds of levels."""


DUES_PER_GPU_MAX: Final = 8
"""Of the instants at which a number was to change and that facts have overtaken, no more are kept."""
_Noted = tuple[float, float, float, float]
"""A number, when it changes first, to what, and when it may change again."""
_NOTHING: Final[_Noted] = (inf, inf, inf, inf)


class ServiceRules(NamedTuple):
    """What a job's number follows from.

    Attributes:
        limits_gpu_ms: GPU time at which a job leaves each level but the last, ascending.
        run_min_ms: A job that has run shorter is protected.
        run_per_cost_ratio: So is one that has run shorter than this, times its migration cost.
    """

    limits_gpu_ms: tuple[float, ...]
    run_min_ms: float
    run_per_cost_ratio: float


class KeptServiceMeasures:
    """The numbers of one state's running jobs by the rules of one policy.

    Args:
        rules: Theirs.
        times: What is known of the one job on each GPU, kept up to date by the owner.
        arrays: How many jobs are on each, kept likewise.

    Attributes:
        least: By position, and one more that stands for a GPU that is not there (-inf): level and submission of the one
            job there; -inf while it is protected; inf where no job is, or several are, or one leaves.
        in_order: The same ascending.
        shared: The positions with several jobs.
    """

    def __init__(self, rules: ServiceRules, times: KeptRemainingTimes, arrays: GpuArrays) -> None:
        self._rules, self._times, self._arrays = rules, times, arrays
        count = len(arrays.gpu_ids)
        self.least: NDArray[np.float64] = np.full(count + 1, inf)
        self.least[-1] = -inf
        self.in_order = sorted(self.least.tolist())
        self.shared: set[int] = set()
        # When the number changes first, to what, and when it may change again.
        self._firsts_ms, self._to, self._laters_ms = np.full((3, count), inf)
        self._noted: list[_Noted] = [_NOTHING] * count
        self._dues: list[tuple[float, int]] = []
        times.changed.update(range(count))

    def is_of(self, rules: ServiceRules, times: KeptRemainingTimes, arrays: GpuArrays) -> bool:
        """Return whether these are the numbers that follow from this."""
        return self._times is times and self._arrays is arrays and self._rules == rules

    def advance(self, now_ms: int) -> None:
        """Bring all numbers up to an instant, which is no earlier than the one before."""
        changed = self._times.changed | self._arrays.changed
        self._times.changed.clear()
        self._arrays.changed.clear()
        due = bisect_right(self._dues, (now_ms, inf))
        for at_ms, position in self._dues[:due]:
            if self._noted[position][1] == at_ms:
                changed.add(position)
        del self._dues[:due]
        if changed:
            self._find_anew(changed, now_ms)

    def next_change_ms(self, measure_min: float) -> float:
        """Return before when no number becomes as large as this that was smaller; inf = none does without a fact."""
        # What a number that stays smaller changes to after that is not looked at: it may be larger.
        return float(np.where(self._to >= measure_min, self._firsts_ms, self._laters_ms).min(initial=inf))

    def _find_anew(self, positions: Iterable[int], now_ms: int) -> None:
        jobs_on, job_of, noted = self._arrays.jobs_on, self._times.job_of, self._noted
        found: dict[int, _Noted] = {}
        for position in positions:
            count = jobs_on.item(position)
            (self.shared.add if count > 1 else self.shared.discard)(position)
            number = _NOTHING
            if count == 1:
                job = job_of.item(position)
                if job not in found:  # the GPUs of a wide job have the same number
                    found[job] = self._find(position, now_ms)
                number = found[job]
            if number != noted[position]:  # most facts about a job say nothing else of it
                self._set(position, number)

    def _set(self, position: int, number: _Noted) -> None:
        before, self._noted[position] = self._noted[position], number
        if number[0] != before[0]:
            del self.in_order[bisect_left(self.in_order, before[0])]
            insort(self.in_order, number[0])
            self.least[position] = number[0]
        _, self._firsts_ms[position], self._to[position], self._laters_ms[position] = number
        if number[1] < inf and number[1] != before[1]:
            insort(self._dues, (number[1], position))
            if len(self._dues) > DUES_PER_GPU_MAX * len(self._noted):
                self._dues = sorted((one[1], place) for place, one in enumerate(self._noted) if one[1] < inf)

    def _find(self, position: int, now_ms: int) -> _Noted:
        """Return what is to be noted of the one job on a GPU."""
        service = self._times.service_of(position)
        earned_ms = max(self._rules.run_min_ms, self._rules.run_per_cost_ratio * service.migration_cost_ms)
        if now_ms - service.started_at_ms < earned_ms:
            first_ms = float(max(ceil(service.started_at_ms + earned_ms), now_ms + 1))
            measure, later_ms = self._level_at(service, first_ms)
            return -inf, first_ms, measure, later_ms
        measure, first_ms = self._level_at(service, now_ms)
        if first_ms == inf:
            return measure, inf, inf, inf
        return measure, first_ms, *self._level_at(service, first_ms)

    def _level_at(self, service: JobService, at_ms: float) -> tuple[float, float]:
        """Return a job's number at an instant, as if it were not protected, and when it leaves its level."""
        limits = self._rules.limits_gpu_ms
        # Before the newest report it had less: the instant may be one since which a policy was not asked.
        level = bisect_right(limits, service.attained_gpu_ms + (at_ms - service.accrued_at_ms) * service.gpus)
        measure = level * LEVEL_MS + service.submitted_at_ms
        if level == len(limits) or not service.gpus:
            return measure, inf
        leaves_ms = service.accrued_at_ms + (limits[level] - service.attained_gpu_ms) / service.gpus
        return measure, float(max(ceil(leaves_ms), at_ms + 1))
