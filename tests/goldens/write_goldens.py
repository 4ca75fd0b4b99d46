"""Writes the goldens with the code as it is: `python -m tests.goldens.write_goldens FOLDER [PART ...]`.

They were written once, before the house was rebuilt, and stay as they are: they say what earlier versions have left on
disks and wires. A part is written anew only for a deliberate change, whose commit says what became of what was there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from scheduler_service.adapters.storage.event_log import AnsweredRequest, LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.recovery import JobNumbers, recover, snapshot_state
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.core.codec import encode, encode_event
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.policy_registry import POLICIES, make_policy
from tests.goldens import accuracy_tables, agent_state, predictor_state
from tests.goldens.filled_events import filled, filled_events, told_apart
from tests.goldens.filled_messages import encoded, variants_by_name
from tests.goldens.policy_orders import WORKLOADS, orders_digest
from tests.goldens.stored_story import SNAPSHOT_AFTER, RecordedPlay, told_story, truth

GOLDENS = Path(__file__).resolve().parent / "version_0_1"


def write_wire(folder: Path) -> None:
    """Bytes of every message."""
    found = {name: [encoded(one).hex() for one in variants] for name, variants in variants_by_name()}
    _write_json(folder / "wire_messages.json", found)


def write_events(folder: Path) -> None:
    """Every kind of event as JSON."""
    _write_json(folder / "events.json", [encode_event(event) for event in filled_events()])


def write_job(folder: Path) -> None:
    """A job of a snapshot of which every field is set, each to a value of its own."""
    _write_json(folder / "job_record.json", told_apart(encode(JobRecord, filled(JobRecord))))


def write_log(folder: Path) -> None:
    """The story as a scheduler's state folder, and what is true after it."""
    play = told_story()
    with tempfile.TemporaryDirectory() as workplace:
        state = Path(workplace) / "scheduler"
        log = SqliteEventLog(state)
        log.append([_record(play, place) for place in range(SNAPSHOT_AFTER)])
        half = recover(log, new_engine=_new_engine, restored_engine=_restored_engine)
        snapshot = snapshot_state(half.engine, JobNumbers(last=half.numbers.last))
        log.store_snapshot(StoredSnapshot(sequence=SNAPSHOT_AFTER, state=snapshot), retained_events=5)
        log.append([_record(play, place) for place in range(SNAPSHOT_AFTER, len(play.told))])
        recovered = recover(log, new_engine=_new_engine, restored_engine=_restored_engine)
        log.close()
        (folder / "scheduler").mkdir(parents=True)
        shutil.copy(state / DATABASE_NAME, folder / "scheduler" / DATABASE_NAME)
    found = truth(recovered.engine)
    if found != truth(play.engine):
        raise RuntimeError("replaying the story tells another one")
    _write_json(folder / "scheduler_truth.json", {**found, "last_job_number": recovered.numbers.last})


def write_agent(folder: Path) -> None:
    """An agent's folder."""
    with tempfile.TemporaryDirectory() as workplace:
        agent_state.write_state(folder / "agent", Path(workplace))


def write_predictor(folder: Path) -> None:
    """A predictor's folder."""
    with tempfile.TemporaryDirectory() as workplace:
        state = Path(workplace) / "state"
        state.mkdir()
        found = predictor_state.write_state(state)
        skipped = shutil.ignore_patterns("*-wal", "*-shm", "*.lock", ".*")
        shutil.copytree(state, folder / "predictor", ignore=skipped)
    _write_json(folder / "predictor_truth.json", found)


def write_orders(folder: Path) -> None:
    """Digests of what every policy orders."""
    found = {name: {policy: orders_digest(name, policy) for policy in POLICIES} for name in WORKLOADS}
    _write_json(folder / "policy_orders.json", found)


def write_accuracy(folder: Path) -> None:
    """Errors of what is served and evaluated; public sets take half an hour and need COTENANT_SHARED_DATA."""
    found: dict[str, Any] = {"served": {}, "served_small": {}, "evaluated_public": {}}
    for target in accuracy_tables.OWN_TARGETS:
        own = accuracy_tables.own_problem(target)
        found["served"][target] = accuracy_tables.scored_table(own, *accuracy_tables.OWN_RULE)
    for target in accuracy_tables.SMALL_TARGETS:
        small = accuracy_tables.own_problem(target, accuracy_tables.SMALL_ROWS)
        found["served_small"][target] = accuracy_tables.scored_table(small, *accuracy_tables.SMALL_RULE)
    shared = Path(os.environ["COTENANT_SHARED_DATA"])
    for case in accuracy_tables.PUBLIC:
        found["evaluated_public"][case.name] = accuracy_tables.scored_table(*case.read(shared))
    _write_json(folder / "accuracy.json", found)


PARTS = {
    "wire": write_wire,
    "events": write_events,
    "job": write_job,
    "log": write_log,
    "agent": write_agent,
    "predictor": write_predictor,
    "orders": write_orders,
    "accuracy": write_accuracy,
}


def _record(play: RecordedPlay, place: int) -> LogRecord:
    request = AnsweredRequest(request_id=f"request-{place}", body_sha256="cd" * 32, answer=f"job-{place}")
    return LogRecord(event=play.told[place], request=request if place % 3 == 0 else None)


def _new_engine() -> SchedulerEngine:
    return SchedulerEngine(make_policy=make_policy, policy="sjf_bsbf")


def _restored_engine(state: Any) -> SchedulerEngine:
    return SchedulerEngine.restore(state, make_policy=make_policy)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    for part in sys.argv[2:] or PARTS:
        PARTS[part](Path(sys.argv[1]))
