"""The lease of an attempt as its keeper knows it; like the shim it needs the standard library only."""

from __future__ import annotations

from cotenant_agent.keeper.deadline_watch import Deadline, tell_deadline
from cotenant_agent.keeper.shim_records import Records, read_number


class KeptLease:
    """The newest lease that was ever read: one that is gone, or older, changes nothing.

    Args:
        records: The attempt's files.

    Attributes:
        grace_ms: How long an end may take after it.
        lifeline: A pipe that every newer deadline is written to as well; negative = none.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._deadline = Deadline()
        self.grace_ms = 0
        self.lifeline = -1

    def left_ms(self, now_ms: int) -> int:
        """Read it anew; how long it lasts from this instant of the boot clock, 0 or less = it is over."""
        lease = self._records.read("lease.json") or {}
        deadline = Deadline(read_number(lease, "deadline_boot_ms"), read_number(lease, "deadline_awake_ms"))
        if deadline.boot_ms > self._deadline.boot_ms:
            self._deadline, self.grace_ms = deadline, read_number(lease, "grace_ms")
            if self.lifeline >= 0:
                tell_deadline(self.lifeline, deadline.put_off(self.grace_ms))
        return self._deadline.left_ms(now_ms)

    def end_left_ms(self, now_ms: int) -> int:
        """Read it anew; how long until its grace is over too: others count on the end by then."""
        return self.left_ms(now_ms) + self.grace_ms
