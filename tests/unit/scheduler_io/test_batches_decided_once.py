"""All facts of a batch are decided upon once, live and in every replay; callers are answered after that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from scheduler_service.adapters.storage.event_log import TOGETHER_MAX, LogRecord, StoredSnapshot, told_together
from scheduler_service.adapters.storage.recovery import JobNumbers, freeze_state, recover
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import JobCancelled, JobSubmitted, NodeJoined
from scheduler_service.core.records import Reason
from scheduler_service.live_loop import LiveLoop, Mutation, Proposal
from tests.support.live_loop import FillingLog, HoldEverything, MemoryEventLog, make_engine, make_policy, run
from tests.support.scheduling import job, node


class Counting(HoldEverything):
    """Lets every job wait, and notes how many waited whenever it was asked."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        self.rounds.append(len(view.pending))
        return super().decide(view)


def counting() -> tuple[SchedulerEngine, list[int]]:
    policy = Counting()

    def make(name: str, parameters: Mapping[str, object]) -> Policy:
        return policy

    engine = SchedulerEngine(make_policy=make, policy="hold")
    engine.handle(NodeJoined(at_ms=0, node=node()))
    return engine, policy.rounds


def submission(*names: str) -> Mutation:
    """Jobs that are handed in at once; the answer is the last one's name."""
    facts = [JobSubmitted(at_ms=0, request=job(name)) for name in names]
    return Mutation(propose=lambda: Proposal(event=facts[-1], answer=names[-1], earlier=tuple(facts[:-1])))


def words(log: MemoryEventLog | SqliteEventLog) -> list[bool]:
    return [stored.event.is_followed for stored in log.read_from(1)]


def restored(state: Mapping[str, object]) -> SchedulerEngine:
    return SchedulerEngine.restore(state, make_policy=make_policy)


def test_a_batch_is_decided_upon_once() -> None:
    log, (engine, rounds) = FillingLog(), counting()

    async def work(loop: LiveLoop) -> None:
        await asyncio.gather(*(loop.mutate(submission(f"job-{n}")) for n in range(20)))
        await loop.mutate(submission("late"))

    run(work, log, engine)
    assert log.appends == [20, 1]
    assert rounds == [20, 21]
    assert words(log) == [*[True] * 19, False, False]


def test_whoever_looks_after_the_answer_sees_what_was_decided() -> None:
    engine, _ = counting()
    seen: list[tuple[str, bool]] = []

    async def submit(loop: LiveLoop, *names: str) -> None:
        await loop.mutate(submission(*names))
        seen.append((names[-1], all(engine.state.decisions.reason_of(name) for name in names)))

    async def work(loop: LiveLoop) -> None:
        # The facts of the array give way to other tasks, while the job before it is not yet decided upon.
        await asyncio.gather(submit(loop, "job-1"), submit(loop, "task-1", "task-2", "task-3"), submit(loop, "job-2"))

    run(work, FillingLog(), engine)
    assert seen == [("job-1", True), ("task-3", True), ("job-2", True)]


def test_a_large_batch_is_decided_upon_in_parts_and_an_array_of_a_thousand_at_once() -> None:
    records = [LogRecord(event=JobCancelled(at_ms=n, job_id="a")) for n in range(2 * TOGETHER_MAX + 1)]
    found = [record.event.is_followed for record in told_together(records)]
    assert [number for number, is_followed in enumerate(found, start=1) if not is_followed] == [
        TOGETHER_MAX,
        2 * TOGETHER_MAX,
        2 * TOGETHER_MAX + 1,
    ]
    assert told_together(records[:1]) == records[:1]
    assert [one.event.is_followed for one in told_together(records[:1_000])].count(False) == 1


def test_a_last_fact_that_cannot_be_loses_no_decision_live_or_in_a_replay() -> None:
    log, (engine, rounds) = MemoryEventLog(), counting()

    async def work(loop: LiveLoop) -> None:
        # Both are proposed before either is handled, so that the second one is found impossible.
        await asyncio.gather(loop.mutate(submission("job-1")), loop.mutate(submission("job-1")))

    run(work, log, engine)
    assert rounds == [1]
    again, replayed = counting()
    recover(log, new_engine=lambda: again, restored_engine=restored)
    assert replayed == rounds
    assert again.snapshot() == engine.snapshot()


@pytest.mark.parametrize("facts", [1, 2, 3])
def test_a_snapshot_from_the_middle_of_a_batch_and_the_facts_after_it_are_the_whole(tmp_path: Path, facts: int) -> None:
    log, engine, numbers = SqliteEventLog(tmp_path), make_engine(), JobNumbers()
    joined, nothing = NodeJoined(at_ms=1, node=node()), JobCancelled(at_ms=1, job_id="nobody")
    told = (joined, JobSubmitted(at_ms=1, request=job("a")), nothing)
    records = told_together([LogRecord(event=event) for event in told])
    log.append(records)
    for record in records[:facts]:
        engine.handle(record.event)
    snapshot = StoredSnapshot(sequence=facts, state=freeze_state(engine, numbers)())
    for record in records[facts:]:
        engine.handle(record.event)
    assert words(log) == [True, True, False]
    log.store_snapshot(snapshot, retained_events=10)
    found = recover(log, new_engine=make_engine, restored_engine=restored)
    log.close()
    assert found.sequence == 3
    assert engine.state.decisions.reason_of("a") == Reason(code="HELD")
    assert found.engine.snapshot() == engine.snapshot()
