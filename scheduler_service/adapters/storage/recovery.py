"""From the stored facts back to the engine that handled them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity
from scheduler_service.adapters.storage.event_log import EventLog, LogRecord, StoredEvent
from scheduler_service.adapters.storage.silence_marker import SilenceMarker
from scheduler_service.adapters.storage.sqlite_faults import damaged, from_newer
from scheduler_service.core.commands import Command
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.engine_snapshot import Pace
from scheduler_service.core.errors import CodecError, InvalidTransition, PolicyError, UnsupportedVersionError
from scheduler_service.core.events import Event, IncarnationBegan, JobSubmitted
from scheduler_service.core.planning.silent_policy import note_silence
from scheduler_service.core.policy_events import PolicySilenced
from scheduler_service.errors import StateDamagedError

_log = logging.getLogger(__name__)

JOB_NUMBERS_JUMPED = 10_000
"""Job ids that a restored state leaves out: those that its parent may have given after the backup."""


@dataclass(slots=True, kw_only=True)
class JobNumbers:
    """Numbers of job ids: "job-1", "job-2" ...; never given twice, whatever the engine has forgotten."""

    last: int = 0

    def next_id(self) -> str:
        """Return the next id; an id that was not stored in the end is simply missing later."""
        self.last += 1
        return f"job-{self.last}"

    def note(self, event: Event) -> None:
        """Learn from a stored event which numbers are taken."""
        if isinstance(event, JobSubmitted):
            prefix, _, number = event.request.job_id.partition("-")
            if prefix == "job" and number.isdecimal():
                self.last = max(self.last, int(number))
        elif isinstance(event, IncarnationBegan):
            self.last = max(self.last, event.last_job_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The contents of the log: the engine, the newest event's place and instant, job numbers given.

    Attributes:
        silences: What is still to be stored: a policy did not answer upon an event while that was replayed.
    """

    engine: SchedulerEngine
    sequence: int
    last_at_ms: int
    numbers: JobNumbers
    silences: tuple[PolicySilenced, ...] = ()


def apply_event(engine: SchedulerEngine, event: Event) -> list[Command]:
    """Let the engine handle a stored event; one that it finds impossible is reported as our bug.

    What else breaks is reported too: the event is stored, and a process that fails at it once fails at every start.
    What it was to decide for the events before it is decided all the same.
    """
    try:
        return engine.handle(event)
    except (InvalidTransition, PolicyError) as error:
        _log.error("impossible_event", extra={"kind": type(event).__name__, "finding": str(error)})
    except Exception:
        _log.exception("broken_event", extra={"kind": type(event).__name__})
    return [] if event.is_followed else _decided_without(engine, event)


def _decided_without(engine: SchedulerEngine, event: Event) -> list[Command]:
    try:
        return engine.decide_put_off()
    except Exception:
        _log.exception("broken_decision", extra={"kind": type(event).__name__})
    return []


def snapshot_state(engine: SchedulerEngine, numbers: JobNumbers) -> Mapping[str, Any]:
    """Return what `recover` needs to go on from here."""
    return freeze_state(engine, numbers)()


def freeze_state(engine: SchedulerEngine, numbers: JobNumbers, pace: Pace = iter) -> Callable[[], Mapping[str, Any]]:
    """Return what returns the same of this instant, in any thread, at a pace."""
    encode, last_job_number = engine.freeze(), numbers.last
    return lambda: {"engine": encode(pace), "last_job_number": last_job_number}


def recover(
    log: EventLog,
    *,
    new_engine: Callable[[], SchedulerEngine],
    restored_engine: Callable[[Mapping[str, Any]], SchedulerEngine],
    place: str = "the log",
    marker: SilenceMarker | None = None,
) -> Recovered:
    """Restore the newest snapshot and replay what came after it; the commands were given before and are dropped.

    Args:
        log: What was stored.
        new_engine: Makes the engine of a new state.
        restored_engine: Makes one from a snapshot.
        place: How the log is called when events are missing.
        marker: Tells what the program before could not store, and is told which event is replayed next.

    Raises:
        StateDamagedError: Events are missing, or the snapshot is none.
        StateFromNewerVersionError: A newer version wrote them.
        PolicyError: The policy of the snapshot cannot be made.
    """
    snapshot = log.latest_snapshot()
    numbers = JobNumbers()
    if snapshot is None:
        engine, sequence = new_engine(), 0
    else:
        state: Mapping[str, Any] = snapshot.state
        engine, sequence = _restored(state, restored_engine, Path(place), snapshot.sequence), snapshot.sequence
        numbers.last = int(state["last_job_number"])
    last_at_ms = engine.state.now_ms
    silences, unstored = dict(log.silences_from(sequence + 1)), list[PolicySilenced]()
    marked, begin = (marker.read(), marker.begin) if marker is not None else (None, _begin_unmarked)
    if marked is not None and sequence < marked.sequence <= log.last_sequence() and marked.sequence not in silences:
        silences[marked.sequence] = marked
        unstored.append(marked)
    for stored in log.read_from(sequence + 1):
        if stored.sequence != sequence + 1:
            raise StateDamagedError(_missing(sequence + 1, place))
        begin(stored.sequence, unstored)
        unstored += _replay(engine, stored, silences.get(stored.sequence))
        numbers.note(stored.event)
        sequence, last_at_ms = stored.sequence, stored.event.at_ms
    if sequence != log.last_sequence():
        raise StateDamagedError(_missing(sequence + 1, place))
    begin(sequence + 1, unstored)
    found = Recovered(engine=engine, sequence=sequence, last_at_ms=last_at_ms, numbers=numbers)
    return replace(found, silences=tuple(unstored))


def _begin_unmarked(sequence: int, unstored: Sequence[PolicySilenced]) -> None:
    """Do nothing, where there is no marker."""


def _replay(engine: SchedulerEngine, stored: StoredEvent, silence: PolicySilenced | None) -> Sequence[PolicySilenced]:
    """Let the engine handle an event as it did then; returns where the policy does not answer and did, or may have."""
    silent_before = engine.state.silence
    engine.questions.expect(silence)
    apply_event(engine, stored.event)
    engine.questions.expect(None)
    if silence is not None:
        # It was asked something else than to decide.
        note_silence(engine.state, engine.policy, silence.words)
    elif engine.state.silence not in ("", silent_before):
        answers, words = engine.questions.answers, engine.state.silence
        return (PolicySilenced(at_ms=0, sequence=stored.sequence, answers=answers, words=words),)
    return ()


def _restored(
    state: Mapping[str, Any],
    restored_engine: Callable[[Mapping[str, Any]], SchedulerEngine],
    place: Path,
    sequence: int,
) -> SchedulerEngine:
    try:
        return restored_engine(state["engine"])
    except UnsupportedVersionError as error:
        raise from_newer(place, str(error)) from error
    except (CodecError, KeyError):
        # The error itself may quote the record.
        raise damaged(place, f"the snapshot of event {sequence} is unreadable") from None


def begin_incarnation(
    log: EventLog, recovered: Recovered, identity: ClusterIdentity, *, wall_ms: int, lost_after_ms: int
) -> Recovered:
    """Let a restored state leave out the ids and fences that its parent may have given since; once per restore.

    Args:
        log: Receives the fact.
        recovered: Its contents.
        identity: Of this start.
        wall_ms: Milliseconds since 1970.
        lost_after_ms: What its parent has started ends so long after the last renewal, at the latest.

    Raises:
        StateUnwritableError: That cannot be stored.
    """
    engine, present = recovered.engine, identity.lineage[-1]
    if engine.state.next_fence >= present.first_fence:
        return recovered
    event = IncarnationBegan(
        at_ms=recovered.last_at_ms,
        incarnation_id=present.incarnation_id,
        parent_id=identity.lineage[-2].incarnation_id if len(identity.lineage) > 1 else "",
        next_fence=present.first_fence,
        last_job_number=recovered.numbers.last + JOB_NUMBERS_JUMPED,
        settled_at_ms=max(recovered.last_at_ms, wall_ms) + lost_after_ms,
    )
    sequence = log.append([LogRecord(event=event)])
    silences = _replay(engine, StoredEvent(sequence=sequence, event=event), None)
    recovered.numbers.note(event)
    return replace(recovered, sequence=sequence, silences=(*recovered.silences, *silences))


def _missing(sequence: int, place: str) -> str:
    return (
        f"event {sequence} is missing from {place}; keep the file for analysis and restore the newest backup "
        "(python -m scheduler_service restore BACKUP --state-dir DIRECTORY --force)"
    )
