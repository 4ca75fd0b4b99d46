"""What came of a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What came of a seed.

    Attributes:
        trace_sha256: Of everything that happened, in order.
        events: How many lines that is.
        facts: How many facts schedulers handled.
        struck: How often each kind of fault occurred.
        fetched: How many attempts resumed a checkpoint that was written on another machine and fetched.
        gangs_prepared: How many attempts of gangs across nodes had been started early.
        lent_pauses: How often a job was paused so that another one was measured.
        outlived: How many processes of jobs went on after a standstill beyond their leases and grace.
    """

    seed: int
    trace_sha256: str
    violations: tuple[str, ...]
    events: int
    facts: int
    jobs: int
    nodes: int
    simulated_s: float
    kinds: tuple[str, ...]
    struck: Counter[str] = field(default_factory=Counter)
    fetched: int = 0
    gangs_prepared: int = 0
    lent_pauses: int = 0
    outlived: int = 0
