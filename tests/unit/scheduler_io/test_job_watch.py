"""Watchers see a snapshot, then changes; a slow one costs a bounded queue."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.events import JobCancelled, JobSubmitted
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import JobRequest
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import OverloadedError
from scheduler_service.grpc_api.jobs import job_changes, job_watch
from scheduler_service.grpc_api.jobs.job_watch import WatchHub
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from tests.support.engine_play import Play
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


def test_a_slow_watcher_learns_how_much_it_missed_and_how_things_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = 10
    monkeypatch.setattr(job_changes, "CHANGES_KEPT_MAX", kept)

    async def work() -> tuple[list[scheduling_pb2.WatchJobsResponse], scheduling_pb2.WatchJobsResponse]:
        cluster = Cluster()
        watching = cluster.hub.watch(frozenset())
        assert (await anext(watching)).snapshot_end
        cluster.submit(*(f"job-{number}" for number in range(30)))
        cluster.hub.sweep()
        cluster.cancel("job-7")
        cluster.hub.sweep()
        told = [await anext(watching) for _ in range(30)]
        cluster.submit("job-30")
        cluster.hub.sweep()
        return told, await anext(watching)

    told, following = asyncio.run(work())
    # 31 changes of 30 jobs: job-7 comes once, as it is now.
    assert [message.missed_changes for message in told] == [31] + [0] * 29
    assert sorted(message.job.job_id for message in told) == sorted(f"job-{number}" for number in range(30))
    assert told[-1].job.job_id == "job-7"
    assert told[-1].job.phase == scheduling_pb2.JOB_PHASE_CANCELLED
    assert (following.job.job_id, following.missed_changes) == ("job-30", 0)


def test_a_watcher_of_one_job_misses_nothing_by_what_happens_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "CHANGES_KEPT_MAX", 3)

    async def work() -> scheduling_pb2.WatchJobsResponse:
        cluster = Cluster()
        cluster.submit("job-1")
        watching = cluster.hub.watch(frozenset({"job-1"}))
        assert (await anext(watching)).job.job_id == "job-1"
        assert (await anext(watching)).snapshot_end
        cluster.submit(*(f"other-{number}" for number in range(30)))
        cluster.hub.sweep()
        waiting = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        cluster.cancel("job-1")
        cluster.hub.sweep()
        return await asyncio.wait_for(waiting, timeout=90)

    message = asyncio.run(work())
    assert (message.job.job_id, message.job.phase) == ("job-1", scheduling_pb2.JOB_PHASE_CANCELLED)
    assert message.missed_changes == 0


def test_many_watchers_share_one_message_about_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[scheduling_pb2.Job]:
        cluster = Cluster()
        watches = [cluster.hub.watch(frozenset()) for _ in range(3)]
        for watching in watches:
            assert (await anext(watching)).snapshot_end
        cluster.submit("job-1")
        cluster.hub.sweep()
        return [(await anext(watching)).job for watching in watches]

    built = Counter[str]()

    def counted(state: ClusterState, job: JobRecord) -> scheduling_pb2.Job:
        built[job.job_id] += 1
        return job_message(state, job)

    monkeypatch.setattr(job_changes, "job_message", counted)
    assert [job.job_id for job in asyncio.run(work())] == ["job-1"] * 3
    assert built == {"job-1": 1}


def test_progress_of_many_jobs_comes_in_turns_and_a_change_of_phase_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "PROGRESS_MESSAGES_MAX", 2)
    play = Play(policy="fifo", nodes=4)
    for number in range(4):
        play.submit(f"job-{number}")
        play.report(events.JobStarted, f"job-{number}")

    async def work() -> list[list[str]]:
        hub = WatchHub(state=lambda: play.engine.state)
        watching = hub.watch(frozenset())
        for _ in range(5):
            await anext(watching)
        for number in range(4):
            play.report(events.JobProgressed, f"job-{number}", steps_done=3, window_steps=3, window_ms=60)
        play.report(events.JobFinished, "job-3", steps_done=10)
        told = []
        for count in (3, 1):
            hub.sweep()
            told.append([(await anext(watching)).job.job_id for _ in range(count)])
        return told

    assert asyncio.run(work()) == [["job-3", "job-0", "job-1"], ["job-2"]]


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
        return (await asyncio.wait_for(waiting, timeout=90)).overflowed

    assert asyncio.run(work())


def read_jobs(answer: scheduling_pb2.WatchJobsResponse | bytes) -> list[scheduling_pb2.Job]:
    assert isinstance(answer, bytes)
    return list(scheduling_pb2.WatchJobsResponse.FromString(answer).jobs)


def test_the_changes_of_one_moment_come_in_one_message_where_it_is_asked_for() -> None:
    async def work() -> list[list[scheduling_pb2.Job]]:
        cluster = Cluster()
        watches = [cluster.hub.watch(frozenset(), in_batches=True, changes_in_batches=True) for _ in range(3)]
        for watching in watches:
            end = await anext(watching)
            assert isinstance(end, scheduling_pb2.WatchJobsResponse)
            assert end.snapshot_end
        cluster.submit("job-1", "job-2", "job-3")
        cluster.hub.sweep()
        cluster.cancel("job-2")
        cluster.hub.sweep()
        return [read_jobs(await anext(watching)) for watching in watches]

    first, *others = asyncio.run(work())
    assert [job.job_id for job in first] == ["job-1", "job-2", "job-3", "job-2"]
    assert first[-1].phase == scheduling_pb2.JOB_PHASE_CANCELLED
    assert others == [first, first]


def test_batches_of_changes_are_bounded_and_hold_wanted_jobs_only() -> None:
    async def work() -> list[list[str]]:
        cluster = Cluster()
        wanted = frozenset(f"job-{number}" for number in range(250))
        watching = cluster.hub.watch(wanted, in_batches=True, changes_in_batches=True)
        await anext(watching)
        cluster.submit(*(f"job-{number}" for number in range(300)))
        cluster.hub.sweep()
        return [[job.job_id for job in read_jobs(await anext(watching))] for _ in range(3)]

    batches = asyncio.run(work())
    assert [len(batch) for batch in batches] == [100, 100, 50]
    assert sorted(one for batch in batches for one in batch) == sorted(f"job-{number}" for number in range(250))


def test_a_slow_watcher_of_batches_learns_how_much_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "CHANGES_KEPT_MAX", 10)

    async def work() -> list[scheduling_pb2.WatchJobsResponse]:
        cluster = Cluster()
        watching = cluster.hub.watch(frozenset(), in_batches=True, changes_in_batches=True)
        await anext(watching)
        cluster.submit(*(f"job-{number}" for number in range(130)))
        cluster.hub.sweep()
        answers = [await anext(watching) for _ in range(2)]
        return [scheduling_pb2.WatchJobsResponse.FromString(one) for one in answers if isinstance(one, bytes)]

    told = asyncio.run(work())
    assert [(len(one.jobs), one.missed_changes) for one in told] == [(100, 130), (30, 0)]
