"""What the engine remembers of an attempt that is prepared beside another one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The next attempt of a job that is being moved, started early beside the present one.

    Attributes:
        until_ms: When the present attempt is stopped at the latest, whether the next one is prepared or not.
        is_handing_over: The present attempt was told to stop.
    """

    attempt: int
    fence: int
    until_ms: int
    is_handing_over: bool = False
