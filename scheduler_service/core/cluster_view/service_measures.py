"""Where running jobs stand by the service that they have had, one by one and as one number on each GPU, kept.

What is noted of a job changes with a fact about it, when it leaves a level of service, and when it has run long enough
to be stopped: three instants in a life. All else that is asked of running jobs in every round follows from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from math import ceil, inf
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays
from scheduler_service.core.cluster_view.remaining_time_queue import Turn
from scheduler_service.core.cluster_view.remaining_times import ServiceLine, service_line
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.state import ClusterState

LEVEL_MS: Final = 2.0**44
"""More than any time of submission: a level and a submission are one number, exact for hundreds of levels."""

DUES_PER_JOB_MAX: Final = 8
"""Of the instants at which something was to change and that facts have overtaken, no more are kept."""


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

    def earned_ms(self, migration_cost_ms: float) -> float:
        """Return how long a job has to run before it may be stopped."""
        return max(self.run_min_ms, self.run_per_cost_ratio * migration_cost_ms)


class _Noted(NamedTuple):
    """What is known of one job until an instant.

    Attributes:
        line: What all follows from.
        positions: The GPUs that it has for itself.
        turn: Where it stands among all jobs.
        number: On those GPUs.
        due_ms: When the turn or the number changes without a fact; inf = never.
        first_ms: When the number changes first.
        to: What it is then.
        later_ms: When it may change again.
    """

    line: ServiceLine
    positions: Sequence[int]
    turn: Turn
    number: float
    due_ms: float
    first_ms: float
    to: float
    later_ms: float


class KeptServiceMeasures:
    """Places and numbers of one state's running jobs by the rules of one policy.

    Args:
        rules: Theirs.
        state: The jobs.
        arrays: How many jobs are on each GPU, kept up to date by the owner.

    Attributes:
        touched: Jobs that events have touched since the last `advance`, and most that run no more; the owner adds them.
        least: By position, and one more that stands for a GPU that is not there (-inf): level and submission of the one
            job there; -inf while it is protected; inf where no job is, or several are, or one leaves.
        in_order: The same ascending.
    """

    def __init__(self, rules: ServiceRules, state: ClusterState, arrays: GpuArrays) -> None:
        self._rules, self._state, self._arrays = rules, state, arrays
        self.least: NDArray[np.float64] = np.full(len(arrays.gpu_ids) + 1, inf)
        self.least[-1] = -inf
        self.in_order = sorted(self.least.tolist())
        self.touched = set(state.running)
        self._noted: dict[str, _Noted] = {}
        self._turns: list[Turn] = []
        self._dues: list[tuple[float, str]] = []

    def is_of(self, rules: ServiceRules, arrays: GpuArrays) -> bool:
        """Return whether these are the numbers that follow from this."""
        return self._arrays is arrays and self._rules == rules

    def advance(self, now_ms: int) -> None:
        """Bring all up to an instant, which is no earlier than the one before."""
        if self._dues and self._dues[0][0] <= now_ms:
            due = bisect_right(self._dues, now_ms, key=itemgetter(0))
            passed = self._dues[:due]
            del self._dues[:due]
            for at_ms, job_id in passed:
                noted = self._noted.get(job_id)
                if noted is not None and noted.due_ms == at_ms:
                    self._put(self._find(noted.line, noted.positions, job_id, now_ms))
        if self.touched:
            self._note_touched(now_ms)

    def jobs_before(self, turn: Turn) -> int:
        """Return how many running jobs come before a place in the order."""
        return bisect_left(self._turns, turn)

    def turn_of(self, job_id: str) -> Turn:
        """Return where a running job stands."""
        return self._noted[job_id].turn

    def is_protected(self, job_id: str, now_ms: int) -> bool:
        """Return whether a running job has not yet run long enough to be stopped."""
        *_, started_at_ms, migration_cost_ms = self._noted[job_id].line
        return now_ms - started_at_ms < self._rules.earned_ms(migration_cost_ms)

    def next_change_ms(self, measure_min: float) -> float:
        """Return before when no number becomes as large as this that was smaller; inf = none does without a fact."""
        next_ms = inf
        for at_ms, job_id in self._dues:
            if at_ms >= next_ms:
                break
            noted = self._noted.get(job_id)
            if noted is not None and noted.due_ms == at_ms:
                # What a number that stays smaller changes to after that is not looked at: it may be larger.
                next_ms = min(next_ms, noted.first_ms if noted.to >= measure_min else noted.later_ms)
        return next_ms

    def _note_touched(self, now_ms: int) -> None:
        """Note what has changed of jobs; first who leaves GPUs, since others may have them already."""
        jobs, known, stay = self._state.jobs, self._noted, list[tuple[ServiceLine, Sequence[int], str]]()
        for job_id in self.touched:
            job, before = jobs.get(job_id), known.get(job_id)
            if job is None or not job.holds_gpus:
                if before is not None:
                    self._take_out(before)
                continue
            line, positions = service_line(job), self._positions_alone(job)
            if before is not None and before.positions != positions:
                self._take_out(before)
            elif before is not None and before.line == line:  # as most facts about a job
                continue
            stay.append((line, positions, job_id))
        self.touched.clear()
        joining = sum(job_id not in known for *_, job_id in stay)
        if len(known) + joining > len(self._state.running):  # so many have left that not all were named
            for job_id in known.keys() - self._state.running.keys():
                self._take_out(known[job_id])
        for line, positions, job_id in stay:
            self._put(self._find(line, positions, job_id, now_ms))

    def _positions_alone(self, job: JobRecord) -> Sequence[int]:
        position_of, jobs_on = self._arrays.position_of, self._arrays.jobs_on
        there = [position_of.get(part.gpu_id, -1) for part in job.assignments]
        return [position for position in there if position >= 0 and jobs_on.item(position) == 1]

    def _put(self, noted: _Noted) -> None:
        """Note a job that is new, or on the GPUs on which it was."""
        job_id = noted.turn[2]
        before = self._noted.get(job_id)
        self._noted[job_id] = noted
        self._renumber(noted.positions, inf if before is None else before.number, noted.number)
        if before is None or before.turn != noted.turn:
            if before is not None:
                del self._turns[bisect_left(self._turns, before.turn)]
            insort(self._turns, noted.turn)
        if noted.due_ms < inf and (before is None or before.due_ms != noted.due_ms):
            self._note_due(noted.due_ms, job_id)

    def _take_out(self, noted: _Noted) -> None:
        self._renumber(noted.positions, noted.number, inf)
        del self._turns[bisect_left(self._turns, noted.turn)]
        del self._noted[noted.turn[2]]

    def _renumber(self, positions: Sequence[int], before: float, number: float) -> None:
        if before == number or not positions:
            return
        in_order, count = self.in_order, len(positions)
        place = bisect_left(in_order, before)
        del in_order[place : place + count]
        place = bisect_left(in_order, number)
        in_order[place:place] = [number] * count
        for position in positions:
            self.least[position] = number

    def _note_due(self, due_ms: float, job_id: str) -> None:
        insort(self._dues, (due_ms, job_id))
        if len(self._dues) > DUES_PER_JOB_MAX * len(self._noted):
            self._dues = sorted((one.due_ms, one.turn[2]) for one in self._noted.values() if one.due_ms < inf)

    def _find(self, line: ServiceLine, positions: Sequence[int], job_id: str, now_ms: int) -> _Noted:
        """Return what is to be noted of a job."""
        _, _, submitted_at_ms, started_at_ms, migration_cost_ms = line
        level, leaves_ms = self._level_at(line, now_ms)
        turn, number = (level, submitted_at_ms, job_id), level * LEVEL_MS + submitted_at_ms
        if not positions:
            return _Noted(line, positions, turn, inf, leaves_ms, inf, inf, inf)
        first_ms, earned_ms = leaves_ms, self._rules.earned_ms(migration_cost_ms)
        if now_ms - started_at_ms < earned_ms:
            number, first_ms = -inf, float(max(ceil(started_at_ms + earned_ms), now_ms + 1))
        if first_ms == inf:
            return _Noted(line, positions, turn, number, inf, inf, inf, inf)
        next_level, later_ms = self._level_at(line, first_ms)
        to = next_level * LEVEL_MS + submitted_at_ms
        return _Noted(line, positions, turn, number, min(first_ms, leaves_ms), first_ms, to, later_ms)

    def _level_at(self, line: ServiceLine, at_ms: float) -> tuple[int, float]:
        """Return a job's level at an instant, and when it leaves it."""
        had_at_0_gpu_ms, gpus, *_ = line
        limits = self._rules.limits_gpu_ms
        # Before the newest report it had less: the instant may be one since which a policy was not asked.
        level = bisect_right(limits, had_at_0_gpu_ms + at_ms * gpus)
        if level == len(limits) or not gpus:
            return level, inf
        return level, float(max(ceil((limits[level] - had_at_0_gpu_ms) / gpus), at_ms + 1))
