"""What becomes of a job whose lease ended while its keeper stood still; standard library only.

Where everything was stopped (SIGSTOP, a paused container or machine) the scheduler may have counted nothing either, and
renews the lease as soon as it hears of the job. Where it went on, it may have started the job elsewhere. Nothing here
tells which. So the job is held, since what stands still is no second run, until a newer lease says that it may go on.
"""

from __future__ import annotations

from collections.abc import Callable

from cotenant_agent.keeper.deadline_watch import HELD_MS_MAX
from cotenant_agent.keeper.job_hold import JobHold
from cotenant_agent.keeper.kept_lease import KeptLease
from cotenant_agent.keeper.shim_records import Records

STANDSTILL_MS = 2_000
"""A keeper that did not look for so long stood still: it looks ten times a second."""


class StandstillHold:
    """Holds one job after a standstill of its keeper.

    Args:
        job: What is held.
        lease: Says until when it may run.
        records: The attempt's files.
        note: Is told when the job has stood still, and when it goes on after a hold.
    """

    def __init__(self, job: JobHold, lease: KeptLease, records: Records, note: Callable[[], None]) -> None:
        self._job = job
        self._lease = lease
        self._records = records
        self._note = note
        self._looked_ms = 0
        self.until_ms = 0
        """When the wait for a newer lease is over, milliseconds since boot; 0 = there is none."""

    @property
    def is_holding(self) -> bool:
        """Whether the job may not run: it waits, or is to be killed without another instant of its own."""
        return self.until_ms > 0

    def is_to_wait(self, now_ms: int) -> bool:
        """Hold the job, or let it go on; called at every look, before anything is asked of the job.

        Returns:
            Whether it waits. Otherwise it runs; or it is still held, and may be ended only.
        """
        gap_ms, self._looked_ms = now_ms - (self._looked_ms or now_ms), now_ms
        has_stood_still = gap_ms >= STANDSTILL_MS
        if not (has_stood_still or self.is_holding):
            return False
        is_to_go_on = self._lease.left_ms(now_ms) > 0
        if is_to_go_on:
            # Where the kernel refuses, the next look tries again.
            self._release()
        elif not self._holds(now_ms):
            return False
        # Not before it is held: the disk may take its time.
        if has_stood_still or (is_to_go_on and not self.is_holding):
            self._note()
        return not is_to_go_on

    def has_begun_within_look(self, now_ms: int) -> bool:
        """Whether the keeper stood still since its look began: what that has found is of before, or of after.

        Args:
            now_ms: Read after the lease was, which may be counted on another clock.
        """
        # Before the first look nothing runs that could be held.
        return self._looked_ms > 0 and now_ms - self._looked_ms >= STANDSTILL_MS

    def _holds(self, now_ms: int) -> bool:
        """Hold the job while it is to wait; whether it does. Else it may be ended."""
        self.until_ms = self.until_ms or self._wait_end_ms(now_ms)
        is_over = now_ms >= self.until_ms or self._records.read("stop.json") is not None
        if not is_over and self._job.hold(now_ms):
            return True
        if self._lease.end_left_ms(now_ms) > 0:
            # It was not started elsewhere yet: it may write its checkpoint as at the end of any other lease.
            self._release()
        return False

    def _wait_end_ms(self, now_ms: int) -> int:
        """Half of the grace, where some is left: the other half is for a checkpoint; else one whole grace."""
        left_ms = self._lease.end_left_ms(now_ms)
        return now_ms + (left_ms // 2 if left_ms > 0 else min(self._lease.grace_ms, HELD_MS_MAX))

    def _release(self) -> None:
        if self.is_holding and self._job.release():
            self.until_ms = 0
