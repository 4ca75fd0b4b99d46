"""Much reading does not stop the loop: explanations are found in a thread on a frozen instant, lists in parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import JobCancelled
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.planning.explanation import Explanation
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import OverloadedError
from scheduler_service.grpc_api.jobs import explanations, job_listing
from scheduler_service.grpc_api.jobs.explanations import Explained, Explanations
from scheduler_service.grpc_api.jobs.job_listing import NewestFirst
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from scheduler_service.grpc_api.scheduling_servicer import Cluster, SchedulingServicer
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.status_codes import Context
from scheduler_service.policies.fifo import Fifo
from scheduler_service.policies.horus import Horus
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.live_loop import MemoryEventLog, make_loop
from tests.support.random_snapshots import SnapshotMaker

NO_CONTEXT = cast("Context", None)


def full_cluster(policy: str = "horus", *, waiting: int = 5) -> Play:
    play = Play(policy, nodes=2, gpus=4)
    for number in range(8 + waiting):
        play.submit(f"job-{number + 1}")
    return play


def explaining(play: Play) -> Explanations:
    loop = make_loop(MemoryEventLog())
    loop.engine = play.engine
    return Explanations(loop=loop)


def servicer_of(play: Play) -> SchedulingServicer:
    loop = make_loop(MemoryEventLog())
    loop.engine = play.engine
    absent = cast("Any", None)
    cluster = Cluster(loop=loop, numbers=absent, sessions=absent, predictor=absent, watch_hub=absent, admission=absent)
    return SchedulingServicer(cluster)


@for_each("policy", ["fifo", "horus", "sjf", "sjf_bsbf", "sjf_ffs", "ojpp", "tiresias", "pab"])
def test_a_table_is_made_for_the_explained_job_alone(policy: str) -> None:
    play = full_cluster(policy)
    found = play.engine.explanation("job-10")
    assert isinstance(found, Explanation)
    decisions = found._decisions()
    assert {one.job_id for one in decisions if one.candidates} <= {"job-10"}
    assert len(found.find().candidates) == 8


def test_an_explanation_is_about_the_instant_of_its_question() -> None:
    play = full_cluster()
    found = play.engine.explanation("job-10")
    assert isinstance(found, Explanation)
    before = found.find()
    for number in range(1, 14):
        play.tell(JobCancelled, job_id=f"job-{number}")
    assert found.find() == before


def in_thread(monkeypatch: pytest.MonkeyPatch, *, release: threading.Event) -> list[str]:
    """Lets every policy wait for the event; returns where they were asked."""
    threads: list[str] = []

    def decide(_: object, view: SchedulingView) -> Sequence[Decision]:
        threads.append(threading.current_thread().name)
        assert release.wait(timeout=90)
        return Fifo().decide(view)

    monkeypatch.setattr(Horus, "decide", decide)
    return threads


def test_the_loop_goes_on_while_a_policy_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    play, release = full_cluster(), threading.Event()
    threads = in_thread(monkeypatch, release=release)

    async def work() -> list[Explained]:
        asked = explaining(play)
        answers = [asyncio.ensure_future(asked.of("job-10")) for _ in range(30)]
        # The loop runs while the policy is stuck; nothing else could let it go on.
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*answers)

    answers = asyncio.run(work())
    assert len(threads) == 1  # thirty equal questions at one instant are one
    assert threads[0].startswith("explain")
    assert {len(answer.candidates) for answer in answers} == {8}


def test_questions_at_one_instant_share_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    play = full_cluster()
    frozen: list[str] = []
    explanation = SchedulerEngine.explanation

    def counted(engine: SchedulerEngine, job_id: str) -> Explanation | Decision:
        frozen.append(job_id)
        return explanation(engine, job_id)

    monkeypatch.setattr(SchedulerEngine, "explanation", counted)

    async def work() -> list[Explained]:
        asked = explaining(play)
        answers = await asyncio.gather(*(asked.of(f"job-{number}") for number in range(9, 14)))
        asked.loop.sequence += 1
        return [*answers, await asked.of("job-9"), await asked.of("job-1")]

    answers = asyncio.run(work())
    assert [len(answer.candidates) for answer in answers] == [8] * 6 + [0]
    assert frozen == ["job-9", "job-9", "job-1"]


def test_a_caller_that_leaves_takes_the_answer_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    play, release = full_cluster(), threading.Event()
    in_thread(monkeypatch, release=release)

    async def work() -> Explained:
        asked = explaining(play)
        leaving, staying = (asyncio.ensure_future(asked.of("job-10")) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        release.set()
        return await staying

    assert len(asyncio.run(work()).candidates) == 8


def test_no_more_questions_wait_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    play, release = full_cluster(), threading.Event()
    in_thread(monkeypatch, release=release)
    monkeypatch.setattr(explanations, "WAITING_MAX", 2)

    async def work() -> None:
        asked = explaining(play)
        waiting = [asyncio.ensure_future(asked.of(job_id)) for job_id in ("job-10", "job-11")]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="ask again"):
            await asked.of("job-12")
        release.set()
        await asyncio.gather(*waiting)
        await asked.of("job-12")

    asyncio.run(work())


def listed(servicer: SchedulingServicer, **fields: Any) -> list[str]:
    request = scheduling_pb2.ListJobsRequest(page_size=1_000, **fields)
    return [job.job_id for job in asyncio.run(servicer.ListJobs(request, NO_CONTEXT)).jobs]


def test_a_long_list_lets_the_loop_go_on_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_listing, "JOBS_AT_ONCE", 2)
    servicer = servicer_of(full_cluster())

    async def work() -> int:
        turns = 0
        listing = asyncio.ensure_future(servicer.ListJobs(scheduling_pb2.ListJobsRequest(), NO_CONTEXT))
        while not listing.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(listing.result().jobs) == 13
        return turns

    assert asyncio.run(work()) >= 6


def test_lists_are_newest_first_whatever_came_and_left_since_the_last_one() -> None:
    play = full_cluster()
    servicer = servicer_of(play)
    assert listed(servicer) == [f"job-{number}" for number in range(13, 0, -1)]
    play.submit("job-14")
    play.submit("job-15")
    assert listed(servicer)[:3] == ["job-15", "job-14", "job-13"]
    assert listed(servicer, phases=[scheduling_pb2.JOB_PHASE_STARTING]) == [f"job-{n}" for n in range(8, 0, -1)]


def test_jobs_that_were_forgotten_are_listed_no_more_and_numbers_decide_the_order() -> None:
    order = NewestFirst()
    jobs: dict[str, Any] = {"job-9": 9, "job-10": 10, "job-2": 2}
    state = cast("Any", type("State", (), {"jobs": jobs}))

    def read() -> list[object]:
        return list(order.jobs(state))

    assert read() == [10, 9, 2]
    del jobs["job-2"]
    jobs["job-11"] = 11
    assert read() == [11, 10, 9]
    del jobs["job-11"]
    assert read() == [10, 9]


def test_the_loop_goes_on_while_a_policy_decides_on_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    threads = in_thread(monkeypatch, release=release)
    request = scheduling_pb2.DecideRequest(policy="horus", snapshot=SnapshotMaker(2).make())

    async def work() -> scheduling_pb2.DecideResponse:
        deciding = asyncio.ensure_future(decide(request, predictor=None, seconds_left=90))
        await asyncio.sleep(0)
        # Nothing but the loop could let the policy go on.
        release.set()
        return await deciding

    assert asyncio.run(work()).decisions
    assert threads[0].startswith("decide")


def test_many_lists_at_once_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_listing, "JOBS_AT_ONCE", 1)
    servicer = servicer_of(full_cluster())
    made: list[int] = []
    original = job_message

    def counted(state: ClusterState, job: JobRecord) -> scheduling_pb2.Job:
        made.append(1)
        return original(state, job)

    monkeypatch.setattr(job_listing, "job_message", counted)

    async def work() -> int:
        lists = [
            asyncio.ensure_future(servicer.ListJobs(scheduling_pb2.ListJobsRequest(), NO_CONTEXT)) for _ in range(30)
        ]
        most = 0
        while not all(one.done() for one in lists):
            before = len(made)
            await asyncio.sleep(0)
            most = max(most, len(made) - before)
        return most

    assert asyncio.run(work()) <= 2
    assert len(made) == 30 * 13
