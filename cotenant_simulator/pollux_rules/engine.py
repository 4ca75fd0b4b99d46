"""The clock: intervals of a minute, decisions between them.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/simulator.py, class Cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cotenant_simulator.pollux_rules.errors import PolluxRulesError
from cotenant_simulator.pollux_rules.training_job import Allocation, TrainingJob

INTERVAL_S = 60
_RUN_MAX_S = 10 * 365 * 86_400
"""No workload of this family needs ten years after its last job came; a run that does would never end."""


class RoundPolicy(Protocol):
    """Decides once per interval."""

    def allocate(self, active: Sequence[TrainingJob], now_s: int) -> Mapping[str, Allocation]:
        """Return what every active job gets, by id; absent = nothing.

        Args:
            active: Submitted and unfinished, in the order of arrival.
            now_s: The clock.
        """


def run_rounds(jobs: Sequence[TrainingJob], policy: RoundPolicy) -> int:
    """Run until all jobs are finished.

    Args:
        jobs: In the order of arrival; they are moved on.
        policy: The policy that decides.

    Returns:
        The rounds with a decision.

    Raises:
        PolluxRulesError: Ten years were not enough.
    """
    waiting = sorted(jobs, key=lambda job: job.submit_s, reverse=True)
    active: list[TrainingJob] = []
    now_s, rounds = 0, 0
    end_s = _RUN_MAX_S + max((job.submit_s for job in jobs), default=0)
    while waiting or active:
        if not active:  # nothing happens until the next job is seen
            now_s = max(now_s, _last_tick_before(waiting[-1].submit_s))
        for job in active:
            job.advance(now_s, INTERVAL_S)
        now_s += INTERVAL_S
        active = [job for job in active if job.finished_s is None]
        if waiting and waiting[-1].submit_s <= now_s:
            while waiting and waiting[-1].submit_s <= now_s:
                active.append(waiting.pop())
            active.sort(key=lambda job: job.order)
        if active:
            rounds += 1
            allocations = policy.allocate(active, now_s)
            for job in active:
                job.reallocate(allocations.get(job.job_id, ()), now_s)
        if now_s > end_s:
            raise PolluxRulesError(f"{len(active)} jobs, the first {active[0].job_id}, do not end within ten years")
    return rounds


def _last_tick_before(submit_s: int) -> int:
    """Return the last whole interval before the tick at which a job is seen."""
    return -(-submit_s // INTERVAL_S) * INTERVAL_S - INTERVAL_S
