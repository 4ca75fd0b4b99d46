"""Which attempts the agent lets stand still, and for how long."""

from __future__ import annotations

from cotenant_agent.attempt import Attempt
from cotenant_agent.job_pausing import PAUSED_MS_MAX


def pause_obstacle(attempt: Attempt, paused_ms_max: int) -> str:
    """Why an attempt cannot be paused; empty = it can.

    All its processes stand still together, those of several devices and the ranks of a gang as well: its keeper holds
    one tree, and a collective of the frameworks waits for minutes.
    """
    if not 1 <= paused_ms_max <= PAUSED_MS_MAX:
        return f"a pause lasts 1 to {PAUSED_MS_MAX} ms, not {paused_ms_max}"
    if attempt.is_part:
        return "its ranks are on several nodes, which would stand still and go on at different instants"
    if not attempt.can_pause:
        return "an older agent started it, whose shim cannot pause; it can from its next attempt on"
    return "MPS serves its device, and a client that stands still may hold up the others" if attempt.uses_mps else ""


def longest_pause_ms(attempt: Attempt, paused_ms_max: int) -> int:
    """How long a pause may last: no rank may give up waiting for another one that woke up a little later."""
    half_ms = attempt.collective_timeout_ms // 2 - 1
    return min(paused_ms_max, max(half_ms, 1)) if attempt.collective_timeout_ms > 0 else paused_ms_max
