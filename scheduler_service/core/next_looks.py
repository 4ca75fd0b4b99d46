"""When a policy is asked again although nothing happens: where time alone may change its mind, at its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import Event, TimerFired
from scheduler_service.core.view import Policy, SchedulingView


def find_looks(
    policy: Policy, event: Event, step: EventEffects, now_ms: int, look: Callable[..., SchedulingView]
) -> Sequence[int]:
    """Return when to ask again, in ms.

    A policy without `next_look_ms` is asked at every multiple. One that has it is asked at the next multiple after
    every fact; a timer after which nothing was ordered is none.

    Args:
        policy: The policy.
        event: What has just been handled.
        step: What followed from it; the policy was asked where a decision was due.
        now_ms: This instant.
        look: Returns the cluster as it is now, `explain` being asked for or not.
    """
    interval_ms = int(getattr(policy, "interval_ms", 0))
    if not interval_ms:
        return ()
    soon_ms = (now_ms // interval_ms + 1) * interval_ms
    find = getattr(policy, "next_look_ms", None)
    if find is None:
        return (soon_ms,) if step.is_decision_due else ()
    if not isinstance(event, TimerFired) or step.commands:
        return (soon_ms,)
    at_ms = find(look(explain=False))
    return () if at_ms is None else (max(soon_ms, -(-int(at_ms) // interval_ms) * interval_ms),)
