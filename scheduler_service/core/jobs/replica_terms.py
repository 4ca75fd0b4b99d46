"""What a job asks of the group of its processes: parameter servers in addition to its ranks, and ranks that keep up."""

from __future__ import annotations

from dataclasses import dataclass

STRAGGLER_WINDOW_MS = 60_000
"""For so long a rank must be slow where the job does not say."""

TRIES_SERVERS = "TRIES_SERVERS"
"""Code of the reason of a job that has its number of parameter servers only to be measured with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTerms:
    """The defaults ask for nothing.

    Attributes:
        servers: Parameter servers in the present or the next attempt.
        allowed_servers: Numbers that a policy may choose from, ascending; empty = any, as snapshots state jobs.
        straggler_ratio: Own time of a rank for a step over the median of the others' that makes it too slow; 0 = none
            is looked for.
        straggler_window_ms: For so long it must be.
    """

    servers: int = 0
    allowed_servers: tuple[int, ...] = ()
    straggler_ratio: float = 0.0
    straggler_window_ms: int = STRAGGLER_WINDOW_MS


NO_REPLICAS = ReplicaTerms()
