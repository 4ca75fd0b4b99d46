"""Until when an attempt may run without a renewal, and by which clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.storage.durable_files import read_integer
from cotenant_agent.system_clock import awake_ms, boot_ms


class Moment(NamedTuple):
    """One instant by the clock that counts while the machine sleeps, and by the one that does not."""

    boot_ms: int
    awake_ms: int

    @classmethod
    def now(cls) -> Moment:
        """Returns an instant that is over when this returns, by both clocks."""
        return cls(boot_ms=boot_ms(), awake_ms=awake_ms())


@dataclass(frozen=True, slots=True)
class Lease:
    """What the shim is told.

    Attributes:
        deadline_boot_ms: The end by the boot clock.
        grace_ms: How long an attempt may take to end after it.
        deadline_awake_ms: The end where the scheduler counts by the same clock, which stands still with both while
            their machine sleeps; 0 = it does not, and the boot clock counts.
    """

    deadline_boot_ms: int
    grace_ms: int
    deadline_awake_ms: int = 0

    @classmethod
    def since(cls, renewed: Moment, rules: messages.Welcome) -> Lease:
        """Returns the lease that a renewal of this instant gives."""
        deadline_awake_ms = renewed.awake_ms + rules.lease_ms if rules.same_boot else 0
        return cls(renewed.boot_ms + rules.lease_ms, rules.grace_ms, deadline_awake_ms)

    def prolongs(self, stored: Mapping[str, object] | None) -> bool:
        """Whether it lasts longer than the stored one: a lease is never shortened."""
        return read_integer(stored, "deadline_boot_ms") < self.deadline_boot_ms

    def record(self, incarnation_id: str) -> dict[str, object]:
        """Returns what is stored; a shim that knows the boot clock only ends its job no later."""
        awake = {"deadline_awake_ms": self.deadline_awake_ms} if self.deadline_awake_ms else {}
        times: dict[str, object] = {"deadline_boot_ms": self.deadline_boot_ms, "grace_ms": self.grace_ms}
        return {**times, **awake, "incarnation_id": incarnation_id}
