"""What the agents of a gang say of its parts, and what each is told of the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service.core.events import JobSubmitted, PauseRequested
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.records import JobRequest
from tests.support.agent_streams import AgentStream, Cluster, hello, key, starting_engine
from tests.support.live_loop import FillingLog, run

RUNNING, PAUSED = messages.ATTEMPT_STATE_RUNNING, messages.ATTEMPT_STATE_PAUSED
PORT = 20_007


class Gang:
    """A gang of two on two nodes, whose agents say what a test wants."""

    def __init__(self, cluster: Cluster, agents: dict[str, AgentStream]) -> None:
        self.cluster, self.agents = cluster, agents

    async def beat(
        self,
        node_id: str,
        state: messages.AttemptState.ValueType = RUNNING,
        paused_ms: int = 0,
        *,
        are_ranks_done: bool = False,
    ) -> int:
        """Tell how a part is; returns of how many other parts' ends its node is told."""
        agent = self.agents[node_id]
        await agent.beat(
            messages.AttemptObservation(key=key(), state=state, paused_ms=paused_ms, are_ranks_done=are_ranks_done)
        )
        await self.cluster.settle()
        acks = [one.heartbeat_ack for one in agent.heard if one.HasField("heartbeat_ack")]
        told = {one.key.job_id: one.parts for one in acks[-1].ended_parts}
        return told.get("job-1", 0)

    async def say(self, node_id: str, **message: object) -> None:
        self.agents[node_id].say(**message)
        await self.agents[node_id].beat()
        await self.cluster.settle()


def spanning(node_id: str) -> messages.Hello:
    said = hello(node_id)
    said.rendezvous_address, said.storage_id = f"{node_id}.example", "shared"
    return said


def play(work: Callable[[Gang], Awaitable[None]]) -> None:
    """Work with a gang whose two parts run."""

    async def begin(cluster: Cluster) -> None:
        agents = {node_id: await cluster.dial(spanning(node_id)) for node_id in ("node-1", "node-2")}
        gang = Gang(cluster, agents)
        terms = QueueTerms(across_nodes=True)
        request = JobRequest(job_id="job-1", gpus=2, global_batch_size=2, terms=terms)
        await cluster.loop.tell(JobSubmitted(at_ms=0, request=request))
        first, second = cluster.loop.engine.state.jobs["job-1"].node_ids
        await gang.say(first, attempt_started=messages.AttemptStarted(key=key(), rendezvous_port=PORT))
        await gang.say(second, attempt_started=messages.AttemptStarted(key=key()))
        assert (cluster.phase(), first, second) == ("running", "node-1", "node-2")
        await work(gang)

    run(lambda loop: begin(Cluster(loop)), FillingLog(), starting_engine())


def test_a_node_is_told_with_every_heartbeat_how_many_other_parts_have_ended_with_success() -> None:
    async def work(gang: Gang) -> None:
        assert [await gang.beat(node_id) for node_id in ("node-1", "node-2")] == [0, 0]
        ended = messages.AttemptExited(key=key(), exit_class="done", steps_done=10)
        await gang.say("node-1", attempt_exited=ended)
        assert [await gang.beat("node-2"), await gang.beat("node-2")] == [1, 1]
        assert await gang.beat("node-1") == 0
        assert gang.cluster.phase() == "running"

    play(work)


def test_parts_that_have_only_servers_left_are_told_of_each_other_as_long_as_they_say_so() -> None:
    async def work(gang: Gang) -> None:
        assert await gang.beat("node-1", are_ranks_done=True) == 0
        assert [await gang.beat("node-2"), await gang.beat("node-2", are_ranks_done=True)] == [1, 1]
        assert await gang.beat("node-1", are_ranks_done=True) == 1
        assert [await gang.beat("node-1"), await gang.beat("node-2")] == [1, 0]

    play(work)


def test_a_gang_is_paused_when_the_heartbeats_of_all_its_nodes_say_so_and_goes_on_with_the_first() -> None:
    async def work(gang: Gang) -> None:
        for node_id, state, phase in (
            ("node-2", PAUSED, "running"),
            ("node-1", PAUSED, "paused"),
            ("node-2", PAUSED, "paused"),
            ("node-2", RUNNING, "running"),
            ("node-2", RUNNING, "running"),
            ("node-1", RUNNING, "running"),
        ):
            await gang.beat(node_id, state)
            assert gang.cluster.phase() == phase
        assert gang.cluster.loop.engine.state.jobs["job-1"].gang.paused_node_ids == ()  # type: ignore[union-attr]

    play(work)


def test_a_refusal_to_pause_is_that_of_its_node() -> None:
    async def work(gang: Gang) -> None:
        await gang.cluster.loop.tell(PauseRequested(at_ms=0, job_id="job-1", paused_ms_max=60_000))
        refused = messages.CommandRefused(key=key(), code="NOT_PAUSABLE", message="an older agent")
        await gang.say("node-2", command_refused=refused)
        job = gang.cluster.loop.engine.state.jobs["job-1"]
        assert (job.phase.value, job.pause) == ("running", None)
        assert job.history[-1].message == "NOT_PAUSABLE: node node-2: an older agent"

    play(work)
