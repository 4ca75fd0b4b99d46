"""Watchers see a snapshot, then changes; a slow one costs a bounded queue."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.events import JobCancelled, JobSubmitted
from scheduler_service.core.records import JobRequest
from scheduler_service.errors import OverloadedError
from scheduler_service.grpc_api import job_watch
from scheduler_service.grpc_api.job_watch import CHANGES_WAITING_MAX, WatchHub
from tests.support.live_loop import make_engine


class Cluster:
    """An engine with a hub that hears of every event, as the live loop would notify it."""

    def __init__(self) -> None:
        self.engine = make_engine()
        self.hub = WatchHub(state=lambda: self.engine.state)

    def submit(self, *job_ids: str) -> None:
        for job_id in job_ids:
            event = JobSubmitted(at_ms=1, request=JobRequest(job_id=job_id))
            self.hub.event_handled(event, self.engine.handle(event), duration_ns=0)

    def cancel(self, job_id: str) -> None:
        event = JobCancelled(at_ms=2, job_id=job_id)
        self.hub.event_handled(event, self.engine.handle(event), duration_ns=0)


def test_a_watcher_gets_the_snapshot_then_each_change_once() -> None:
    async def work() -> list[str]:
        cluster = Cluster()
        cluster.submit("job-1")
        watching = cluster.hub.watch(frozenset())
        first = [await anext(watching), await anext(watching)]
        cluster.submit("job-2")
        cluster.hub.sweep()
        cluster.hub.sweep()
        cluster.cancel("job-1")
        cluster.hub.sweep()
        found = [*first, await anext(watching), await anext(watching)]
        return [message.job.job_id or "end" for message in found]

    assert asyncio.run(work()) == ["job-1", "end", "job-2", "job-1"]


def test_a_job_that_comes_and_goes_between_two_looks_is_reported() -> None:
    async def work() -> scheduling_pb2.Job:
        cluster = Cluster()
        watching = cluster.hub.watch(frozenset())
        assert (await anext(watching)).snapshot_end
        cluster.submit("job-1")
        cluster.cancel("job-1")
        cluster.hub.sweep()
        return (await anext(watching)).job

    job = asyncio.run(work())
    assert (job.job_id, job.phase) == ("job-1", scheduling_pb2.JOB_PHASE_CANCELLED)


def test_only_wanted_jobs_are_reported() -> None:
    async def work() -> list[str]:
        cluster = Cluster()
        cluster.submit("job-1", "job-2")
        watching = cluster.hub.watch(frozenset({"job-2"}))
        found = [await anext(watching), await anext(watching)]
        cluster.cancel("job-1")
        cluster.hub.sweep()
        cluster.cancel("job-2")
        cluster.hub.sweep()
        return [message.job.job_id or "end" for message in [*found, await anext(watching)]]

    assert asyncio.run(work()) == ["job-2", "end", "job-2"]


def test_a_slow_watcher_is_asked_to_start_again_and_the_queue_stays_bounded() -> None:
    async def work() -> tuple[int, bool]:
        cluster = Cluster()
        watching = cluster.hub.watch(frozenset())
        assert (await anext(watching)).snapshot_end
        cluster.submit(*(f"job-{number}" for number in range(CHANGES_WAITING_MAX + 5)))
        cluster.hub.sweep()
        reported = [message async for message in watching]
        return len(reported), reported[-1].overflowed

    count, overflowed = asyncio.run(work())
    assert overflowed
    assert count <= CHANGES_WAITING_MAX + 1


def test_the_number_of_watchers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "WATCHERS_MAX", 1)

    async def work() -> None:
        hub = Cluster().hub
        first = hub.watch(frozenset())
        await anext(first)
        with pytest.raises(OverloadedError, match="watch already"):
            await anext(hub.watch(frozenset()))
        await first.aclose()
        assert (await anext(hub.watch(frozenset()))).snapshot_end

    asyncio.run(work())


def test_a_stopping_scheduler_ends_every_watch() -> None:
    async def work() -> bool:
        hub = Cluster().hub
        watching = hub.watch(frozenset())
        await anext(watching)
        waiting = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        hub.close()
        return (await asyncio.wait_for(waiting, timeout=20)).overflowed

    assert asyncio.run(work())
