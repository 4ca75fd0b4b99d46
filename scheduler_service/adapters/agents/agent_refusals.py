"""Requests and reports of agents that are ignored: every one is counted, the log gets one now and then."""

from __future__ import annotations

import logging
from collections import Counter
from enum import StrEnum

_log = logging.getLogger(__name__)

# Agents repeat themselves with every heartbeat; once a minute is loud enough.
QUIET_MS = 60_000
# An agent that is refused asks again within half a minute.
RECENT_MS = 120_000
# Pairs of node and kind that are remembered; beyond it the oldest may be logged again.
REMEMBERED_MAX = 1_000


class Refusal(StrEnum):
    """Why something of an agent does not count; the value is a label of a metric."""

    FOREIGN_ATTEMPT = "foreign_attempt"
    SECOND_INSTANCE = "second_instance"
    ATTEMPTS_MISSING = "attempts_missing"
    UNNAMED_INSTANCE = "unnamed_instance"
    FOREIGN_CLUSTER = "foreign_cluster"
    ENDED_SESSION = "ended_session"
    LATE_HELLO = "late_hello"


REFUSAL_TEXTS = {
    Refusal.FOREIGN_ATTEMPT: "an agent speaks of an attempt that another node holds; it does not count",
    Refusal.SECOND_INSTANCE: "two agents use one node id; the second is refused: give one of them another --node-id",
    Refusal.ATTEMPTS_MISSING: "an agent knows nothing of what its node runs; it may join when the leases are over",
    Refusal.FOREIGN_CLUSTER: "a node of another cluster wants to join; it gets no order, and nothing of it is ended",
    Refusal.ENDED_SESSION: "a report came over a stream that another one has replaced; it does not count",
    Refusal.LATE_HELLO: "a Hello was overtaken by a later one of the same agent; what it says may be over",
    Refusal.UNNAMED_INSTANCE: "an agent that does not identify its process took over an open stream; upgrade it",
}


class AgentRefusals:
    """Counts refusals by kind and warns of each kind at most once a minute and node.

    Attributes:
        counts: Refusals since the start, by kind.
    """

    def __init__(self) -> None:
        self.counts: Counter[Refusal] = Counter()
        self._newest_at_ms: dict[tuple[str, Refusal], int] = {}
        self._told_at_ms: dict[tuple[str, Refusal], int] = {}

    def recent(self, refusal: Refusal, *, now_ms: int) -> dict[str, int]:
        """Return by node how long ago it was refused for that last, in ms, if within `RECENT_MS`; longest ago first."""
        ago_ms = {node_id: now_ms - at_ms for (node_id, kind), at_ms in self._newest_at_ms.items() if kind is refusal}
        return {node_id: past_ms for node_id, past_ms in ago_ms.items() if past_ms < RECENT_MS}

    def note(self, node_id: str, refusal: Refusal, *, now_ms: int, **facts: object) -> None:
        """Count a refusal; `facts` stand in the line of the log if there is one."""
        self.counts[refusal] += 1
        self._newest_at_ms.pop((node_id, refusal), None)
        if len(self._newest_at_ms) >= REMEMBERED_MAX:
            del self._newest_at_ms[next(iter(self._newest_at_ms))]
        self._newest_at_ms[node_id, refusal] = now_ms
        told_at_ms = self._told_at_ms.get((node_id, refusal))
        if told_at_ms is not None and now_ms - told_at_ms < QUIET_MS:
            return
        self._told_at_ms.pop((node_id, refusal), None)
        if len(self._told_at_ms) >= REMEMBERED_MAX:
            del self._told_at_ms[next(iter(self._told_at_ms))]
        self._told_at_ms[node_id, refusal] = now_ms
        told = {"node_id": node_id, "refusal": refusal.value, "reason": REFUSAL_TEXTS[refusal], **facts}
        _log.warning("agent_refusal", extra=told)
