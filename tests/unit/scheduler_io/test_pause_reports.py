"""What agents say of pauses becomes facts, and people read it; orders about pauses become messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.agents import agent_messages
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.proto_enums import PHASES_FROM_PROTO
from scheduler_service.core import commands
from scheduler_service.core.events import AttemptPaused, AttemptReport, AttemptResumed, PauseRefused
from scheduler_service.core.records import Phase
from scheduler_service.grpc_api.agents.translate_nodes import node_message
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from tests.support.agent_streams import Cluster, hello, key, starting_engine, status
from tests.support.cases import for_each
from tests.support.live_loop import FillingLog, run

UNSAID, RUNNING, PAUSED, STOPPING = (
    messages.ATTEMPT_STATE_UNSPECIFIED,
    messages.ATTEMPT_STATE_RUNNING,
    messages.ATTEMPT_STATE_PAUSED,
    messages.ATTEMPT_STATE_STOPPING,
)


def play(work: Callable[[Cluster], Awaitable[None]]) -> list[AttemptReport]:
    """Work with an empty cluster; returns what was stored about attempts."""
    log = FillingLog()
    run(lambda loop: work(Cluster(loop)), log, starting_engine())
    return [stored.event for stored in log.read_from(1) if isinstance(stored.event, AttemptReport)]


def seen(state: messages.AttemptState.ValueType, paused_ms: int = 0, steps: int = 1) -> messages.AttemptObservation:
    return messages.AttemptObservation(key=key(), steps_done=steps, state=state, paused_ms=paused_ms)


def test_heartbeats_tell_that_a_job_is_paused_and_that_it_goes_on_and_renew_its_lease_all_the_while() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(hello("node-1"))
        await cluster.submit()
        agent.say(attempt_started=messages.AttemptStarted(key=key()))
        for state, paused_ms, phase in (
            (RUNNING, 0, "running"),
            (PAUSED, 0, "paused"),
            (PAUSED, 2_000, "paused"),
            (UNSAID, 2_000, "paused"),
            (RUNNING, 3_000, "running"),
        ):
            assert await agent.beat(seen(state, paused_ms)) == ["job-1"]
            await cluster.settle()
            assert cluster.phase() == phase
        assert cluster.loop.engine.state.jobs["job-1"].measured.paused_ms == 3_000

    told = [event for event in play(work) if isinstance(event, AttemptPaused | AttemptResumed)]
    assert [(type(event), event.paused_ms) for event in told] == [(AttemptPaused, 0), (AttemptResumed, 3_000)]


def test_an_agent_that_comes_back_says_in_its_hello_what_is_paused() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.dial(hello("node-1"))
        await cluster.submit()
        again = status(key(), PAUSED, "node-1-0")
        again.paused_ms = 4_000
        await cluster.dial(hello("node-1", again))
        await cluster.settle()
        assert (cluster.phase(), cluster.loop.engine.state.jobs["job-1"].measured.paused_ms) == ("paused", 4_000)
        await cluster.dial(hello("node-1", status(key(), RUNNING, "node-1-0")))
        await cluster.settle()
        assert cluster.phase() == "running"

    play(work)


def test_an_agent_that_knows_nothing_of_a_paused_job_may_not_join_before_its_lease_is_over() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(hello("node-1"))
        await cluster.submit()
        await agent.beat(seen(PAUSED))
        await cluster.settle()
        assert cluster.phase() == "paused"
        stranger = await cluster.dial(hello("node-1"))
        assert stranger.failure is not None
        assert "was given job-1 to run" in str(stranger.failure)

    play(work)


@for_each("believed", [True, False])
@for_each("state", [UNSAID, STOPPING, messages.ATTEMPT_STATE_PREPARING, messages.ATTEMPT_STATE_ENDED])
def test_what_says_nothing_of_a_pause_changes_nothing(
    state: messages.AttemptState.ValueType, *, believed: bool
) -> None:
    assert agent_messages.pause_change(seen(state), is_believed_paused=believed) is None


def test_a_refusal_to_pause_is_no_refusal_to_launch() -> None:
    refused = messages.CommandRefused(key=key(), code="NOT_PAUSABLE", message="x" * 10_000)
    fact = agent_messages.command_refused(refused)
    assert isinstance(fact, PauseRefused)
    assert len(fact.message) == 4_000


def test_orders_about_pauses_name_the_attempt_and_the_bound() -> None:
    values = {"node_id": "n", "job_id": "job-1", "attempt": 1, "fence": 1}
    pause = agent_messages.pause_message(commands.PauseJob(**values, cause="WHY", paused_ms_max=5_000)).pause_job  # type: ignore[arg-type]
    assert (pause.key, pause.cause, pause.paused_ms_max) == (key(), "WHY", 5_000)
    assert agent_messages.resume_message(commands.ResumeJob(**values)).resume_job.key == key()  # type: ignore[arg-type]


def test_a_paused_job_is_shown_as_a_running_one_that_is_paused_and_its_gpu_is_not_released() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(hello("node-1"))
        await cluster.submit()
        await agent.beat(seen(PAUSED, paused_ms=10))
        await cluster.settle()
        state = cluster.loop.engine.state
        shown = job_message(state, state.jobs["job-1"])
        assert (shown.phase, shown.paused_ms) == (scheduling_pb2.JOB_PHASE_RUNNING, 10)
        assert shown.pause.reason.code == "PAUSE_UNWANTED"
        assert shown.pause.until_ms == shown.pause.since_ms + 60_000
        (gpu,) = node_message(state, state.nodes["node-1"], AgentSessions()).gpus
        assert (gpu.releasing, list(gpu.job_ids)) == (False, ["job-1"])
        await agent.beat(seen(RUNNING))
        await cluster.settle()
        assert not job_message(state, state.jobs["job-1"]).HasField("pause")

    play(work)


def test_every_phase_is_found_by_one_phase_of_the_contract() -> None:
    assert PHASES_FROM_PROTO[scheduling_pb2.JOB_PHASE_RUNNING] == {Phase.RUNNING, Phase.PAUSED}
    assert sorted(phase for phases in PHASES_FROM_PROTO.values() for phase in phases) == sorted(Phase)


def test_an_order_about_a_pause_that_overtook_the_launch_does_not_lose_the_attempt() -> None:
    async def work(cluster: Cluster) -> None:
        agent = await cluster.dial(hello("node-1"))
        await cluster.submit()
        refused = messages.CommandRefused(key=key(), code="NO_SUCH_ATTEMPT", message="job-1.1 is not on this node")
        agent.say(command_refused=refused)
        await agent.beat()
        await cluster.settle()
        assert cluster.phase() == "starting"
        agent.say(attempt_started=messages.AttemptStarted(key=key()))
        await agent.beat()
        await cluster.settle()
        agent.say(command_refused=refused)
        await agent.beat()
        await cluster.settle()
        assert cluster.phase() == "pending"

    play(work)
