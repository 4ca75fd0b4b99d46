"""What handling one event has led to so far: commands, and whether decisions may have changed."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_service.core.commands import Command
from scheduler_service.core.jobs.job_records import JobRecord


class EventEffects:
    """Collected while an event is applied; one per event.

    Attributes:
        commands: In the order in which they shall be carried out.
        is_decision_due: Something changed that a policy may answer differently.
        wakes_at_ms: Instants at which the engine is to be woken.
        backoffs: Jobs that must wait, as (until, job id).
        left: Jobs that have ended or wait again; others may have waited for that.
        look_ms: When time alone may change the policy's answer, which stands until now; inf = never, None = unknown.
    """

    __slots__ = ("backoffs", "commands", "is_decision_due", "left", "look_ms", "wakes_at_ms")

    def __init__(self, look_ms: float | None = None) -> None:
        self.commands: list[Command] = []
        self.is_decision_due = False
        self.wakes_at_ms: list[int] = []
        self.backoffs: list[tuple[int, str]] = []
        self.left: list[JobRecord] = []
        self.look_ms = look_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOff:
    """What facts that others follow have left to the last one; `None` in its place = nothing was put off.

    Attributes:
        is_decision_due: One of them changed something that a policy may answer differently.
        is_heeded: One of them was no report, or one that the policy heeds.
        is_changed: One of them changed what is predicted.
        is_news: One of them did so by more than a hundredth.
        are_timers: All of them were timers upon which nothing was ordered.
    """

    is_decision_due: bool = False
    is_heeded: bool = False
    is_changed: bool = False
    is_news: bool = False
    are_timers: bool = True
