"""What a log line says about a handled event or a command that was carried out: which level, about whom."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event

_IDENTITY_FIELDS = ("job_id", "attempt", "node_id", "gpu_id", "key", "device", "policy", "code", "exit_class", "cause")
# Frequent and without consequence: only wanted for debugging.
_FREQUENT = frozenset({"JobProgressed", "TimerFired"})


def level_of(event: Event) -> int:
    """Return the level of an event's line."""
    return logging.DEBUG if type(event).__name__ in _FREQUENT else logging.INFO


def identity_of(subject: Event | Command) -> Mapping[str, object]:
    """Pick the ids of what it is about; never a command line, which may hold secrets."""
    found = {name: getattr(subject, name) for name in _IDENTITY_FIELDS if hasattr(subject, name)}
    for holder, name in (("request", "job_id"), ("node", "node_id"), ("prediction", "key")):
        if hasattr(subject, holder):
            found[name] = getattr(getattr(subject, holder), name)
    return found
