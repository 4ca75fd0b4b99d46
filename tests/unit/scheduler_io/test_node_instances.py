"""One living agent per node name, and only with what the node was given to run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service.adapters.agents.agent_refusals import Refusal
from scheduler_service.core.events import JobCancelled, NodeLost
from scheduler_service.errors import AgentProtocolError, AttemptsMissingError, LateHelloError, SecondInstanceError
from scheduler_service.live_loop import LiveLoop
from tests.support.agent_streams import LEASE_MS, AgentStream, Cluster, hello, key, starting_engine, status, until
from tests.support.cases import for_each
from tests.support.live_loop import FillingLog, run

RUNNING, ENDED = messages.ATTEMPT_STATE_RUNNING, messages.ATTEMPT_STATE_ENDED
Work = Callable[[Cluster], Awaitable[None]]


def play(work: Work) -> None:
    """Work with an empty cluster."""

    async def main(loop: LiveLoop) -> None:
        await work(Cluster(loop))

    run(main, FillingLog(), starting_engine())


def test_a_second_living_agent_of_a_node_is_refused_and_the_first_stays() -> None:
    async def work(cluster: Cluster) -> None:
        first = await cluster.dial(hello("node-1", instance_id="a"))
        for _ in range(3):
            second = await cluster.dial(hello("node-1", instance_id="b"))
            assert isinstance(second.failure, SecondInstanceError)
            assert "--node-id" in second.failure.message
        await first.beat()
        assert not first.has_ended
        assert cluster.sessions.refusals.counts == {Refusal.SECOND_INSTANCE: 3}

    play(work)


def test_an_agent_of_yesterday_that_still_holds_its_stream_is_not_evicted_by_a_new_one() -> None:
    async def work(cluster: Cluster) -> None:
        first = await cluster.dial(hello("node-1"))
        second = await cluster.dial(hello("node-1", instance_id="b"))
        assert isinstance(second.failure, SecondInstanceError)
        assert not first.has_ended

    play(work)


@pytest.mark.parametrize(("instance_id", "counted"), [("a", {}), ("", {Refusal.UNNAMED_INSTANCE: 1})])
def test_the_same_agent_and_one_that_does_not_say_which_it_is_replace_the_open_stream(
    instance_id: str, counted: dict[Refusal, int]
) -> None:
    async def work(cluster: Cluster) -> None:
        old = await cluster.dial(hello("node-1", instance_id="a"))
        new = await cluster.dial(hello("node-1", instance_id=instance_id))
        await until(lambda: old.has_ended, "the old stream ends")
        await new.beat()
        assert cluster.sessions.refusals.counts == counted

    play(work)


def test_a_stream_that_was_not_heard_within_its_lease_hinders_no_node() -> None:
    """The first agent's machine lost its power: its stream is still open here."""

    async def work(cluster: Cluster) -> None:
        old = await cluster.dial(hello("node-1", instance_id="a"))
        cluster.sessions.connected["node-1"].last_heard_at_ms -= LEASE_MS + 1_000
        await (await cluster.dial(hello("node-1", instance_id="b"))).beat()
        await until(lambda: old.has_ended, "the old stream ends")

    play(work)


def test_a_stream_that_ended_hinders_no_node() -> None:
    async def work(cluster: Cluster) -> None:
        first = await cluster.dial(hello("node-1", instance_id="a"))
        first.hang_up()
        await until(lambda: first.has_ended, "the first stream ends")
        await (await cluster.dial(hello("node-1", instance_id="b"))).beat()

    play(work)


def test_an_instance_id_of_any_length_is_not_kept() -> None:
    async def work(cluster: Cluster) -> None:
        refused = await cluster.dial(hello("node-1", instance_id="x" * 65))
        assert isinstance(refused.failure, AgentProtocolError)

    play(work)


def test_a_stream_that_is_cancelled_leaves_no_task_behind() -> None:
    async def work(cluster: Cluster) -> None:
        before = asyncio.all_tasks()
        agent = await cluster.dial(hello("node-1", instance_id="a"))
        agent._holding.cancel()
        await until(lambda: agent.has_ended, "the stream ends")
        await cluster.settle()
        assert asyncio.all_tasks() - before == set()

    play(work)


HOSTILE = "\x1b[2Jjob-1"


@for_each(
    "spoilt",
    [
        messages.Hello(rack_id=HOSTILE),
        messages.Hello(agent_version="v" * 201),
        messages.Hello(enforcements=["watchdog", "\u202edrawrof"]),
        messages.Hello(gpus=[messages.AgentGpu(gpu_id=HOSTILE, device="d")]),
        messages.Hello(gpus=[messages.AgentGpu(gpu_id="g", device="d\n")]),
        messages.Hello(attempts=[status(key(HOSTILE), messages.ATTEMPT_STATE_RUNNING)]),
        messages.Hello(attempts=[status(messages.AttemptKey(job_id="job-1", incarnation_id="a" * 65), RUNNING)]),
    ],
)
def test_texts_that_would_steer_the_terminal_of_who_lists_nodes_are_not_taken_in(spoilt: messages.Hello) -> None:
    async def work(cluster: Cluster) -> None:
        greeting = hello("node-1", instance_id="a")
        greeting.MergeFrom(spoilt)
        refused = await cluster.dial(greeting)
        assert isinstance(refused.failure, AgentProtocolError)
        assert refused.failure.message.isprintable()

    play(work)


async def run_job(cluster: Cluster, *, gpus: int = 1) -> AgentStream:
    """As many running jobs as the only node has GPUs."""
    agent = await cluster.dial(hello("node-1", instance_id="a", gpus=[str(number) for number in range(gpus)]))
    for number in range(1, gpus + 1):
        await cluster.submit(f"job-{number}")
        agent.say(attempt_started=messages.AttemptStarted(key=key(f"job-{number}", 1, number)))
    await until(lambda: cluster.phase(f"job-{gpus}") == "running", "the jobs run")
    return agent


async def vanish(agent: AgentStream) -> None:
    agent.hang_up()
    await until(lambda: agent.has_ended, "the stream ends")


def test_a_node_that_comes_back_without_its_running_job_waits_until_nothing_can_run_there() -> None:
    async def work(cluster: Cluster) -> None:
        await vanish(await run_job(cluster))
        wiped = hello("node-1", instance_id="b")
        refused = await cluster.dial(wiped)
        await cluster.settle()
        assert isinstance(refused.failure, AttemptsMissingError)
        assert "job-1" in refused.failure.message
        assert "--state-dir" in refused.failure.message
        assert LEASE_MS - 20_000 < refused.failure.retry_ms <= LEASE_MS
        assert (cluster.phase(), cluster.loop.engine.state.jobs["job-1"].attempt) == ("running", 1)
        assert cluster.sessions.refusals.counts == {Refusal.ATTEMPTS_MISSING: 1}
        await cluster.loop.tell(NodeLost(at_ms=0, node_id="node-1"))
        await (await cluster.dial(wiped)).beat()
        assert cluster.phase() == "pending"

    play(work)


def test_a_refused_agent_renews_nothing_and_evicts_no_other() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await run_job(cluster)
        before_ms = cluster.leases.remaining_ms("node-1", now_ms=0)
        assert isinstance((await cluster.dial(hello("node-1"))).failure, AttemptsMissingError)
        assert cluster.leases.remaining_ms("node-1", now_ms=0) == before_ms
        assert cluster.sessions.refusals.counts == {Refusal.ATTEMPTS_MISSING: 1}
        await agent.beat()
        assert not agent.has_ended

    play(work)


def test_a_stopping_job_is_waited_for_too() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await run_job(cluster)
        await cluster.loop.tell(JobCancelled(at_ms=0, job_id="job-1"))
        await vanish(agent)
        assert isinstance((await cluster.dial(hello("node-1", instance_id="b"))).failure, AttemptsMissingError)
        assert cluster.phase() == "stopping"

    play(work)


@pytest.mark.parametrize(
    ("listed", "phase"), [(status(key(), RUNNING), "running"), (status(key(), ENDED, exit_class="done"), "finished")]
)
def test_one_known_attempt_lets_the_node_in_and_a_missing_one_is_lost_as_ever(
    listed: messages.AttemptStatus, phase: str
) -> None:
    async def work(cluster: Cluster) -> None:
        await vanish(await run_job(cluster, gpus=2))
        again = await cluster.dial(hello("node-1", listed, instance_id="b", gpus=("0", "1")))
        await cluster.settle()
        assert again.failure is None
        assert (cluster.phase("job-1"), cluster.phase("job-2")) == (phase, "pending")

    play(work)


def test_a_hello_that_a_later_one_of_the_same_agent_has_overtaken_takes_nothing_away() -> None:
    """Seed 400346: it came before the second job's start, and vouched for the first: the second was called lost."""

    async def work(cluster: Cluster) -> None:
        overtaken = hello("node-1", status(key(), RUNNING, "node-1-0"), instance_id="a", gpus=("0", "1"))
        overtaken.dial_number = 2
        later = hello("node-1", *both_running(), instance_id="a", gpus=("0", "1"))
        later.dial_number = 3
        await vanish(await run_job(cluster, gpus=2))
        await vanish(await cluster.dial(later))
        for late in (overtaken, later):
            refused = await cluster.dial(late)
            assert isinstance(refused.failure, LateHelloError)
        await cluster.settle()
        assert [cluster.phase(job_id) for job_id in ("job-1", "job-2")] == ["running", "running"]
        assert cluster.sessions.refusals.counts == {Refusal.LATE_HELLO: 2}

    play(work)


def booted(boot_id: str, instance_id: str, *attempts: messages.AttemptStatus) -> messages.Hello:
    said = hello("node-1", *attempts, instance_id=instance_id)
    said.boot_id, said.machine_id, said.installation_id, said.dial_number = boot_id, "machine", "disk", 1
    return said


def test_a_hello_from_before_the_last_boot_takes_nothing_away() -> None:
    """Seed 511188: it was kept back until the machine ran a job again, which was called lost: the boot had changed."""

    async def work(cluster: Cluster) -> None:
        await vanish(await cluster.dial(booted("boot-1", "a")))
        agent = await cluster.dial(booted("boot-2", "b"))
        await cluster.submit("job-1")
        agent.say(attempt_started=messages.AttemptStarted(key=key()))
        await until(lambda: cluster.phase() == "running", "the job runs")
        await vanish(agent)
        late = booted("boot-1", "a")
        late.dial_number = 2
        refused = await cluster.dial(late)
        assert isinstance(refused.failure, LateHelloError)
        await cluster.settle()
        assert cluster.phase() == "running"
        assert cluster.sessions.refusals.counts == {Refusal.LATE_HELLO: 1}
        # The agent that lives, and a boot after it, come in.
        back = booted("boot-2", "b", status(key(), RUNNING, "node-1-0"))
        back.dial_number = 2
        await vanish(await cluster.dial(back))
        assert not (await cluster.dial(booted("boot-3", "c"))).failure

    play(work)


def test_a_machine_set_back_to_an_earlier_boot_comes_in_once_nothing_can_run_there() -> None:
    async def work(cluster: Cluster) -> None:
        for number, boot_id in enumerate(("boot-1", "boot-2")):
            await vanish(await cluster.dial(booted(boot_id, f"agent-{number}")))
        refused = await cluster.dial(booted("boot-1", "agent-2"))
        assert isinstance(refused.failure, LateHelloError)
        assert cluster.leases.lost(now_ms=1 << 60) == ["node-1"]
        agent = await cluster.dial(booted("boot-1", "agent-2"))
        await agent.beat()
        assert not agent.failure

    play(work)


def test_another_process_of_a_node_counts_its_hellos_anew() -> None:
    async def work(cluster: Cluster) -> None:
        for instance_id, number in (("a", 7), ("b", 1), ("b", 2)):
            said = hello("node-1", instance_id=instance_id)
            said.dial_number = number
            agent = await cluster.dial(said)
            await agent.beat()
            await vanish(agent)

    play(work)


def both_running() -> list[messages.AttemptStatus]:
    return [status(key(f"job-{number}", 1, number), RUNNING, f"node-1-{number - 1}") for number in (1, 2)]


def test_an_attempt_still_to_start_does_not_vouch_for_the_running_one() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(hello("node-1", instance_id="a", gpus=("0", "1")))
        await cluster.submit("job-1")
        await cluster.submit("job-2")
        agent.say(attempt_started=messages.AttemptStarted(key=key()))
        await until(lambda: cluster.phase() == "running", "the first job runs")
        await vanish(agent)
        starting = status(key("job-2", 1, 2), RUNNING, "node-1-1")
        again = await cluster.dial(hello("node-1", starting, instance_id="b", gpus=("0", "1")))
        assert isinstance(again.failure, AttemptsMissingError)

    play(work)


def test_a_stale_attempt_does_not_vouch_for_the_running_one() -> None:
    async def work(cluster: Cluster) -> None:
        await vanish(await run_job(cluster))
        stale = status(key("job-1", 1, 99), RUNNING, "node-1-0")
        assert isinstance((await cluster.dial(hello("node-1", stale, instance_id="b"))).failure, AttemptsMissingError)

    play(work)


def test_a_node_whose_job_is_still_to_start_joins_at_once() -> None:
    async def work(cluster: Cluster) -> None:
        first = await cluster.dial(hello("node-1", instance_id="a"))
        await cluster.submit()
        await vanish(first)
        await (await cluster.dial(hello("node-1", instance_id="b"))).beat()
        assert cluster.phase() == "starting"

    play(work)
