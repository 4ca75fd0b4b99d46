"""A job that may span nodes: where it is placed, how its parts begin one by one, and that they end together."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.codec import decode, encode
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.queue_events import NodeCordoned
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import GANG_TRANSFERS, Phase
from scheduler_service.policies.elasticity.reshaping import elastic_jobs, more_gpus
from scheduler_service.policy_registry import make_policy, policy_names
from tests.support.cases import for_each
from tests.support.gang_scene import GangScene
from tests.support.scheduling import explained, job, node, running, view

PORT = 20_007
ACROSS = QueueTerms(across_nodes=True)
ENDS = (
    (events.JobFailed, {"exit_class": "signal", "exit_code": -9}),
    (events.JobStopped, {"exit_class": "checkpointed", "exit_code": 85}),
    (events.LaunchRefused, {"code": "NO_FREE_PORT"}),
)


def spanning_node(node_id: str, gpus: int = 1, **changes: Any) -> Any:
    facts = {"rendezvous_address": f"10.0.0.{node_id[-1]}", "storage_id": "shared", "machine_id": node_id, **changes}
    return node(node_id, gpus, **facts)


class Spanning(GangScene):
    """Nodes with one GPU each that share their storage, and one gang of two."""

    def __init__(self, *nodes: Any, policy: str = "fifo", **changes: Any) -> None:
        super().__init__(SchedulerEngine(make_policy=make_policy, policy=policy))
        for one in nodes or (spanning_node("n0"), spanning_node("n1")):
            self.tell(events.NodeJoined, node=one)
        request = job(**{"key": "", "gpus": 2, "global_batch_size": 2, "terms": ACROSS, **changes})
        self.orders = self.tell(events.JobSubmitted, request=request)

    def start(self) -> None:
        self.say("n0", events.JobStarted, rendezvous_port=PORT)
        self.say("n1", events.JobStarted)

    @property
    def why(self) -> str:
        return explained(self.engine, "j0").reason.code

    @property
    def are_gpus_taken(self) -> bool:
        return all(view.job_ids == ("j0",) for view in self.engine.state.gpus.values())


def test_the_first_node_is_launched_alone_and_the_others_at_the_port_that_it_says() -> None:
    spanning = Spanning()
    (first,) = spanning.orders
    assert (first.node_id, first.gang_part) == (
        "n0",
        commands.GangPart(world_size=2, group_rank=0, nodes=2, master_address="10.0.0.0", master_port=0),
    )
    (second,) = spanning.say("n0", events.JobStarted, rendezvous_port=PORT)
    assert (second.node_id, second.gang_part) == (
        "n1",
        commands.GangPart(world_size=2, group_rank=1, nodes=2, master_address="10.0.0.0", master_port=PORT),
    )
    assert [one.rank for one in second.assignments] == [1]
    assert spanning.phase.value == "starting"
    spanning.say("n1", events.JobStarted)
    assert spanning.phase.value == "running"


def test_a_job_that_does_not_say_so_keeps_to_one_node() -> None:
    spanning = Spanning(terms=QueueTerms())
    assert spanning.orders == []
    assert spanning.why == "GANG_NEEDS_MORE_NODES"


@for_each("policy", ["horus", "sjf_bsbf", "sjf_ffs", "srtf", "optimus", "ojpp", "elastic", "tiresias"])
def test_policies_that_place_gangs_over_nodes_do_so_for_it(policy: str) -> None:
    spanning = Spanning(policy=policy)
    assert spanning.record.node_ids == ("n0", "n1")


def test_the_ranks_of_a_node_follow_each_other() -> None:
    spanning = Spanning(spanning_node("n0", 2), spanning_node("n1", 2), policy="optimus", gpus=4, global_batch_size=4)
    state = spanning.engine.state
    by_rank = [state.gpus[part.gpu_id].node_id for part in spanning.record.assignments]
    assert by_rank == sorted(by_rank, key=list(spanning.record.node_ids).index)
    assert [part.rank for part in spanning.record.assignments] == [0, 1, 2, 3]


def test_nodes_without_the_same_storage_are_not_spanned() -> None:
    spanning = Spanning(spanning_node("n0", storage_id="a"), spanning_node("n1", storage_id="b"))
    assert spanning.orders == []
    assert spanning.why in ("GPUS_NOT_IN_CLUSTER", "GANG_NEEDS_MORE_NODES")
    plain = Spanning(node("n0"), node("n1"))
    assert plain.orders == []


def sending_node(node_id: str, gpus: int = 1, **changes: Any) -> Any:
    return spanning_node(node_id, gpus, **{"storage_id": "", "enforcements": (GANG_TRANSFERS,), **changes})


def test_nodes_that_send_each_other_their_checkpoints_are_spanned_but_not_with_one_that_shares_storage() -> None:
    assert Spanning(sending_node("n0"), sending_node("n1")).record.node_ids == ("n0", "n1")
    assert Spanning(sending_node("n0"), spanning_node("n1")).orders == []


def test_all_parts_go_on_from_what_the_first_node_has_chosen_and_fetch_it_there() -> None:
    spanning = Spanning(sending_node("n0"), sending_node("n1"))
    first_fence = spanning.record.fence
    spanning.start()
    spanning.say("n1", events.JobFailed, exit_class="signal", exit_code=-9)
    spanning.say("n0", events.JobStopped, exit_class="checkpointed", exit_code=85, steps_done=5, checkpoint_step=5)
    spanning.now_ms += 600_000
    (first,) = spanning.tell(events.TimerFired)
    assert (first.granted_fences, first.gang_part.resumed_fence) == ((first_fence,), 0)
    (second,) = spanning.say(first.node_id, events.JobStarted, rendezvous_port=PORT, resumed_fence=first_fence)
    assert (second.gang_part.resumed_fence, second.gang_part.resumed_node_id) == (first_fence, first.node_id)


def test_an_address_that_means_the_machine_itself_is_no_use_on_another() -> None:
    spanning = Spanning(spanning_node("n0", rendezvous_address="127.0.0.1"), spanning_node("n1"))
    assert spanning.orders == []
    assert spanning.why == "NODES_NOT_REACHABLE"
    assert "--rendezvous-host" in describe_reason(explained(spanning.engine, "j0").reason)
    one_machine = [spanning_node(name, rendezvous_address="127.0.0.1", machine_id="m") for name in ("n0", "n1")]
    assert len(Spanning(*one_machine).orders) == 1


@pytest.mark.parametrize(("kind", "how"), ENDS)
def test_where_one_part_ends_the_others_are_stopped_and_their_gpus_stay_taken(
    kind: type[events.PartReport], how: dict[str, Any]
) -> None:
    spanning = Spanning()
    spanning.say("n0", events.JobStarted, rendezvous_port=PORT)
    if kind is not events.LaunchRefused:
        spanning.say("n1", events.JobStarted)
    (stop,) = spanning.say("n1", kind, **how)
    assert (stop.node_id, stop.checkpoint, stop.cause) == ("n0", True, "gang_ended")
    assert (spanning.phase, spanning.record.reason.code) == (Phase.STOPPING, "STOPPING_WITH_GANG")
    assert spanning.are_gpus_taken
    spanning.say("n0", events.JobStopped, exit_class="stopped")
    assert (spanning.phase, spanning.record.gang) == (Phase.PENDING, None)
    counts = spanning.record.counts
    assert (counts.restarts, counts.launch_refusals) == ((0, 1) if kind is events.LaunchRefused else (1, 0))


def test_a_first_part_that_is_refused_leaves_nothing_to_stop() -> None:
    spanning = Spanning()
    assert spanning.say("n0", events.LaunchRefused, code="OVER_CAPACITY", message="full") == []
    assert spanning.phase is Phase.PENDING
    assert spanning.record.exit.exit_detail == "OVER_CAPACITY: node n0: full"


def test_a_refused_part_holds_its_gpus_until_the_lost_node_of_the_other_is_certain() -> None:
    spanning = Spanning()
    spanning.start()
    spanning.say("n1", events.JobFailed, exit_class="communication", exit_code=1)
    spanning.tell(events.NodeDisconnected, node_id="n0")
    assert spanning.are_gpus_taken
    spanning.tell(events.NodeLost, node_id="n0")
    assert (spanning.phase, spanning.record.exit.exit_class) == (Phase.PENDING, "lost")


def test_what_came_from_outside_speaks_louder_than_what_followed_from_it() -> None:
    """The survivors of a killed rank raise all kinds of errors, and may be first to tell."""
    spanning = Spanning()
    spanning.start()
    spanning.say("n0", events.JobFailed, exit_class="error", exit_code=1)
    spanning.say("n1", events.JobFailed, exit_class="signal", exit_code=-9)
    assert (spanning.phase, spanning.record.exit.exit_class) == (Phase.PENDING, "signal")


def test_an_error_of_the_script_fails_the_job_and_names_its_node() -> None:
    spanning = Spanning()
    spanning.start()
    spanning.say("n0", events.JobFailed, exit_class="communication", exit_code=1)
    spanning.say("n1", events.JobFailed, exit_class="error", exit_code=3, detail="exit code 3")
    assert (spanning.phase, spanning.record.exit.exit_code) == (Phase.FAILED, 3)
    assert spanning.record.exit.exit_detail == "node n1: exit code 3"


def test_it_has_finished_when_all_parts_have() -> None:
    spanning = Spanning()
    spanning.start()
    spanning.say("n1", events.JobFinished, steps_done=0)
    assert spanning.phase.value == "running"
    spanning.say("n0", events.JobFinished, steps_done=10)
    assert (spanning.phase, spanning.record.steps_done) == (Phase.FINISHED, 10)


def test_a_stop_reaches_every_part_and_the_newest_checkpoint_counts() -> None:
    spanning = Spanning()
    spanning.start()
    stops = spanning.tell(events.JobCancelled, job_id="j0")
    assert [one.node_id for one in stops] == ["n0", "n1"]
    spanning.say("n1", events.JobStopped, exit_class="stopped", exit_code=85)
    assert spanning.phase.value == "stopping"
    spanning.say("n0", events.JobStopped, exit_class="checkpointed", exit_code=85, steps_done=7, checkpoint_step=7)
    assert (spanning.phase, spanning.record.checkpoint_step) == (Phase.CANCELLED, 7)


@pytest.mark.parametrize("is_first_killed", [False, True])
def test_a_part_that_did_all_steps_finishes_no_gang_of_which_another_was_killed(*, is_first_killed: bool) -> None:
    """Asked to stop, the first rank left with success; the other one was killed with its last steps undone."""
    spanning = Spanning()
    spanning.start()
    spanning.tell(NodeCordoned, node_id="n0", is_draining=True)
    assert spanning.phase is Phase.STOPPING
    done, killed = {"steps_done": 10}, {"exit_code": -9}
    for node_id, how in (("n1", killed), ("n0", done)) if is_first_killed else (("n0", done), ("n1", killed)):
        spanning.say(node_id, events.JobStopped, exit_class="stopped", **how)
    assert (spanning.phase, spanning.record.exit.exit_code) == (Phase.PENDING, -9)


def test_a_part_that_did_all_steps_finishes_no_gang_of_which_another_was_lost() -> None:
    spanning = Spanning()
    spanning.start()
    spanning.tell(NodeCordoned, node_id="n0", is_draining=True)
    spanning.say("n0", events.JobStopped, exit_class="stopped", steps_done=10)
    spanning.tell(events.NodeDisconnected, node_id="n1")
    spanning.tell(events.NodeLost, node_id="n1")
    assert spanning.phase is Phase.PENDING


def test_a_part_is_ordered_again_where_the_gpu_of_another_that_has_ended_is_gone() -> None:
    spanning = Spanning()
    spanning.say("n0", events.JobStarted, rendezvous_port=PORT)
    spanning.say("n0", events.JobFinished, steps_done=0)
    spanning.tell(events.NodeJoined, node=node("n0", 0))
    orders = [one for one in spanning.engine.reissue() if isinstance(one, commands.LaunchJob)]
    assert [(one.node_id, [part.gpu_id for part in one.assignments]) for one in orders] == [("n1", ["n1.0"])]


@for_each("policy, is_whole", [(name, is_whole) for name in policy_names() for is_whole in (False, True)])
def test_no_policy_stumbles_over_a_gone_gpu_that_an_ended_part_still_names(policy: str, *, is_whole: bool) -> None:
    spanning = Spanning(policy=policy, key="key-j0")
    spanning.say("n0", events.JobStarted, rendezvous_port=PORT)
    if is_whole:
        spanning.say("n1", events.JobStarted)
    spanning.say("n0", events.JobFinished, steps_done=0)
    spanning.tell(events.NodeJoined, node=node("n0", 0))
    spanning.tell(events.NodeJoined, node=spanning_node("n2", 2))
    for request in (job("j1"), job("j2", gpus=2)):
        spanning.tell(events.JobSubmitted, request=request)
    assert spanning.phase.value == ("running" if is_whole else "starting")
    assert [explained(spanning.engine, name).reason.code for name in ("j0", "j2")]
    spanning.engine.reissue()
    spanning.tell(events.JobCancelled, job_id="j0")
    assert spanning.phase.value == "stopping"


def test_a_stop_before_the_port_is_known_waits_for_the_first_part_only() -> None:
    spanning = Spanning()
    (stop,) = spanning.tell(events.JobCancelled, job_id="j0")
    assert stop.node_id == "n0"
    assert spanning.say("n0", events.JobStarted, rendezvous_port=PORT) == []
    spanning.say("n0", events.JobStopped, exit_class="stopped")
    assert spanning.phase is Phase.CANCELLED


def test_a_new_scheduler_orders_what_had_not_begun() -> None:
    spanning = Spanning()
    assert [one.node_id for one in spanning.engine.reissue() if isinstance(one, commands.LaunchJob)] == ["n0"]
    spanning.say("n0", events.JobStarted, rendezvous_port=PORT)
    snapshot = SchedulerEngine.restore(spanning.engine.snapshot(), make_policy=make_policy)
    assert snapshot.state.jobs["j0"] == spanning.record
    (again,) = [one for one in snapshot.reissue() if isinstance(one, commands.LaunchJob)]
    assert (again.node_id, again.gang_part.master_port if again.gang_part else 0) == ("n1", PORT)


def joined(spanning: Spanning, node_id: str, **listed: Any) -> list[Any]:
    record = spanning.record
    running = events.RunningAttempt(job_id="j0", attempt=1, fence=record.fence, gpu_ids=(f"{node_id}.0",), **listed)
    return spanning.tell(events.NodeJoined, node=spanning_node(node_id), attempts=(running,) if listed else ())


def test_a_node_that_comes_back_tells_of_its_part_or_is_given_it_again() -> None:
    spanning = Spanning()
    (second,) = joined(spanning, "n0", rendezvous_port=PORT)
    assert (second.node_id, second.gang_part.master_port) == ("n1", PORT)
    (again,) = joined(spanning, "n1")
    assert again == second
    joined(spanning, "n1", steps_done=0)
    assert spanning.phase.value == "running"


def test_a_node_that_comes_back_without_its_part_ends_the_gang() -> None:
    spanning = Spanning()
    spanning.start()
    (stop,) = joined(spanning, "n1")
    assert (stop.node_id, stop.cause) == ("n0", "gang_ended")


def test_a_part_that_was_given_up_is_stopped_when_its_node_comes_back_with_it() -> None:
    spanning = Spanning()
    spanning.start()
    spanning.tell(events.NodeLost, node_id="n1")
    (stop,) = joined(spanning, "n1", steps_done=3)
    assert (stop.node_id, stop.cause) == ("n1", "stale")


def test_parts_of_one_attempt_that_were_given_up_take_the_gpus_of_their_own_nodes_each() -> None:
    spanning = Spanning()
    spanning.start()
    fence = spanning.record.fence
    for node_id in ("n0", "n1"):
        spanning.tell(events.NodeLost, node_id=node_id)
    spanning.tell(events.JobCancelled, job_id="j0")
    for node_id in ("n0", "n1"):
        running = events.RunningAttempt(job_id="j0", attempt=1, fence=fence, gpu_ids=(f"{node_id}.0",))
        spanning.tell(events.NodeJoined, node=spanning_node(node_id), attempts=(running,))
    gpus = spanning.engine.state.gpus
    assert [gpus[name].is_releasing for name in ("n0.0", "n1.0")] == [True, True]
    end = {"job_id": "j0", "attempt": 1, "fence": fence, "exit_class": "stopped"}
    spanning.tell(events.JobStopped, node_id="n0", **end)
    assert [gpus[name].is_releasing for name in ("n0.0", "n1.0")] == [False, True]


def test_its_record_is_stored_and_read() -> None:
    spanning = Spanning()
    spanning.say("n0", events.JobStarted, rendezvous_port=PORT)
    spanning.say("n1", events.LaunchRefused, code="OVER_CAPACITY", message="full")
    assert decode(JobRecord, encode(JobRecord, spanning.record)) == spanning.record


@pytest.mark.parametrize(("terms", "expected"), [(ACROSS, (("n1.0",), False)), (QueueTerms(), None)])
def test_a_running_job_grows_onto_another_node_where_it_may(terms: QueueTerms, expected: object) -> None:
    held = running(job(global_batch_size=2, allowed_gpus=(1, 2), terms=terms), ["n0.0"])
    seen = view(nodes=[spanning_node("n0"), spanning_node("n1")], holding=[held], nodes_per_job_max=1)
    assert more_gpus(Ledger(seen), elastic_jobs(seen)["j0"], 2, {"n1": ["n1.0"]}) == expected


def test_whoever_looks_ahead_may_tell_of_all_parts_at_once() -> None:
    """Expected starts are found by playing the state on, without any node."""
    spanning = Spanning()
    spanning.say("", events.JobStarted)
    assert spanning.phase.value == "running"
    spanning.say("", events.JobFinished, steps_done=10)
    assert spanning.phase.value == "finished"


def test_a_node_that_is_given_up_ends_the_gang_and_may_come_back_empty() -> None:
    spanning = Spanning()
    spanning.start()
    spanning.tell(events.NodeDisconnected, node_id="n1")
    (stop,) = spanning.tell(events.NodeForgotten, node_id="n1")
    assert stop.node_id == "n0"
    joined(spanning, "n1")
    assert spanning.are_gpus_taken
    spanning.say("n0", events.JobFailed, exit_class="communication", exit_code=1)
    assert (spanning.record.attempt, spanning.record.exit.exit_class) == (1, "lost")
    spanning.tell(events.TimerFired)
    assert (spanning.record.attempt, spanning.phase.value) == (2, "starting")


def test_what_a_part_tells_after_its_end_changes_nothing() -> None:
    spanning = Spanning()
    spanning.start()
    spanning.say("n1", events.JobFailed, exit_class="signal", exit_code=-9)
    before = spanning.record
    for kind, how in ENDS:
        assert spanning.say("n1", kind, **how) == []
    assert spanning.say("elsewhere", events.JobFailed, exit_class="error") == []
    assert spanning.record == before


def test_a_part_that_never_says_its_port_launches_no_other() -> None:
    spanning = Spanning()
    assert spanning.say("n0", events.JobStarted, rendezvous_port=0) == []
    assert spanning.say("n1", events.JobStarted, rendezvous_port=PORT) == []
    assert spanning.phase.value == "starting"
