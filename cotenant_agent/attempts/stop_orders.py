"""How the agent asks a shim to end its attempt, and by what the watchdog chooses one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.devices.memory_watchdog import MemorySample
from cotenant_agent.records import AttemptKey, AttemptState
from cotenant_agent.storage.durable_files import read_integer, refresh_json, write_json

# What was started early has nothing to store.
_EARLY_GRACE_MS = 1
_BEFORE_STOP = (AttemptState.PREPARING, AttemptState.RUNNING, AttemptState.PAUSED)


def request_stop(attempt: Attempt, cause: str, grace_ms: int = 0, **details: object) -> None:
    """Write the order once; raises OSError."""
    if attempt.state in _BEFORE_STOP:
        grace_ms = _EARLY_GRACE_MS if attempt.is_early else grace_ms or attempt.stop_grace_ms
        order: dict[str, object] = {"cause": cause, "grace_ms": grace_ms, **details}
        write_json(attempt.directory.stop, attempt.sealed(attempt.directory.stop, order))


def note_ended_parts(attempts: Iterable[Attempt], told: Mapping[AttemptKey, int]) -> None:
    """Tell shims how many parts of their gangs have ended with success on other nodes, where that is news."""
    for attempt in attempts if told else ():
        path, parts = attempt.directory.ended_parts, told.get(attempt.key, 0)
        if parts > 0 and parts != read_integer(attempt.read(path), "parts"):
            # What the disk does not take is told again with the next heartbeat.
            refresh_json(path, attempt.sealed(path, {"parts": parts}))


def memory_sample(attempt: Attempt) -> MemorySample:
    """What the watchdog compares."""
    return MemorySample(
        key=attempt.key,
        gpu_ids=attempt.gpu_ids,
        used_bytes=attempt.usage.memory_bytes or 0,
        limit_bytes=attempt.memory_limit_bytes,
        started_ms=attempt.started_ms,
        held_bytes=attempt.memory_held_bytes,
        yields=attempt.spec.get("yields_memory") is True,
    )
