"""Stored before handled, answered after the commit, nothing lost when the disk refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scheduler_service.adapters.storage import recovery
from scheduler_service.adapters.storage.event_log import LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.recovery import JobNumbers, recover
from scheduler_service.core.commands import Command
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import Event, JobSubmitted, NodeJoined
from scheduler_service.core.records import Gpu, JobRequest, Node
from scheduler_service.errors import NotReadyError, RequestConflictError, StateFullError, UnknownJobError
from scheduler_service.live_loop import LiveLoop, Mutation, Proposal
from tests.support.live_loop import FillingLog, MemoryEventLog, make_engine, make_policy, run


def submission(job_id: str, *, request_id: str = "", body: str = "x") -> Mutation:
    event = JobSubmitted(at_ms=0, request=JobRequest(job_id=job_id))
    return Mutation(propose=lambda: Proposal(event=event, answer=job_id), request_id=request_id, body_sha256=body)


@contextmanager
def full(log: FillingLog) -> Iterator[None]:
    log.is_full = True
    yield
    log.is_full = False


def node_joined(node_id: str) -> NodeJoined:
    gpu = Gpu(gpu_id=f"{node_id}-0", device="d", memory_bytes=1)
    return NodeJoined(at_ms=0, node=Node(node_id=node_id, gpus=(gpu,)))


def test_what_gathers_is_stored_in_one_flush_and_answered_in_order() -> None:
    log = FillingLog()

    async def work(loop: LiveLoop) -> None:
        answers = await asyncio.gather(*(loop.mutate(submission(f"job-{n}")) for n in range(20)))
        assert answers == [f"job-{n}" for n in range(20)]

    loop = run(work, log)
    assert log.appends == [20]
    assert list(loop.engine.state.jobs) == [f"job-{n}" for n in range(20)]
    assert [stored.event.at_ms for stored in log.read_from(1)] == sorted(s.event.at_ms for s in log.read_from(1))


def test_a_repetition_gets_the_first_answer_even_within_one_batch() -> None:
    log = FillingLog()

    async def work(loop: LiveLoop) -> None:
        duplicates = [submission(f"job-{n}", request_id="same") for n in (1, 2)]
        assert await asyncio.gather(*map(loop.mutate, duplicates)) == ["job-1", "job-1"]
        assert await loop.mutate(submission("job-3", request_id="same")) == "job-1"
        with pytest.raises(RequestConflictError, match="same"):
            await loop.mutate(submission("job-4", request_id="same", body="other"))

    assert list(run(work, log).engine.state.jobs) == ["job-1"]


def test_a_refused_proposal_stores_nothing_and_leaves_the_others_alone() -> None:
    log = FillingLog()

    def refuse() -> Proposal:
        raise UnknownJobError("job-9")

    async def work(loop: LiveLoop) -> None:
        done = await asyncio.gather(
            loop.mutate(Mutation(propose=refuse)), loop.mutate(submission("job-1")), return_exceptions=True
        )
        assert isinstance(done[0], UnknownJobError)
        assert done[1] == "job-1"

    run(work, log)
    assert log.last_sequence() == 1


def test_a_full_disk_refuses_requests_but_keeps_facts_until_there_is_space() -> None:
    log = FillingLog()

    async def work(loop: LiveLoop) -> None:
        with full(log):
            reported = asyncio.ensure_future(loop.tell(node_joined("n")))
            with pytest.raises(StateFullError, match="free some space"):
                await loop.mutate(submission("job-1"))
            assert loop.storage_failure
            assert not reported.done()
            assert not loop.engine.state.nodes
        await asyncio.wait_for(reported, timeout=90)
        assert list(loop.engine.state.nodes) == ["n"]
        assert await loop.mutate(submission("job-2")) == "job-2"
        assert loop.storage_failure == ""

    loop = run(work, log)
    assert list(loop.engine.state.jobs) == ["job-2"]


def test_nothing_enters_a_closed_loop() -> None:
    async def work(loop: LiveLoop) -> None:
        loop.close()
        with pytest.raises(NotReadyError, match="stopping"):
            await loop.mutate(submission("job-1"))

    run(work, FillingLog())


def test_an_event_that_breaks_the_engine_ends_neither_the_loop_nor_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = SchedulerEngine.handle

    def handle_all_but_nodes(engine: SchedulerEngine, event: Event) -> list[Command]:
        if isinstance(event, NodeJoined):
            raise KeyError("a bug of ours")
        return handle(engine, event)

    monkeypatch.setattr(SchedulerEngine, "handle", handle_all_but_nodes)
    log = MemoryEventLog()

    async def work(loop: LiveLoop) -> None:
        await loop.tell(node_joined("n1"))
        assert await loop.mutate(submission("job-1")) == "job-1"

    run(work, log)
    found = recover(log, new_engine=make_engine, restored_engine=lambda _: make_engine())
    assert list(found.engine.state.jobs) == ["job-1"]


def test_recovery_from_a_snapshot_equals_recovery_from_all_events() -> None:
    log, whole = MemoryEventLog(), MemoryEventLog()
    numbers = JobNumbers()

    async def work(loop: LiveLoop) -> None:
        for number in range(1, 30):
            await loop.mutate(submission(numbers.next_id()))
            if number % 10 == 0:
                await loop.tell(node_joined(f"n{number}"))
                loop.freeze_state = lambda: recovery.freeze_state(loop.engine, numbers)
                await loop.store_snapshot()

    loop = run(work, log)
    whole.append([LogRecord(event=stored.event) for stored in log.read_from(1)])

    def recovered(source: MemoryEventLog) -> recovery.Recovered:
        return recover(
            source,
            new_engine=make_engine,
            restored_engine=lambda state: SchedulerEngine.restore(state, make_policy=make_policy),
        )

    assert log.latest_snapshot() is not None
    short, full_replay = recovered(log), recovered(whole)
    assert short.engine.snapshot() == full_replay.engine.snapshot() == loop.engine.snapshot()
    assert short.numbers == full_replay.numbers == numbers
    assert short.sequence == full_replay.sequence == 31


def test_facts_are_stored_and_handled_while_a_snapshot_is_made() -> None:
    making, go_on = threading.Event(), threading.Event()

    class SlowSnapshots(MemoryEventLog):
        def store_snapshot(self, snapshot: StoredSnapshot, *, retained_events: int) -> None:
            making.set()
            assert go_on.wait(timeout=90)
            super().store_snapshot(snapshot, retained_events=retained_events)

    log = SlowSnapshots()

    async def work(loop: LiveLoop) -> None:
        loop.snapshot_every_events = 2
        loop.freeze_state = lambda: recovery.freeze_state(loop.engine, JobNumbers(last=9))
        for number in (1, 2):
            await loop.mutate(submission(f"job-{number}"))
        await asyncio.to_thread(making.wait, 20)
        # The snapshot is stuck; nothing else is.
        for number in (3, 4, 5):
            assert await loop.mutate(submission(f"job-{number}")) == f"job-{number}"
        go_on.set()

    loop = run(work, log)
    snapshot = log.latest_snapshot()
    assert snapshot is not None
    # It is of its own instant, whatever came while it was encoded.
    found = SchedulerEngine.restore(snapshot.state["engine"], make_policy=make_policy)  # type: ignore[arg-type]
    assert list(found.state.jobs) == [f"job-{number}" for number in range(1, snapshot.sequence + 1)]
    assert snapshot.sequence < loop.sequence == 5
