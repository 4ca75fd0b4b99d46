"""Sets the time of a state back where it was stored under a wall clock that ran ahead, and that is right again.

Times in a log never run backwards, so one start under a clock that is a year ahead would leave every later time a year
ahead. At the next start under a right clock the state is moved: what was stamped in the false future moves back by the
whole lead and keeps its order and its distances, what was stamped before the jump stays. The moved state is stored as a
snapshot; events keep the times under which they were stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from scheduler_service.adapters.storage.event_log import EventLog, StoredSnapshot
from scheduler_service.adapters.storage.recovery import Recovered, snapshot_state
from scheduler_service.core.codec import decode, encode
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.engine_snapshot import StoredState
from scheduler_service.errors import StateUnwritableError

_log = logging.getLogger(__name__)

# A smaller lead is left alone: the clock waits at the newest stored instant, as after every small correction.
LEAD_MAX_MS = 60_000
# 2026-01-01: a wall clock before it has lost its battery, and is no reason to move anything.
EARLIEST_WALL_MS = 1_767_225_600_000
_INSTANT_ENDINGS = ("_at_ms", "_since_ms", "_until_ms", "_before_ms")
_INSTANTS = frozenset({"at_ms", "since_ms", "until_ms", "now_ms"})


def heal_clock(
    log: EventLog,
    recovered: Recovered,
    *,
    wall_ms: int,
    retained_events: int,
    restored_engine: Callable[[Mapping[str, Any]], SchedulerEngine],
) -> Recovered:
    """Return what was recovered, set back where it is ahead of the wall clock.

    Args:
        log: Receives the moved state; a disk that refuses costs only that the next start moves it again.
        recovered: The contents of the log.
        wall_ms: Milliseconds since 1970 by the wall clock.
        retained_events: As of every snapshot.
        restored_engine: Makes an engine from a snapshot.
    """
    lead_ms = recovered.engine.state.now_ms - wall_ms
    if lead_ms <= LEAD_MAX_MS or wall_ms < EARLIEST_WALL_MS:
        return recovered
    engine = restored_engine(set_back(recovered.engine.snapshot(), now_ms=wall_ms))
    snapshot = StoredSnapshot(sequence=recovered.sequence, state=snapshot_state(engine, recovered.numbers))
    _log.warning("clock_set_back", extra={"lead_ms": lead_ms, "event_id": recovered.sequence})
    try:
        log.store_snapshot(snapshot, retained_events=retained_events)
    except StateUnwritableError as error:
        _log.warning("snapshot_failed", extra={"reason": error.message})
    return replace(recovered, engine=engine, last_at_ms=wall_ms)


def set_back(snapshot: Mapping[str, Any], *, now_ms: int) -> Mapping[str, Any]:
    """Return an engine's snapshot whose present is `now_ms`, which is before its own."""
    stored: StoredState = decode(StoredState, snapshot["state"])
    moved = _moved(stored, now_ms, stored.now_ms - now_ms)
    return {**snapshot, "state": encode(StoredState, moved)}


def is_instant(name: str) -> bool:
    """Say whether a field of this name holds an instant; other fields in milliseconds hold durations."""
    return name in _INSTANTS or name.endswith(_INSTANT_ENDINGS)


def _moved(value: Any, now_ms: int, lead_ms: int) -> Any:  # noqa: ANN401 - values of any field
    if is_dataclass(value) and not isinstance(value, type):
        changes = {one.name: _moved_field(one.name, getattr(value, one.name), now_ms, lead_ms) for one in fields(value)}
        return replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(_moved(item, now_ms, lead_ms) for item in value)
    if isinstance(value, Mapping):
        return {name: _moved(item, now_ms, lead_ms) for name, item in value.items()}
    return value


def _moved_field(name: str, value: Any, now_ms: int, lead_ms: int) -> Any:  # noqa: ANN401 - values of any field
    if not is_instant(name):
        return _moved(value, now_ms, lead_ms)
    if isinstance(value, tuple):
        return tuple(_moved_instant(one, now_ms, lead_ms) for one in value)
    return _moved_instant(value, now_ms, lead_ms)


def _moved_instant(at_ms: int, now_ms: int, lead_ms: int) -> int:
    return at_ms if at_ms <= now_ms else max(at_ms - lead_ms, 1)
