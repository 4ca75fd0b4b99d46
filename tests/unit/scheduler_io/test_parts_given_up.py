"""What the scheduler takes for true of a gang's part that it gave up, while other parts of the gang live."""

from __future__ import annotations

from cotenant.v1 import node_agent_pb2
from scheduler_service.core import events
from scheduler_service.core.records import Phase
from scheduler_service.grpc_api.agents.agent_admission import AttemptStanding, standing_of
from tests.unit.core.test_gangs_across_nodes import Spanning, spanning_node


def test_the_end_of_a_lost_part_that_came_back_counts_while_the_gang_is_held_on_its_other_node() -> None:
    """Seed 137: its GPUs stayed closed, and the gang waited for ever for an end that the node had told."""
    play = Spanning()
    play.start()
    state, record = play.engine.state, play.record
    key = node_agent_pb2.AttemptKey(job_id="j0", attempt=record.attempt, fence=record.fence)
    play.tell(events.NodeDisconnected, node_id="n0")
    play.tell(events.NodeLost, node_id="n0")
    assert (play.phase, standing_of(state, key, "n0")) == (Phase.STOPPING, AttemptStanding.STALE)
    back = events.RunningAttempt(job_id="j0", attempt=record.attempt, fence=record.fence, gpu_ids=("n0.0",))
    play.tell(events.NodeJoined, node=spanning_node("n0"), attempts=(back,))
    assert play.phase is Phase.STOPPING
    assert [standing_of(state, key, node_id) for node_id in ("n0", "n1")] == [
        AttemptStanding.GIVEN_UP,
        AttemptStanding.HELD,
    ]
    play.say("n0", events.JobStopped, exit_class="stopped")
    assert play.phase is Phase.STOPPING
    assert dict(state.abandoned_attempts) == {}
    play.say("n1", events.JobStopped, exit_class="stopped")
    assert not play.record.holds_gpus
    assert not state.gpus["n0.0"].is_releasing
    play.now_ms += 60_000
    play.tell(events.TimerFired)
    assert play.record.holds_gpus
