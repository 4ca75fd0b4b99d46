"""What watchers read first is encoded once for all of them, and each sees no more and nothing older for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from cotenant.access.callers import Caller
from cotenant.access.roles import Role
from cotenant.v1 import scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.events import JobCancelled, JobSubmitted
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import JobRequest
from scheduler_service.core.state import ClusterState
from scheduler_service.grpc_api.jobs import encoded_jobs, job_changes
from scheduler_service.grpc_api.jobs.encoded_jobs import EncodedJobs
from scheduler_service.grpc_api.jobs.job_watch import WatchHub
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from scheduler_service.grpc_api.visibility import HIDDEN, Visibility
from tests.support.engine_play import Play
from tests.support.live_loop import make_engine

ANYBODY = Caller()


class Cluster:
    """An engine with a hub, whose jobs have owners in turn."""

    def __init__(self, jobs: int = 0, owners: Sequence[str] = ("alice",)) -> None:
        self.engine = make_engine()
        self.hub = WatchHub(state=lambda: self.engine.state)
        for number in range(jobs):
            self.submit(f"job-{number}", owners[number % len(owners)])

    def submit(self, job_id: str, owner: str) -> None:
        launch = {"command": ["train", "--secret", "x"], "environment": {"KEY": "value"}, "owner": owner}
        self.handle(JobSubmitted(at_ms=1, request=JobRequest(job_id=job_id), launch=launch))

    def handle(self, event: events.Event) -> None:
        self.hub.event_handled(event, self.engine.handle(event), duration_ns=0)

    async def snapshot(self, caller: Caller = ANYBODY, *, in_batches: bool = True) -> dict[str, scheduling_pb2.Job]:
        """Watch until the snapshot has ended, and hang up."""
        watching = self.hub.watch(frozenset(), caller=caller, in_batches=in_batches)
        found: dict[str, scheduling_pb2.Job] = {}
        async for answer in watching:
            read = scheduling_pb2.WatchJobsResponse.FromString(answer) if isinstance(answer, bytes) else answer
            assert isinstance(answer, bytes) == bool(read.jobs)
            jobs = [*read.jobs, *([read.job] if read.HasField("job") else [])]
            assert not found.keys() & {job.job_id for job in jobs}
            found |= {job.job_id: job for job in jobs}
            if read.snapshot_end:
                break
        await watching.aclose()
        return found

    async def somebody_watches(self) -> None:
        """Keep a watch open, as long as whose nothing is kept."""
        self._first = self.hub.watch(frozenset({"nothing"}))
        await anext(self._first)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each job was put into a message for a snapshot."""
    counts = Counter[str]()

    def counted(state: ClusterState, job: JobRecord) -> scheduling_pb2.Job:
        counts[job.job_id] += 1
        return job_message(state, job)

    monkeypatch.setattr(encoded_jobs, "job_message", counted)
    return counts


@pytest.mark.parametrize("in_batches", [True, False])
def test_fifty_watchers_cost_the_encodings_of_one(encoded: Counter[str], in_batches: bool) -> None:
    async def work() -> None:
        cluster = Cluster(jobs=250)
        await cluster.somebody_watches()
        snapshots = [await cluster.snapshot(in_batches=in_batches) for _ in range(50)]
        expected = {job_id: job_message(cluster.engine.state, job) for job_id, job in cluster.engine.state.jobs.items()}
        assert snapshots == [expected] * 50

    asyncio.run(work())
    assert encoded == Counter({f"job-{number}": 1 for number in range(250)})


def test_a_batch_is_bounded_in_jobs_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(jobs=250)
    state = cluster.engine.state

    def sizes() -> list[int]:
        batches = EncodedJobs().batches(state, state.jobs.values(), ANYBODY)
        return [len(scheduling_pb2.WatchJobsResponse.FromString(batch).jobs) for batch in batches]

    assert sizes() == [100, 100, 50]
    monkeypatch.setattr(encoded_jobs, "BATCH_BYTES_MAX", 1)
    assert sizes() == [1] * 250


def test_each_role_sees_what_it_may_although_all_share_one_cache() -> None:
    async def work() -> dict[str, dict[str, tuple[str, str]]]:
        cluster = Cluster(jobs=2, owners=("alice", "bob"))
        await cluster.somebody_watches()
        callers = {
            "viewer": Caller(role=Role.VIEWER, name="alice"),
            "anybody": ANYBODY,
            "alice": Caller(role=Role.USER, name="alice"),
            "operator": Caller(role=Role.OPERATOR, name="bob"),
        }
        found = {}
        for _ in range(2):
            for name, caller in callers.items():
                jobs = await cluster.snapshot(caller)
                found[name] = {one: (job.spec.environment["KEY"], job.spec.command[-1]) for one, job in jobs.items()}
        return found

    whole, hidden = ("value", "x"), (HIDDEN, "x")
    assert asyncio.run(work()) == {
        "viewer": {"job-0": (HIDDEN, HIDDEN), "job-1": (HIDDEN, HIDDEN)},
        "anybody": {"job-0": whole, "job-1": whole},
        "alice": {"job-0": whole},
        "operator": {"job-0": hidden, "job-1": whole},
    }


def test_a_change_is_in_the_next_snapshot_before_anybody_has_looked_for_changes(encoded: Counter[str]) -> None:
    async def work() -> dict[str, scheduling_pb2.Job]:
        cluster = Cluster(jobs=3)
        await cluster.somebody_watches()
        await cluster.snapshot()
        cluster.handle(JobCancelled(at_ms=2, job_id="job-1"))
        cluster.submit("job-3", "alice")
        return await cluster.snapshot()

    found = asyncio.run(work())
    assert found["job-1"].phase == scheduling_pb2.JOB_PHASE_CANCELLED
    assert list(found) == ["job-0", "job-1", "job-2", "job-3"]
    assert encoded == {"job-0": 1, "job-1": 2, "job-2": 1, "job-3": 1}


def test_a_reason_that_was_told_as_changed_is_in_the_next_snapshot() -> None:
    play = Play(policy="fifo", nodes=1)
    for number in range(3):
        play.submit(f"job-{number}", gpus=1)

    async def work() -> tuple[scheduling_pb2.Job, scheduling_pb2.Job]:
        hub = WatchHub(state=lambda: play.engine.state)
        first = hub.watch(frozenset({"job-2"}))
        before = await anext(first)
        record = play.engine.state.jobs["job-2"]
        play.tell(events.JobCancelled, job_id="job-1")
        hub.sweep()
        assert play.engine.state.jobs["job-2"] is record
        return before.job, (await anext(hub.watch(frozenset({"job-2"})))).job

    before, after = asyncio.run(work())
    assert before.reason != after.reason
    assert after == job_message(play.engine.state, play.engine.state.jobs["job-2"])


def test_what_is_kept_is_bounded_and_ends_with_its_age(encoded: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(jobs=4)
    state, now_ns = cluster.engine.state, [0]
    monkeypatch.setattr(encoded_jobs, "read_monotonic_ns", lambda: now_ns[0])
    kept = EncodedJobs()

    def read() -> int:
        encoded.clear()
        for job in state.jobs.values():
            kept.of(state, job, Visibility.WHOLE)
        return encoded.total()

    one_bytes = len(kept.of(state, state.jobs["job-0"], Visibility.WHOLE))
    monkeypatch.setattr(encoded_jobs, "KEPT_BYTES_MAX", 2 * one_bytes)
    assert [read(), read()] == [3, 2]
    now_ns[0] += encoded_jobs.KEPT_NS + 1
    assert read() == 4
    kept.forget_old()
    assert read() == 2
    now_ns[0] += encoded_jobs.KEPT_NS + 1
    kept.forget_old()
    assert read() == 4
    for job_id in state.jobs:
        kept.forget(job_id)
    assert [read(), read()] == [4, 2]


def test_a_user_learns_what_it_missed_although_others_jobs_changed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "CHANGES_KEPT_MAX", 3)

    async def work() -> scheduling_pb2.WatchJobsResponse:
        cluster = Cluster()
        watching = cluster.hub.watch(frozenset(), caller=Caller(role=Role.USER, name="alice"))
        await anext(watching)
        for number in range(10):
            cluster.submit(f"job-{number}", "alice" if number == 9 else "bob")
        cluster.hub.sweep()
        return await anext(watching)

    message = asyncio.run(work())
    assert (message.job.job_id, message.missed_changes) == ("job-9", 10)


def test_batches_of_changes_show_each_caller_only_what_it_may_see() -> None:
    callers = {
        "viewer": Caller(role=Role.VIEWER, name="alice"),
        "alice": Caller(role=Role.USER, name="alice"),
        "operator": Caller(role=Role.OPERATOR, name="carol"),
        "anybody": ANYBODY,
    }

    async def work() -> dict[str, dict[str, tuple[str, str]]]:
        cluster = Cluster()
        hub = cluster.hub
        watches = {
            name: hub.watch(frozenset(), caller=caller, in_batches=True, changes_in_batches=True)
            for name, caller in callers.items()
        }
        for watching in watches.values():
            await anext(watching)
        cluster.submit("job-1", "alice")
        cluster.submit("job-2", "bob")
        hub.sweep()
        found = {}
        for name, watching in watches.items():
            answer = await anext(watching)
            assert isinstance(answer, bytes)
            jobs = scheduling_pb2.WatchJobsResponse.FromString(answer).jobs
            found[name] = {job.job_id: (job.spec.environment["KEY"], job.spec.command[-1]) for job in jobs}
        return found

    whole, hidden = ("value", "x"), (HIDDEN, "x")
    found = asyncio.run(work())
    assert found["anybody"] == {"job-1": whole, "job-2": whole}
    assert found["alice"] == {"job-1": whole}
    assert found["operator"] == {"job-1": hidden, "job-2": hidden}
    assert found["viewer"] == {"job-1": (HIDDEN, HIDDEN), "job-2": (HIDDEN, HIDDEN)}
