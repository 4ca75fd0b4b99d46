"""What the engine remembers of an attempt that is prepared beside another one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The next attempt of a job that is being moved, started early beside the present one.

    Attributes:
        until_ms: When the present attempt is stopped at the latest, whether the next one is prepared or not.
        is_handing_over: The present attempt was told to stop.
        node_id: Where it is; empty = on the node of the present attempt, as before other nodes were possible.
    """

    attempt: int
    fence: int
    until_ms: int
    is_handing_over: bool = False
    node_id: str = ""

    def nodes(self, present: tuple[str, ...]) -> tuple[str, ...]:
        """Return where it is, beside an attempt on these nodes."""
        return (self.node_id,) if self.node_id else present
