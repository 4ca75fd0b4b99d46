"""A node that comes back: after a reboot, on another machine, under another name, or never."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.agents.agent_refusals import Refusal
from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.system_clock import read_boot_id
from scheduler_service.core.events import NodeForgotten, NodeLost
from scheduler_service.errors import AttemptsMissingError, GpuTakenError, NodeHeardError, UnknownNodeError
from scheduler_service.grpc_api.jobs.job_requests import forgetting
from scheduler_service.live_loop import LiveLoop
from tests.support.agent_streams import AgentStream, Cluster, hello, key, starting_engine, status, until
from tests.support.cases import for_each
from tests.support.live_loop import FillingLog, run

RUNNING, ENDED = messages.ATTEMPT_STATE_RUNNING, messages.ATTEMPT_STATE_ENDED
Work = Callable[[Cluster], Awaitable[None]]
HERE = {"machine_id": "m", "installation_id": "i", "boot_id": "first"}


def play(work: Work, log: FillingLog | None = None) -> FillingLog:
    log = log or FillingLog()

    async def main(loop: LiveLoop) -> None:
        await work(Cluster(loop))

    run(main, log, starting_engine())
    return log


def kinds(log: FillingLog, *wanted: type) -> list[str]:
    return [type(one.event).__name__ for one in log.read_from(1) if isinstance(one.event, wanted)]


def greeting(node_id: str, *attempts: messages.AttemptStatus, gpus: str = "0", **place: str) -> messages.Hello:
    made = hello(node_id, *attempts, instance_id="a", gpus=gpus.split())
    made.MergeFrom(messages.Hello(**{**HERE, **place}))  # type: ignore[arg-type]
    return made


async def vanish(agent: AgentStream) -> None:
    agent.hang_up()
    await until(lambda: agent.has_ended, "the stream ends")


async def run_job(cluster: Cluster, **place: str) -> None:
    """A job that runs on node-1, which then falls silent."""
    agent = await cluster.dial(greeting("node-1", **place))
    await cluster.submit()
    agent.say(attempt_started=messages.AttemptStarted(key=key()))
    await until(lambda: cluster.phase() == "running", "the job runs")
    await vanish(agent)


def test_a_rebooted_node_without_its_attempts_loses_them_at_once() -> None:
    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        back = await cluster.dial(greeting("node-1", boot_id="second"))
        await back.beat()
        assert (cluster.phase(), cluster.loop.engine.state.jobs["job-1"].counts.restarts) == ("pending", 1)

    play(work)


@for_each(
    "place",
    [
        {"boot_id": "first"},
        {"boot_id": ""},
        {"boot_id": "second", "machine_id": ""},
        {"boot_id": "second", "machine_id": "clone"},
        {"boot_id": "second", "installation_id": "wiped"},
        {"boot_id": "second", "gpus": "0 1"},
    ],
)
def test_whatever_else_comes_back_without_them_waits_for_the_leases(place: dict[str, Any]) -> None:
    """A wiped folder, a copied machine, another card: the processes may run on."""

    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        refused = await cluster.dial(greeting("node-1", **place))
        assert isinstance(refused.failure, AttemptsMissingError)
        assert cluster.phase() == "running"

    play(work)


@for_each(("boot_id", "same_boot"), [(read_boot_id(), True), ("another", False), ("", False)])
def test_a_node_is_told_whether_its_leases_stand_still_while_it_sleeps(boot_id: str, same_boot: bool) -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(greeting("node-1", boot_id=boot_id))
        assert agent.heard[0].welcome.same_boot is same_boot

    assert read_boot_id() != ""
    play(work)


class SlowLog(FillingLog):
    """A log whose disk takes its time while `is_written` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()
        self.is_written.set()

    def append(self, records: Sequence[LogRecord]) -> int:
        self.is_written.wait()
        return super().append(records)


async def greet(cluster: Cluster, made: messages.Hello) -> AgentStream:
    """Say hello and wait for the answer; what it said is not noted yet."""
    stream = AgentStream(cluster.servicer)
    stream.say(hello=made)
    await until(lambda: stream.heard or stream.has_ended, "an answer to the Hello")
    return stream


@pytest.mark.parametrize("is_listed", [False, True], ids=["told on its stream", "listed by its hello"])
def test_an_old_greeting_that_comes_late_does_not_end_what_the_disk_has_yet_to_note_as_running(is_listed: bool) -> None:
    """Swarm seed 1800: it was compared with a state that had the job as starting, and took effect when that ran."""
    log = SlowLog()

    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(greeting("node-1"))
        await cluster.submit()
        assert cluster.phase() == "starting"
        log.is_written.clear()
        try:
            if is_listed:
                agent = await greet(cluster, greeting("node-1", status(key(), RUNNING, "node-1-0")))
            else:
                agent.say(attempt_started=messages.AttemptStarted(key=key()))
                await agent.beat()
            late = await greet(cluster, greeting("node-1"))
        finally:
            log.is_written.set()
        await until(lambda: cluster.phase() != "starting", "the disk has taken what was said")
        await cluster.settle()
        assert (type(late.failure), cluster.phase()) == (AttemptsMissingError, "running")

    play(work, log)


def test_a_folder_that_was_moved_to_another_machine_does_not_end_what_runs_on_the_first() -> None:
    """Its agent finds no process and calls each attempt lost, while they run on under their leases."""

    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        lost = status(key(), ENDED, exit_class="lost")
        refused = await cluster.dial(greeting("node-1", lost, machine_id="other", boot_id="other"))
        assert isinstance(refused.failure, AttemptsMissingError)
        assert "another machine" in refused.failure.message
        assert cluster.phase() == "running"
        await cluster.loop.tell(NodeLost(at_ms=0, node_id="node-1"))
        await (await cluster.dial(greeting("node-1", lost, machine_id="other", boot_id="other"))).beat()

    play(work)


@pytest.mark.parametrize("place", [{"installation_id": "copy"}, {"boot_id": "image", "gpus": "1"}], ids=str)
def test_a_copy_of_the_folder_does_not_end_what_the_first_one_runs(place: dict[str, Any]) -> None:
    """Swarm seed 40001: it lists the attempt, which it calls lost, and was believed about all of them."""

    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        lost = status(key(), ENDED, exit_class="lost")
        refused = await cluster.dial(greeting("node-1", lost, **place))
        assert isinstance(refused.failure, AttemptsMissingError)
        assert cluster.phase() == "running"

    play(work)


def test_gpus_of_an_attempt_that_was_given_up_are_not_freed_by_another_folder() -> None:
    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        await cluster.loop.tell(NodeLost(at_ms=0, node_id="node-1"))
        stale = await cluster.dial(greeting("node-1", status(key(), RUNNING, "node-1-0")))
        await stale.beat()
        await vanish(stale)
        wiped = await cluster.dial(greeting("node-1", installation_id="wiped"))
        assert isinstance(wiped.failure, AttemptsMissingError)
        assert cluster.loop.engine.state.gpus["node-1-0"].is_releasing

    play(work)


def renamed(node_id: str) -> messages.Hello:
    """The card of node-1 in another node."""
    made = greeting(node_id)
    made.gpus[0].gpu_id = "node-1-0"
    return made


def test_a_moved_card_is_taken_over_once_its_former_node_is_lost() -> None:
    """Attack 6: a renamed node was locked out for ever."""

    async def work(cluster: Cluster) -> None:
        former = await cluster.dial(greeting("node-1"))
        refused = await cluster.dial(renamed("node-2"))
        assert isinstance(refused.failure, GpuTakenError)
        assert "cotenant nodes forget node-1" in refused.failure.message
        await vanish(former)
        waiting = await cluster.dial(renamed("node-2"))
        assert isinstance(waiting.failure, GpuTakenError)
        now_ms = cluster.loop.clock.now_ms()
        cluster.leases.renew("node-1", now_ms=now_ms - cluster.leases.lost_after_ms)
        cluster.servicer.tick()
        await cluster.settle()
        await (await cluster.dial(renamed("node-2"))).beat()
        state = cluster.loop.engine.state
        assert (list(state.nodes), state.gpus["node-1-0"].node_id) == (["node-2"], "node-2")
        await cluster.submit()
        assert cluster.node_of() == "node-2"

    play(work)


def test_a_card_is_not_taken_from_a_node_that_may_still_run_a_job_on_it() -> None:
    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        assert isinstance((await cluster.dial(renamed("node-2"))).failure, GpuTakenError)
        assert cluster.phase() == "running"

    play(work)


async def forget(cluster: Cluster, node_id: str) -> str:
    request = scheduling_pb2.ForgetNodeRequest(request_id="r", node_id=node_id)
    mutation = forgetting(request, cluster.loop.engine, cluster.sessions.connected)
    return await cluster.loop.mutate(mutation)


def test_a_silent_node_is_forgotten_at_once_with_what_it_ran_and_its_card_is_free() -> None:
    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        assert await forget(cluster, "node-1") == "job-1"
        assert await forget(cluster, "node-1") == "job-1"
        state = cluster.loop.engine.state
        assert (dict(state.nodes), dict(state.gpus), cluster.phase()) == ({}, {}, "pending")
        cluster.leases.renew("node-1", now_ms=cluster.loop.clock.now_ms() - cluster.leases.lost_after_ms)
        await (await cluster.dial(renamed("node-2"))).beat()
        assert list(state.nodes) == ["node-2"]

    assert kinds(play(work), NodeForgotten) == ["NodeForgotten"]


def test_a_node_that_is_heard_is_not_forgotten_and_one_that_is_not_known_is_named() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(greeting("node-1"))
        with pytest.raises(NodeHeardError, match="stop its agent"):
            await forget(cluster, "node-1")
        with pytest.raises(UnknownNodeError, match="node-9"):
            await forget(cluster, "node-9")
        await agent.beat()

    assert kinds(play(work), NodeForgotten) == []


def test_a_forgotten_node_that_comes_back_is_told_to_end_what_it_still_runs() -> None:
    async def work(cluster: Cluster) -> None:
        await run_job(cluster)
        await forget(cluster, "node-1")
        await (await cluster.dial(greeting("node-1", status(key(), RUNNING, "node-1-0")))).beat()
        state = cluster.loop.engine.state
        assert list(state.abandoned_attempts) == [("job-1", 1, 1, "node-1")]
        assert state.gpus["node-1-0"].is_releasing

    play(work)


def test_a_report_over_a_stream_that_was_replaced_does_not_count() -> None:
    """A lease must not be renewed, nor a job ended, by whoever holds a dead session."""

    async def work(cluster: Cluster) -> None:
        old = await cluster.dial(greeting("node-1"))
        await cluster.submit()
        old.say(attempt_started=messages.AttemptStarted(key=key()))
        await until(lambda: cluster.phase() == "running", "the job runs")
        session = cluster.sessions.connected["node-1"]
        cluster.sessions.open("node-1", now_ms=cluster.loop.clock.now_ms(), instance_id="a")
        session.closed.clear()
        old.say(attempt_exited=messages.AttemptExited(key=key(), exit_class="done", steps_done=10**6))
        await until(lambda: old.has_ended or cluster.phase() != "running", "the report is taken or refused")
        await cluster.settle()
        assert (cluster.phase(), old.ends_stored) == ("running", [])
        assert cluster.sessions.refusals.counts == {Refusal.ENDED_SESSION: 1}

    play(work)


@for_each(
    ("place", "is_admitted"),
    [
        ({}, True),
        ({"boot_id": "second"}, True),
        ({"installation_id": "wiped"}, False),
        ({"machine_id": "other", "boot_id": "other"}, False),
        ({"boot_id": "image", "gpus": "1"}, False),
    ],
)
def test_a_launch_without_an_answer_is_repeated_to_the_folder_that_may_have_had_it_only(
    place: dict[str, Any], is_admitted: bool
) -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(greeting("node-1"))
        await cluster.submit()
        await until(lambda: cluster.phase() == "starting", "the order is on its way")
        await vanish(agent)
        back = await cluster.dial(greeting("node-1", **place))
        assert (back.failure is None) is is_admitted
        assert is_admitted or isinstance(back.failure, AttemptsMissingError)
        assert cluster.phase() == "starting"

    play(work)
