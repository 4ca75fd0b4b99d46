"""How the agent asks a shim to end its attempt, and by what the watchdog chooses one."""

from __future__ import annotations

from cotenant_agent.attempt import Attempt, AttemptState
from cotenant_agent.durable_files import write_json
from cotenant_agent.memory_watchdog import MemorySample

# What was started early has nothing to store.
_EARLY_GRACE_MS = 1
_BEFORE_STOP = (AttemptState.PREPARING, AttemptState.RUNNING, AttemptState.PAUSED)


def request_stop(attempt: Attempt, cause: str, grace_ms: int = 0, **details: object) -> None:
    """Write the order once; raises OSError."""
    if attempt.state in _BEFORE_STOP:
        grace_ms = _EARLY_GRACE_MS if attempt.is_early else grace_ms or attempt.stop_grace_ms
        order: dict[str, object] = {"cause": cause, "grace_ms": grace_ms, **details}
        write_json(attempt.directory.stop, attempt.sealed(attempt.directory.stop, order))


def memory_sample(attempt: Attempt) -> MemorySample:
    """What the watchdog compares."""
    return MemorySample(
        key=attempt.key,
        gpu_ids=attempt.gpu_ids,
        used_bytes=attempt.usage.memory_bytes or 0,
        limit_bytes=attempt.memory_limit_bytes,
        started_ms=attempt.started_ms,
        held_bytes=attempt.memory_held_bytes,
    )
