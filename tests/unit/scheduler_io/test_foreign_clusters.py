"""Which node may join which cluster: a job id, an attempt and a fence of another incarnation mean nothing here."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service.adapters.agents.agent_refusals import Refusal
from scheduler_service.adapters.command_performer import CommandPerformer
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.adapters.storage.cluster_identity import (
    RESTORE_UNCONFIRMED,
    STATE_BEHIND,
    ClusterIdentity,
    Generation,
    Incarnation,
    Standstill,
)
from scheduler_service.commands.audit import deeds
from scheduler_service.core.events import AttemptReport, JobCancelled
from scheduler_service.errors import AttemptsMissingError, ForeignClusterError, SecondInstanceError, StandstillError
from scheduler_service.grpc_api.restores import unknown_attempt_warnings
from scheduler_service.live_loop import LiveLoop, Mutation, Proposal
from tests.support.agent_streams import AgentStream, Cluster, hello, key, starting_engine, status, until
from tests.support.live_loop import FillingLog, run

RUNNING, ENDED = messages.ATTEMPT_STATE_RUNNING, messages.ATTEMPT_STATE_ENDED
OWN, PARENT, STRANGER = (letter * 32 for letter in "abc")
LINEAGE = (Incarnation(incarnation_id=PARENT), Incarnation(incarnation_id=OWN, first_fence=501))
FIRST = Generation(generation=1, start_id="one", first_sequence=0)
SECOND = Generation(generation=2, start_id="two", first_sequence=40)
IDENTITY = ClusterIdentity(lineage=LINEAGE, generations=(FIRST, SECOND), seal_key=b"key")
NOWHERE = messages.LogPosition()
Work = Callable[[Cluster, FillingLog], Awaitable[None]]


def play(work: Work, *, identity: ClusterIdentity = IDENTITY, standstill: Standstill | None = None) -> FillingLog:
    log = FillingLog()

    async def main(loop: LiveLoop) -> None:
        loop.engine._state.next_fence = identity.lineage[-1].first_fence
        cluster = Cluster(loop, identity=identity, standstill=standstill or Standstill())
        loop.perform = performer(cluster).perform
        await work(cluster, log)

    run(main, log, starting_engine())
    return log


def performer(cluster: Cluster) -> CommandPerformer:
    """Sends orders to agents; nothing here asks the predictor."""
    return CommandPerformer(
        sessions=cluster.sessions,
        predictor=cast("PredictorClient", None),
        launch_of=lambda _: {},
        deliver=cluster.loop.note,
        identity=cluster.identity,
        sequence=lambda: cluster.loop.sequence,
    )


def seen(incarnation_id: str, *, generation: int = 2, start_id: str = "two", sequence: int = 0) -> messages.LogPosition:
    """A position as a scheduler of that incarnation said it."""
    generations = (Generation(generation=generation, start_id=start_id, first_sequence=0),)
    lineage = (Incarnation(incarnation_id=incarnation_id),)
    said = ClusterIdentity(lineage=lineage, generations=generations, seal_key=b"key")
    position = said.position(sequence)
    return position if position is not None else messages.LogPosition()


def greeting(
    incarnation_id: str, *attempts: messages.AttemptStatus, at: messages.LogPosition = NOWHERE, **stated: Any
) -> messages.Hello:
    """The Hello of a node of that cluster."""
    made = hello("node-1", *attempts, instance_id="a")
    made.MergeFrom(messages.Hello(**stated))
    made.seen.CopyFrom(seen(incarnation_id) if at is NOWHERE else at)
    return made


def key_of(incarnation_id: str, job_id: str = "job-1", attempt: int = 1, fence: int = 501) -> messages.AttemptKey:
    return messages.AttemptKey(job_id=job_id, attempt=attempt, fence=fence, incarnation_id=incarnation_id)


def test_a_node_of_another_cluster_is_refused_with_the_remedy_and_nothing_of_it_is_ended() -> None:
    """Attack 1 C: a scheduler on an empty folder ended every running job of the cluster within seconds."""

    async def work(cluster: Cluster, log: FillingLog) -> None:
        refused = await cluster.dial(greeting(STRANGER, status(key_of(STRANGER), RUNNING, "node-1-0")))
        assert isinstance(refused.failure, ForeignClusterError)
        assert "leave-cluster" in refused.failure.message
        assert refused.heard == []
        await cluster.settle()
        assert dict(cluster.loop.engine.state.nodes) == {}
        assert cluster.sessions.refusals.counts == {Refusal.FOREIGN_CLUSTER: 1}

    play(work)


def test_a_node_with_nothing_of_its_cluster_changes_by_itself_and_brings_no_attempt_along() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        taken = status(key_of(STRANGER), RUNNING, "node-1-0")
        agent = await cluster.dial(greeting(STRANGER, taken, may_change_incarnation=True))
        await agent.beat()
        assert dict(cluster.loop.engine.state.abandoned_attempts) == {}
        welcome = agent.heard[0].welcome
        assert welcome.position.incarnation_id == OWN
        assert list(welcome.ancestor_ids) == [PARENT]

    play(work)


def test_the_kept_end_of_another_incarnations_job_ends_no_job_of_the_same_name() -> None:
    """Attack 1 B: the end of the old job-2 was taken for that of the new one, whose process was alive."""

    async def work(cluster: Cluster, log: FillingLog) -> None:
        agent = await cluster.dial(greeting(OWN))
        await cluster.submit()
        launched = await ordered(agent)
        assert launched.key == key_of(OWN)
        for other in (PARENT, STRANGER):
            told = messages.AttemptExited(key=key_of(other), exit_class="done", steps_done=10**6)
            agent.say(attempt_exited=told)
        await agent.beat()
        await cluster.settle()
        assert cluster.phase() == "starting"
        assert agent.ends_stored == ["job-1", "job-1"]

    assert [one for one in play(work).read_from(1) if isinstance(one.event, AttemptReport)] == []


async def ordered(agent: AgentStream) -> messages.LaunchJob:
    """The first launch that was ordered."""

    def found() -> list[messages.LaunchJob]:
        return [one.launch_job for one in agent.heard if one.HasField("launch_job")]

    await until(found, "a launch")
    return found()[0]


def test_another_incarnations_attempt_of_the_same_numbers_is_not_renewed_and_does_not_vouch() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        agent = await cluster.dial(greeting(OWN))
        await cluster.submit()
        await ordered(agent)
        agent.say(attempt_started=messages.AttemptStarted(key=key_of(OWN)))
        observed = messages.AttemptObservation(key=key_of(STRANGER), steps_done=900)
        assert await agent.beat(observed) == []
        assert await agent.beat(messages.AttemptObservation(key=key_of(OWN), steps_done=9)) == ["job-1"]
        agent.hang_up()
        await until(lambda: agent.has_ended, "the stream ends")
        again = await cluster.dial(greeting(OWN, status(key_of(STRANGER), RUNNING, "node-1-0")))
        assert again.failure is not None
        assert "--state-dir" in str(again.failure)

    play(work)


def test_orders_name_the_incarnation_of_their_fence_and_the_event_behind_them() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        unknown = status(key_of(PARENT, "job-77", 2, 490), RUNNING, "node-1-0")
        agent = await cluster.dial(greeting(PARENT, unknown))
        stopped = next(one.stop_job for one in agent.heard if one.HasField("stop_job"))
        assert stopped.key == unknown.key
        assert stopped.checkpoint
        agent.say(attempt_exited=messages.AttemptExited(key=unknown.key, exit_class="checkpointed"))
        await cluster.submit()
        launched = await ordered(agent)
        assert launched.key == key_of(OWN)
        assert launched.position.sequence == cluster.loop.sequence
        assert IDENTITY.is_sealed(launched.position)

    play(work)


def test_what_only_the_lost_state_knew_is_listed_until_it_has_ended_and_kept_for_the_audit() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        def listed() -> list[str]:
            return [one.message for one in unknown_attempt_warnings(cluster.loop.engine.state, IDENTITY)]

        unknown = status(key_of(PARENT, "job-77", 2, 490), RUNNING, "node-1-0")
        over = status(key_of(PARENT, "job-78", 1, 491), ENDED, exit_class="done")
        agent = await cluster.dial(greeting(PARENT, unknown, over))
        [line] = listed()
        assert "node-1 runs attempt 2 of a job-77" in line
        agent.hang_up()
        await until(lambda: agent.has_ended, "the stream ends")
        again = await cluster.dial(greeting(PARENT, unknown))
        again.say(attempt_exited=messages.AttemptExited(key=unknown.key, exit_class="checkpointed"))
        await again.beat()
        await cluster.settle()
        assert listed() == []

    [line] = deeds(play(work).read_from(1))
    assert (line["role"], line["did"]) == ("scheduler", "stop unknown")
    assert line["about"] == f"job-77 attempt 2 of {PARENT[:8]} on node-1"


def test_the_end_of_what_a_replaced_state_started_frees_its_gpu_even_where_its_fence_is_as_high_as_todays() -> None:
    """Seed 306855: restored twice from one backup, and the GPUs of what the first restore had started stayed closed."""
    identity = dataclasses.replace(IDENTITY, replaced_ids=frozenset({STRANGER}))

    async def work(cluster: Cluster, log: FillingLog) -> None:
        unknown = status(key_of(STRANGER, "job-77", 2, 900), RUNNING, "node-1-0")
        agent = await cluster.dial(greeting(STRANGER, unknown))
        assert cluster.loop.engine.state.gpus["node-1-0"].is_releasing
        # The same numbers under another incarnation are another attempt.
        for ended, is_releasing in ((key_of(PARENT, "job-77", 2, 900), True), (unknown.key, False)):
            agent.say(attempt_exited=messages.AttemptExited(key=ended, exit_class="checkpointed"))
            await agent.beat()
            await cluster.settle()
            assert cluster.loop.engine.state.gpus["node-1-0"].is_releasing == is_releasing

    play(work, identity=identity)


def test_an_unwanted_attempt_of_this_incarnation_is_stopped_without_such_a_line() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        await cluster.dial(greeting(OWN, status(key_of(OWN, "job-5", 1, 505), RUNNING, "node-1-0")))
        assert len(cluster.loop.engine.state.abandoned_attempts) == 1
        assert unknown_attempt_warnings(cluster.loop.engine.state, IDENTITY) == []

    assert list(deeds(play(work).read_from(1))) == []


def test_a_long_list_of_unknown_attempts_is_cut_with_their_number() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        unknown = [status(key_of("", f"job-{n}", 1, 400), RUNNING, "node-1-0") for n in range(25)]
        await cluster.dial(greeting(PARENT, *unknown))
        warnings = unknown_attempt_warnings(cluster.loop.engine.state, IDENTITY)
        assert len(warnings) == 21
        assert warnings[-1].message.startswith("5 more")

    assert len(list(deeds(play(work).read_from(1)))) == 25


@pytest.mark.parametrize(
    ("position", "finding"),
    [
        (seen(OWN, generation=3, start_id="three", sequence=2), "start 3"),
        (seen(OWN, sequence=1_000), "event 1000"),
        (seen(OWN, generation=1, start_id="one", sequence=41), "event 41"),
        (seen(OWN, generation=2, start_id="fork"), "another copy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("newest_dial", [1, 3])
def test_a_scheduler_that_is_behind_what_a_node_saw_stops_acting(
    position: messages.LogPosition, finding: str, newest_dial: int
) -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        other = await cluster.dial(hello("node-2", instance_id="b"))
        # Also where the word comes after a later one, and would be refused for that: seeds 520374 and 525289.
        await cluster.dial(greeting(OWN, dial_number=newest_dial))
        refused = await cluster.dial(greeting(OWN, at=position, dial_number=2))
        assert isinstance(refused.failure, StandstillError)
        assert finding in refused.failure.message
        assert cluster.standstill.code == STATE_BEHIND
        cluster.servicer.tick()
        await until(lambda: other.has_ended, "every stream ends")
        assert isinstance((await cluster.dial(hello("node-2", instance_id="b"))).failure, StandstillError)

    play(work)


def test_a_scheduler_that_is_behind_takes_no_request_and_goes_on_storing_facts() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        cluster.loop.refusal = lambda: cluster.standstill.refusal
        cancel = Mutation(propose=lambda: Proposal(event=JobCancelled(at_ms=0, job_id="job-1"), answer="job-1"))
        cluster.standstill.await_confirmation()
        await cluster.submit()
        assert await cluster.loop.mutate(cancel) == "job-1"
        cluster.standstill.fall_behind("a node saw event 7")
        with pytest.raises(StandstillError, match="event 7"):
            await cluster.loop.mutate(cancel)
        await cluster.settle()

    play(work)


def test_a_node_that_invents_a_later_position_stops_nobody_but_itself() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        forged = greeting(OWN, at=seen(OWN, generation=9, start_id="nine"))
        forged.seen.seal = b"0123456789abcdef"
        refused = await cluster.dial(forged)
        assert isinstance(refused.failure, ForeignClusterError)
        assert "never said" not in cluster.standstill.message == ""
        await (await cluster.dial(hello("node-2", instance_id="b"))).beat()

    play(work)


def test_while_the_scheduler_stands_still_no_node_is_given_up() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        agent = await cluster.dial(greeting(OWN))
        cluster.standstill.await_confirmation()
        cluster.servicer.tick()
        await until(lambda: agent.has_ended, "the stream ends")
        cluster.leases.renew("node-1", now_ms=cluster.loop.clock.now_ms() - 10**9)
        cluster.servicer.tick()
        assert cluster.leases.lost(now_ms=cluster.loop.clock.now_ms()) == []
        refused = await cluster.dial(greeting(PARENT))
        assert isinstance(refused.failure, StandstillError)
        assert "cotenant nodes confirm" in refused.failure.message
        assert cluster.standstill.code == RESTORE_UNCONFIRMED
        cluster.standstill.end()
        await (await cluster.dial(greeting(PARENT))).beat()

    play(work)


def test_an_attempt_of_the_parent_that_the_restored_state_knows_is_adopted() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        cluster.loop.engine._state.next_fence = 7
        first = await cluster.dial(greeting(PARENT))
        await cluster.submit()
        assert (await ordered(first)).key == key_of(PARENT, fence=7)
        first.hang_up()
        await until(lambda: first.has_ended, "the stream ends")
        again = await cluster.dial(greeting(PARENT, status(key_of(PARENT, fence=7), RUNNING, "node-1-0")))
        await again.beat()
        assert cluster.phase() == "running"
        assert not [one for one in again.heard if one.HasField("stop_job")]

    play(work)


def test_after_a_restore_an_agent_without_a_past_joins_when_what_nobody_knows_of_has_ended() -> None:
    """Seed 55468 of the swarm: a node was wiped after a restore, and its GPUs were given away beneath its jobs."""

    async def work(cluster: Cluster, log: FillingLog) -> None:
        cluster.loop.engine._state.settled_at_ms = cluster.loop.clock.now_ms() + 9_000
        refused = await cluster.dial(greeting("", at=messages.LogPosition(sequence=0)))
        assert isinstance(refused.failure, AttemptsMissingError)
        assert 0 < refused.failure.retry_ms <= 9_000
        assert "--state-dir" in refused.failure.message
        await cluster.dial(greeting(PARENT))
        await until(lambda: "node-1" in cluster.loop.engine.state.nodes, "the node of the parent joins")
        cluster.loop.engine._state.settled_at_ms = cluster.loop.clock.now_ms()
        other = hello("node-2", instance_id="b")
        assert (await cluster.dial(other)).failure is None

    play(work)


def test_an_agent_that_knows_no_incarnations_is_served_as_ever() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        agent = await cluster.dial(hello("node-1", instance_id="a"))
        await cluster.submit()
        launched = await ordered(agent)
        agent.say(attempt_started=messages.AttemptStarted(key=key(fence=launched.key.fence)))
        await until(lambda: cluster.phase() == "running", "the start is believed")

    play(work)


def test_a_report_over_a_replaced_stream_does_not_count() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        old = await cluster.dial(greeting(OWN))
        await cluster.submit()
        await ordered(old)
        again = greeting(OWN)
        again.session_secret = old.heard[0].welcome.session_secret
        session = cluster.sessions.connected["node-1"]
        new = await cluster.dial(again)
        assert not cluster.sessions.holds(session)
        assert new.heard[0].welcome.session_secret != again.session_secret
        assert new.failure is None

    play(work)


@pytest.mark.parametrize("secret", ["", "guessed"])
def test_knowing_an_agents_instance_is_not_enough_to_replace_its_stream(secret: str) -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        first = await cluster.dial(greeting(OWN))
        copied = greeting(OWN)
        copied.session_secret = secret
        refused = await cluster.dial(copied)
        assert isinstance(refused.failure, SecondInstanceError)
        await first.beat()
        assert not first.has_ended

    play(work)


def test_an_agent_whose_welcome_was_lost_may_dial_again() -> None:
    async def work(cluster: Cluster, log: FillingLog) -> None:
        lost = AgentStream(cluster.servicer)
        lost.say(hello=greeting(OWN))
        await until(lambda: lost.heard, "a Welcome that never arrives")
        await (await cluster.dial(greeting(OWN))).beat()

    play(work)
