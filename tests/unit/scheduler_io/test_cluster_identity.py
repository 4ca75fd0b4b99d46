"""What a state knows of its own past, and that it notices when a node saw more of it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.v1.node_agent_pb2 import AttemptKey, LogPosition
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Generation, Incarnation
from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.log_head import head_path
from scheduler_service.adapters.storage.recovery import JOB_NUMBERS_JUMPED, Recovered, begin_incarnation, recover
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.state_backup import back_up, restore
from scheduler_service.adapters.storage.stored_identity import FENCES_JUMPED
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import JobSubmitted
from scheduler_service.core.records import JobRequest
from tests.goldens.write_goldens import GOLDENS
from tests.support.live_loop import make_engine, make_policy


def recovered(log: SqliteEventLog) -> Recovered:
    return recover(
        log,
        new_engine=make_engine,
        restored_engine=lambda state: SchedulerEngine.restore(state, make_policy=make_policy),
    )


def start(state_dir: Path, *, jobs: int = 0) -> ClusterIdentity:
    """Start a scheduler on a state, let it take jobs, and kill it."""
    with closing(SqliteEventLog(state_dir)) as log:
        found = recovered(log)
        identity = log.identity.begin_generation(next_fence=found.engine.state.next_fence, sequence=found.sequence)
        found = begin_incarnation(log, found, identity, wall_ms=0, lost_after_ms=60_000)
        for _ in range(jobs):
            request = JobRequest(job_id=found.numbers.next_id())
            log.append([LogRecord(event=JobSubmitted(at_ms=1, request=request))])
        return identity


def copy_of(state_dir: Path, name: str) -> Path:
    """A copy that is no restore: the files themselves, as a machine that was set back has them."""
    target = state_dir.parent / name
    shutil.copytree(state_dir, target)
    return target


def position(identity: ClusterIdentity, sequence: int) -> LogPosition:
    found = identity.position(sequence)
    assert found is not None
    return found


def test_every_start_is_counted_under_one_incarnation(tmp_path: Path) -> None:
    starts = [start(tmp_path, jobs=2) for _ in range(3)]
    assert len({one.incarnation_id for one in starts}) == 1
    assert [(one.generation, one.first_sequence) for one in starts[-1].generations] == [(1, 0), (2, 2), (3, 4)]
    assert len({one.start_id for one in starts[-1].generations}) == 3


def test_two_empty_states_are_two_clusters(tmp_path: Path) -> None:
    assert start(tmp_path / "a").incarnation_id != start(tmp_path / "b").incarnation_id


def test_what_was_said_before_is_in_the_history_after_every_restart(tmp_path: Path) -> None:
    said = [position(start(tmp_path, jobs=2), 2 * number) for number in (1, 2, 3)]
    last = start(tmp_path)
    assert [last.contradiction(one, sequence=6) for one in said] == ["", "", ""]
    assert all(last.is_sealed(one) for one in said)


def test_a_copy_that_was_set_back_finds_what_it_does_not_know(tmp_path: Path) -> None:
    start(tmp_path / "state", jobs=2)
    old = copy_of(tmp_path / "state", "old")
    seen = position(start(tmp_path / "state", jobs=5), 7)
    set_back = start(old)
    assert "another copy" in set_back.contradiction(seen, sequence=2)
    assert "another copy" in start(old, jobs=50).contradiction(seen, sequence=52)


def test_lost_events_of_the_present_start_are_found_although_new_ones_were_stored_since(tmp_path: Path) -> None:
    """A lost write-ahead log, and with it the note of the head: the state knows the start, not what it stored last."""
    seen = position(start(tmp_path, jobs=5), 5)
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as connection, connection:
        connection.execute("DELETE FROM events WHERE sequence > 3")
        connection.execute("UPDATE counters SET value = 3 WHERE name = 'last_sequence'")
    head_path(tmp_path / DATABASE_NAME).unlink()
    behind = start(tmp_path, jobs=20)
    assert "a node saw event 5" in behind.contradiction(seen, sequence=23)


def test_a_copy_and_its_original_that_were_both_started_contradict_each_other(tmp_path: Path) -> None:
    start(tmp_path / "state")
    second = copy_of(tmp_path / "state", "second")
    one, other = start(tmp_path / "state", jobs=1), start(second, jobs=1)
    assert one.generations[-1].generation == other.generations[-1].generation == 2
    assert other.contradiction(position(one, 1), sequence=1)
    assert one.contradiction(position(other, 1), sequence=1)


def test_a_later_start_is_not_invented_by_a_node(tmp_path: Path) -> None:
    identity = start(tmp_path)
    said = position(identity, 0)
    assert identity.is_sealed(said)
    for name, value in (("generation", 99), ("sequence", 1), ("start_id", "other"), ("seal", b"")):
        forged = LogPosition()
        forged.CopyFrom(said)
        setattr(forged, name, value)
        assert not identity.is_sealed(forged)


def test_a_restored_state_is_a_new_incarnation_that_names_its_parent(tmp_path: Path) -> None:
    parent = start(tmp_path / "state", jobs=3)
    back_up(tmp_path / "state", tmp_path / "backup")
    replaced = start(tmp_path / "other", jobs=1)
    restore(tmp_path / "backup", tmp_path / "other", force=True)
    with closing(SqliteEventLog(tmp_path / "other")) as log:
        log.identity.begin_generation(next_fence=1, sequence=3)
        waited = [log.identity.awaits_confirmation]
        log.identity.confirm()
        assert [*waited, log.identity.awaits_confirmation] == [True, False]
    child = start(tmp_path / "other")
    assert child.incarnation_id not in (parent.incarnation_id, replaced.incarnation_id)
    # The marker names a state only once it has taken jobs.
    assert child.ancestor_ids == {parent.incarnation_id, replaced.incarnation_id}
    assert child.generations[-1].generation == 2


def test_nodes_of_a_restored_state_may_join_whatever_is_restored_in_its_place_later(tmp_path: Path) -> None:
    """Swarm seed 41112: after three restores of one backup the nodes of the first were refused for good."""
    own = start(tmp_path / "state", jobs=3)
    back_up(tmp_path / "state", tmp_path / "backup")
    restored = []
    for _ in range(3):
        restore(tmp_path / "backup", tmp_path / "state", force=True)
        restored.append(start(tmp_path / "state"))
    assert restored[-1].ancestor_ids == {own.incarnation_id, *(one.incarnation_id for one in restored[:-1])}


@pytest.mark.parametrize("content", [b"", b"no database"])
def test_a_state_that_cannot_be_read_is_replaced_all_the_same(tmp_path: Path, content: bytes) -> None:
    own = start(tmp_path / "state", jobs=3)
    back_up(tmp_path / "state", tmp_path / "backup")
    for path in (tmp_path / "state").glob(f"{DATABASE_NAME}*"):
        path.unlink()
    (tmp_path / "state" / DATABASE_NAME).write_bytes(content)
    restore(tmp_path / "backup", tmp_path / "state", force=True)
    assert start(tmp_path / "state").ancestor_ids == {own.incarnation_id}


def test_a_restore_may_be_confirmed_at_once(tmp_path: Path) -> None:
    start(tmp_path / "state", jobs=3)
    back_up(tmp_path / "state", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored", force=False, is_confirmed=True)
    with closing(SqliteEventLog(tmp_path / "restored")) as log:
        log.identity.begin_generation(next_fence=1, sequence=3)
        assert not log.identity.awaits_confirmation


def test_ids_and_fences_jump_once_per_restore_and_no_two_restores_give_the_same(tmp_path: Path) -> None:
    start(tmp_path / "state", jobs=3)
    back_up(tmp_path / "state", tmp_path / "backup")
    fences = []
    for name in ("a", "b"):
        restore(tmp_path / "backup", tmp_path / name, force=False)
        for _ in range(2):
            start(tmp_path / name, jobs=1)
        with closing(SqliteEventLog(tmp_path / name)) as log:
            found = recovered(log)
        assert list(found.engine.state.jobs)[3:] == [f"job-{3 + JOB_NUMBERS_JUMPED + number}" for number in (1, 2)]
        fences.append(found.engine.state.next_fence)
    assert min(fences) > FENCES_JUMPED
    assert fences[0] != fences[1]


def test_a_fence_belongs_to_the_incarnation_that_gave_it() -> None:
    lineage = (
        Incarnation(incarnation_id=""),
        Incarnation(incarnation_id="a", first_fence=10),
        Incarnation(incarnation_id="b", first_fence=1_000),
    )
    identity = ClusterIdentity(lineage=lineage)
    assert [identity.incarnation_of(fence) for fence in (1, 9, 10, 999, 1_000, 5_000)] == ["", "", "a", "a", "b", "b"]
    key = AttemptKey(job_id="job-1", attempt=1, fence=10, incarnation_id="a")
    assert identity.owns(key)
    key.incarnation_id = "b"
    assert not identity.owns(key)
    key.incarnation_id = ""
    assert identity.owns(key)


def test_a_state_of_an_earlier_version_gets_its_identity_at_its_first_start(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "scheduler", tmp_path / "state")
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        first = log.identity.begin_generation(next_fence=40, sequence=100)
        assert not log.identity.awaits_confirmation
    assert first.incarnation_of(39) == ""
    assert first.incarnation_of(40) == first.incarnation_id != ""


def test_a_restored_backup_of_an_earlier_version_waits_for_its_operator(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "scheduler", tmp_path / "state")
    back_up(tmp_path / "state", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored", force=False)
    with closing(SqliteEventLog(tmp_path / "restored")) as log:
        child = log.identity.begin_generation(next_fence=40, sequence=100)
        assert log.identity.awaits_confirmation
    assert child.incarnation_of(40) == ""
    assert child.lineage[-1].first_fence > 40 + FENCES_JUMPED


def test_what_was_found_behind_stays_behind(tmp_path: Path) -> None:
    start(tmp_path)
    with closing(SqliteEventLog(tmp_path)) as log:
        log.identity.begin_generation(next_fence=1, sequence=0)
        assert log.identity.behind == ""
        log.identity.note_behind("a node saw event 5")
    start(tmp_path, jobs=9)
    with closing(SqliteEventLog(tmp_path)) as log:
        assert log.identity.behind == "a node saw event 5"


@pytest.mark.parametrize("generation", [0, 3])
def test_a_start_that_is_not_kept_any_more_contradicts_nothing(generation: int) -> None:
    kept = [Generation(generation=number, start_id=str(number), first_sequence=number) for number in (5, 6)]
    identity = ClusterIdentity(lineage=(Incarnation(incarnation_id="a"),), generations=tuple(kept))
    seen = LogPosition(incarnation_id="a", generation=generation, start_id="x", sequence=3)
    assert identity.contradiction(seen, sequence=9) == ""
    newer = replace(identity, generations=identity.generations[:1])
    assert newer.contradiction(LogPosition(incarnation_id="a", generation=6), sequence=9)
