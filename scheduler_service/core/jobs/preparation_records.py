"""What the engine remembers of an attempt that is prepared while another one runs, on one node or on several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The next attempt of a job that is being moved, started early next to the present one.

    Attributes:
        until_ms: When the present attempt is stopped at the latest, whether the next one is prepared or not.
        is_handing_over: The present attempt was told to stop.
        node_id: Where it is, or its first part; empty = on the node of the present attempt, as before other nodes were
            possible.
        other_node_ids: Where its other parts are.
        prepared_node_ids: Parts that wait for their launch and nothing else.
    """

    attempt: int
    fence: int
    until_ms: int
    is_handing_over: bool = False
    node_id: str = ""
    other_node_ids: tuple[str, ...] = ()
    prepared_node_ids: tuple[str, ...] = ()

    def nodes(self, present: tuple[str, ...]) -> tuple[str, ...]:
        """Return where it is, beside an attempt on these nodes."""
        return (self.node_id, *self.other_node_ids) if self.node_id else present
