"""What a node says of an attempt counts only if it holds that attempt."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service.adapters.agents.agent_refusals import QUIET_MS, REMEMBERED_MAX, AgentRefusals, Refusal
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity
from scheduler_service.core.events import AttemptReport, JobSubmitted
from scheduler_service.core.jobs.job_parts import JobMoves
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.preparation_records import Preparation
from scheduler_service.core.records import JobRequest
from scheduler_service.grpc_api.agents.agent_admission import AgentAdmission
from scheduler_service.live_loop import LiveLoop
from tests.support.agent_streams import AgentStream, Cluster, hello, key, starting_engine, status, until
from tests.support.cases import for_each
from tests.support.live_loop import FillingLog, run

RUNNING, ENDED = messages.ATTEMPT_STATE_RUNNING, messages.ATTEMPT_STATE_ENDED
Work = Callable[[Cluster, FillingLog], Awaitable[None]]


def play(work: Work) -> FillingLog:
    """Work with an empty cluster; returns its log."""
    log = FillingLog()

    async def main(loop: LiveLoop) -> None:
        await work(Cluster(loop), log)

    run(main, log, starting_engine())
    return log


def reports(log: FillingLog) -> list[str]:
    """What was stored about attempts."""
    return [type(stored.event).__name__ for stored in log.read_from(1) if isinstance(stored.event, AttemptReport)]


async def start_on_first(cluster: Cluster) -> tuple[AgentStream, AgentStream]:
    """A job that was sent to the first of two nodes; returns their streams."""
    first = await cluster.dial(hello("node-1"))
    await cluster.submit()
    second = await cluster.dial(hello("node-2"))
    assert (cluster.node_of(), cluster.phase()) == ("node-1", "starting")
    return first, second


LIES: dict[str, dict[str, Any]] = {
    "the end of a job": {"attempt_exited": messages.AttemptExited(key=key(), exit_class="done", steps_done=10)},
    "a failure": {"attempt_exited": messages.AttemptExited(key=key(), exit_class="error", exit_code=1)},
    "a start": {"attempt_started": messages.AttemptStarted(key=key())},
    "that it lost the job": {"command_refused": messages.CommandRefused(key=key(), code="NO_SUCH_ATTEMPT")},
    "that it will not start it": {"command_refused": messages.CommandRefused(key=key(), code="OVER_CAPACITY")},
}


@for_each("lie", LIES)
def test_a_node_says_of_another_nodes_job_what_it_likes_and_nothing_comes_of_it(lie: str) -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        _, liar = await start_on_first(cluster)
        liar.say(**LIES[lie])
        await liar.beat()
        await cluster.settle()
        assert (cluster.phase(), liar.ends_stored) == ("starting", [])
        assert cluster.sessions.refusals.counts == {Refusal.FOREIGN_ATTEMPT: 1}
        assert not liar.has_ended

    assert reports(play(work)) == []


@pytest.mark.parametrize("claimed", [status(key(), ENDED, exit_class="done"), status(key(), RUNNING, "node-1-0")])
def test_a_hello_with_another_nodes_job_leaves_that_job_and_its_gpu_alone(claimed: messages.AttemptStatus) -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        first, _ = await start_on_first(cluster)
        liar = await cluster.dial(hello("node-3", claimed))
        await cluster.settle()
        state = cluster.loop.engine.state
        assert (cluster.phase(), liar.ends_stored, dict(state.abandoned_attempts)) == ("starting", [], {})
        assert not state.gpus["node-1-0"].is_releasing
        assert "node-3" in state.nodes
        first.say(attempt_exited=messages.AttemptExited(key=key(), exit_class="done"))
        await until(lambda: cluster.phase() == "finished", "the end that its own node reports")

    play(work)


def test_a_lie_drops_no_progress_that_waits() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        first, liar = await start_on_first(cluster)
        seen = messages.AttemptObservation(key=key(), steps_done=7, window_steps=7, window_ms=70)
        assert await first.beat(seen) == ["job-1"]
        assert await liar.beat(seen) == []
        liar.say(attempt_exited=messages.AttemptExited(key=key(), exit_class="done"))
        await liar.beat()
        cluster.servicer.tick()
        await until(lambda: cluster.loop.engine.state.jobs["job-1"].steps_done == 7, "the progress that waited")

    assert reports(play(work)) == ["JobProgressed"]


def test_the_end_that_a_jobs_own_node_reports_is_stored_and_acknowledged() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        first, _ = await start_on_first(cluster)
        first.say(attempt_started=messages.AttemptStarted(key=key()))
        first.say(attempt_exited=messages.AttemptExited(key=key(), exit_class="done"))
        await until(lambda: first.ends_stored == ["job-1"], "the acknowledgement")
        assert (cluster.phase(), dict(cluster.sessions.refusals.counts)) == ("finished", {})

    assert reports(play(work)) == ["JobStarted", "JobFinished"]


def test_a_result_reported_before_its_job_is_started_does_not_wait_for_it() -> None:
    """Fences are numbers in a row: an agent that guesses the next one must not end what is about to start."""

    async def work(cluster: Cluster, log: FillingLog) -> None:
        await cluster.dial(hello("node-1"))
        liar = await cluster.dial(hello("node-2", gpus=()))
        log.is_full = True
        cluster.loop.note(JobSubmitted(at_ms=0, request=JobRequest(job_id="job-1")))
        liar.say(attempt_exited=messages.AttemptExited(key=key(), exit_class="done", steps_done=10))
        await liar.beat()
        log.is_full = False
        await cluster.settle()
        assert (cluster.node_of(), cluster.phase()) == ("node-1", "starting")

    assert reports(play(work)) == []


def test_the_end_of_an_attempt_that_was_given_up_frees_its_gpu_and_is_acknowledged() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        old = status(key("job-9", 3, 7), RUNNING, "node-1-0")
        first = await cluster.dial(hello("node-1", old))
        gpus = cluster.loop.engine.state.gpus
        assert gpus["node-1-0"].is_releasing
        liar = await cluster.dial(hello("node-2", old))
        liar.say(attempt_exited=messages.AttemptExited(key=old.key, exit_class="stopped"))
        await liar.beat()
        await cluster.settle()
        assert gpus["node-1-0"].is_releasing
        first.say(attempt_exited=messages.AttemptExited(key=old.key, exit_class="stopped"))
        await until(lambda: first.ends_stored == ["job-9"], "the acknowledgement")
        assert [view.is_releasing for view in gpus.values()] == [False, False]

    assert reports(play(work)) == ["JobStopped"]


def test_an_attempt_that_was_given_up_takes_no_gpu_of_another_node() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        await cluster.dial(hello("node-1"))
        await cluster.dial(hello("node-2", status(key("job-9", 3, 7), RUNNING, "node-1-0", "node-2-0")))
        gpus = cluster.loop.engine.state.gpus
        assert [gpus[f"node-{number}-0"].is_releasing for number in (1, 2)] == [False, True]

    play(work)


def test_an_end_that_no_attempt_waits_for_is_acknowledged_and_stored_nowhere() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        agent = await cluster.dial(hello("node-1"))
        agent.say(attempt_exited=messages.AttemptExited(key=key("job-77"), exit_class="done"))
        await until(lambda: agent.ends_stored == ["job-77"], "the acknowledgement")

    assert reports(play(work)) == []


def test_a_liar_is_counted_each_time_and_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    refusals = AgentRefusals()
    with caplog.at_level(logging.WARNING):
        for now_ms in range(0, 2 * QUIET_MS, 1_000):
            refusals.note("node-2", Refusal.FOREIGN_ATTEMPT, now_ms=now_ms, job_id="job-1")
        refusals.note("node-3", Refusal.FOREIGN_ATTEMPT, now_ms=0)
    assert refusals.counts[Refusal.FOREIGN_ATTEMPT] == 121
    assert [record.__dict__["node_id"] for record in caplog.records] == ["node-2", "node-2", "node-3"]


def test_what_is_remembered_of_liars_is_bounded() -> None:
    refusals = AgentRefusals()
    for number in range(REMEMBERED_MAX + 50):
        refusals.note(f"node-{number}", Refusal.FOREIGN_ATTEMPT, now_ms=0)
    assert len(refusals._told_at_ms) == REMEMBERED_MAX


def test_a_prepared_attempt_is_reported_by_the_node_that_prepares_it_and_by_no_other() -> None:
    job = JobRecord(
        request=JobRequest(job_id="j"),
        node_ids=("old",),
        moves=JobMoves(preparation=Preparation(attempt=2, fence=2, until_ms=9, node_id="new")),
    )
    loop: Any = SimpleNamespace(engine=SimpleNamespace(state=SimpleNamespace(jobs={"j": job})))
    nothing: Any = None
    admission = AgentAdmission(
        loop=loop, sessions=nothing, leases=nothing, lease_ms=1, identity=ClusterIdentity(), standstill=nothing
    )
    named = messages.AttemptKey(job_id="j", attempt=2, fence=2)
    assert [admission.is_awaited(node_id, named) for node_id in ("new", "old", "other")] == [True, False, False]
    assert not admission.is_awaited("new", messages.AttemptKey(job_id="j", attempt=1, fence=1))
