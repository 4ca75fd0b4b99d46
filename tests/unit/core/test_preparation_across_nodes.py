"""The next attempt of a gang is prepared on all of its nodes, or on none: nothing is left half way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler_service.core import commands, events
from scheduler_service.core.decisions import Decision
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.lifecycle.preparation import PREPARATION_MS_MAX
from scheduler_service.core.records import PREPARED_PARTS, PREPARED_STARTS, Phase
from tests.support.cases import for_each
from tests.support.gang_scene import GangScene
from tests.support.scheduling import job
from tests.unit.core.test_gangs_across_nodes import ACROSS, PORT, spanning_node
from tests.unit.core.test_moves import OnDemand, migrate, reshape

NODES = ("n0", "n1", "n2", "n3")
BOTH = (PREPARED_STARTS, PREPARED_PARTS)
Orders = list[tuple[str, str, int]]


class MovingGang(GangScene):
    """Four nodes with one GPU each; a gang of two, or one rank of it, trains on the first of them."""

    def __init__(self, *, width: int = 2, words: dict[str, tuple[str, ...]] | None = None, **changes: Any) -> None:
        self.policy = OnDemand()
        self.words = words or {}
        super().__init__(SchedulerEngine(make_policy=lambda name, values: self.policy, policy="x"))
        for node_id in NODES:
            self.join(node_id)
        facts = {"gpus": width, "allowed_gpus": (1, 2), "global_batch_size": 2, "terms": ACROSS, **changes}
        self.tell(events.JobSubmitted, request=job(**{"key": "", **facts}), launch={"ranks": 2})
        self.say("n0", events.JobStarted, rendezvous_port=PORT)
        if width > 1:
            self.say("n1", events.JobStarted)
        assert self.phase is Phase.RUNNING

    def join(self, node_id: str, *attempts: events.RunningAttempt) -> list[commands.Command]:
        known = spanning_node(node_id, enforcements=self.words.get(node_id, BOTH))
        return self.tell(events.NodeJoined, node=known, attempts=attempts)

    def order(self, *gpu_ids: str) -> list[commands.LaunchJob]:
        """Let the gang go elsewhere; return what is to be prepared."""
        is_move = len(gpu_ids) == len(self.record.gpu_ids)
        samples = 2 // len(gpu_ids)
        self.policy.wishes.append(migrate(*gpu_ids) if is_move else reshape(*gpu_ids, micro_batch_size=samples))
        orders = self.tell(events.TimerFired)
        assert [type(one) for one in orders] == [commands.PrepareJob] * len(gpu_ids)
        return [one.launch for one in orders if isinstance(one, commands.PrepareJob)]

    def wish(self, decision: Decision) -> list[commands.Command]:
        self.policy.wishes.append(decision)
        return self.tell(events.TimerFired)

    def prepared(self, launch: commands.LaunchJob) -> list[commands.Command]:
        return self.about(events.AttemptPrepared, launch)

    def lost(self, launch: commands.LaunchJob, code: str = "PREPARATION_LOST") -> list[commands.Command]:
        return self.about(events.PreparationEnded, launch, code=code, message="killed")

    def about(self, kind: type[events.Event], launch: commands.LaunchJob, **values: Any) -> list[commands.Command]:
        key = {"job_id": "j0", "attempt": launch.attempt, "fence": launch.fence}
        return self.tell(kind, node_id=launch.node_id, **key, **values)

    def stopped(self, node_id: str) -> list[commands.Command]:
        return self.say(node_id, events.JobStopped, exit_class="checkpointed", steps_done=5, checkpoint_step=4)


def stops(orders: list[commands.Command]) -> Orders:
    return [(one.node_id, one.cause, one.attempt) for one in orders if isinstance(one, commands.StopJob)]


def launches(orders: list[commands.Command]) -> list[commands.LaunchJob]:
    return [one for one in orders if isinstance(one, commands.LaunchJob)]


def handed_over() -> tuple[MovingGang, list[commands.LaunchJob], list[commands.Command]]:
    """Both parts on n2 and n3 are prepared, and the present attempt has ended on n0 and n1."""
    scene = MovingGang()
    prepared = scene.order("n2.0", "n3.0")
    for launch in prepared:
        scene.prepared(launch)
    assert scene.stopped("n0") == []
    return scene, prepared, scene.stopped("n1")


def test_a_gang_trains_on_until_all_parts_of_its_next_attempt_are_prepared() -> None:
    scene = MovingGang()
    first, second = scene.order("n2.0", "n3.0")
    assert [(one.node_id, one.attempt) for one in (first, second)] == [("n2", 2), ("n3", 2)]
    part = commands.GangPart(world_size=2, group_rank=0, nodes=2, master_address="10.0.0.2", master_port=0)
    assert [one.gang_part for one in (first, second)] == [part, replace(part, group_rank=1)]
    assert scene.prepared(second) == []
    assert scene.prepared(second) == [], "said twice it is one part all the same"
    scene.tell(events.JobProgressed, job_id="j0", attempt=1, fence=1, steps_done=3, window_steps=3, window_ms=300)
    assert (scene.record.steps_done, scene.record.attempt) == (3, 1)
    assert stops(scene.prepared(first)) == [("n0", "moved", 1), ("n1", "moved", 1)]
    assert scene.stopped("n1") == []
    (launch,) = launches(scene.stopped("n0"))
    assert (launch.node_id, launch.fence, launch.steps_done, launch.gang_part) == ("n2", first.fence, 4, part)
    (follower,) = launches(scene.say("n2", events.JobStarted, rendezvous_port=PORT, resumed_fence=1))
    assert (follower.node_id, follower.fence) == ("n3", second.fence)
    meets = replace(part, group_rank=1, master_port=PORT, resumed_fence=1, resumed_node_id="n2")
    assert follower.gang_part == meets
    scene.say("n3", events.JobStarted)
    assert (scene.phase, scene.record.counts.migrations, scene.record.counts.restarts) == (Phase.RUNNING, 1, 0)


@for_each(
    ("width", "gpu_ids"),
    [
        (2, ("n1.0", "n2.0")), (2, ("n1.0", "n0.0")), (2, ("n2.0",)), (2, ("n1.0",)),
        (1, ("n0.0", "n1.0")), (1, ("n1.0", "n2.0")),
    ],
)  # fmt: skip
def test_a_gang_may_keep_nodes_become_one_process_or_grow_out_of_one(width: int, gpu_ids: tuple[str, ...]) -> None:
    scene = MovingGang(width=width)
    prepared = scene.order(*gpu_ids)
    assert [one.node_id for one in prepared] == [gpu_id[:2] for gpu_id in gpu_ids]
    assert [one.gang_part is not None for one in prepared] == [len(gpu_ids) > 1] * len(gpu_ids)
    present = NODES[:width]
    told = [stops(scene.prepared(launch)) for launch in prepared]
    assert told == [[]] * (len(gpu_ids) - 1) + [[(node_id, "moved", 1) for node_id in present]]
    orders = [scene.stopped(node_id) for node_id in present]
    assert [[one.fence for one in launches(found)] for found in orders] == [[]] * (width - 1) + [[prepared[0].fence]]


def test_the_ranks_of_a_node_follow_each_other_in_what_is_prepared_as_in_what_is_launched() -> None:
    scene = MovingGang()
    prepared = scene.order("n3.0", "n2.0")
    assert [(one.node_id, [part.rank for part in one.assignments]) for one in prepared] == [("n3", [0]), ("n2", [1])]
    for launch in prepared:
        scene.prepared(launch)
    scene.stopped("n0")
    (first,) = launches(scene.stopped("n1"))
    (second,) = launches(scene.say("n3", events.JobStarted, rendezvous_port=PORT))
    assert [one.assignments for one in (first, second)] == [one.assignments for one in prepared]


def test_a_part_that_is_late_is_waited_for_a_bounded_time() -> None:
    scene = MovingGang()
    first, _ = scene.order("n2.0", "n3.0")
    scene.prepared(first)
    scene.now_ms += PREPARATION_MS_MAX
    assert stops(scene.tell(events.TimerFired)) == [("n0", "moved", 1), ("n1", "moved", 1)]
    scene.stopped("n0")
    assert [one.fence for one in launches(scene.stopped("n1"))] == [first.fence]


@for_each("fails", [0, 1])
def test_a_part_that_is_lost_takes_the_other_with_it_and_the_gang_trains_on(fails: int) -> None:
    scene = MovingGang()
    prepared = scene.order("n2.0", "n3.0")
    scene.prepared(prepared[1 - fails])
    assert stops(scene.lost(prepared[fails])) == [(prepared[1 - fails].node_id, "not_needed", 2)]
    assert (scene.phase, scene.record.moves.preparation, scene.record.moves.target) == (Phase.RUNNING, None, None)
    assert "on node" in scene.record.history[-1].message
    assert scene.prepared(prepared[1 - fails]) == []
    scene.policy.wishes.append(migrate("n2.0", "n3.0"))
    assert stops(scene.tell(events.TimerFired)) == [("n0", "moved", 1), ("n1", "moved", 1)], "from nothing now"


def test_a_part_that_cannot_be_prepared_lets_the_whole_gang_move_from_nothing() -> None:
    scene = MovingGang()
    first, second = scene.order("n2.0", "n3.0")
    orders = scene.lost(second, code="NOT_PREPARABLE")
    assert stops(orders) == [("n2", "not_needed", 2), ("n0", "moved", 1), ("n1", "moved", 1)]
    scene.stopped("n0")
    (launch,) = launches(scene.stopped("n1"))
    assert launch.fence > first.fence


def test_a_part_that_is_lost_after_the_stop_costs_the_gain_only() -> None:
    scene = MovingGang()
    first, second = scene.order("n2.0", "n3.0")
    scene.prepared(first)
    scene.prepared(second)
    assert stops(scene.lost(first)) == [("n3", "not_needed", 2)]
    scene.stopped("n0")
    (launch,) = launches(scene.stopped("n1"))
    assert (launch.node_id, launch.fence > first.fence) == ("n2", True)


def test_a_node_that_is_lost_before_the_stop_leaves_the_gang_as_it_is() -> None:
    scene = MovingGang()
    first, second = scene.order("n2.0", "n3.0")
    scene.prepared(first)
    orders = scene.tell(events.NodeLost, node_id="n3")
    assert stops(orders) == [("n2", "not_needed", 2), ("n3", "not_needed", 2)]
    assert (scene.phase, scene.record.attempt, scene.record.moves.preparation) == (Phase.RUNNING, 1, None)
    assert scene.prepared(second) == []


def test_a_node_that_is_lost_after_the_stop_gives_up_what_waits_on_the_other_at_once() -> None:
    scene = MovingGang()
    for launch in scene.order("n2.0", "n3.0"):
        scene.prepared(launch)
    assert ("n2", "not_needed", 2) in stops(scene.tell(events.NodeLost, node_id="n3"))
    scene.stopped("n0")
    assert launches(scene.stopped("n1"))[0].attempt == 3, "from nothing, where there is room"


@for_each("node_id", ["n0", "n1"])
@for_each("gpu_ids", [("n2.0", "n3.0"), ("n1.0", "n2.0")])
def test_a_node_of_the_present_attempt_that_is_lost_ends_the_rest_and_what_is_prepared(
    node_id: str, gpu_ids: tuple[str, ...]
) -> None:
    scene = MovingGang()
    prepared = scene.order(*gpu_ids)
    orders = stops(scene.tell(events.NodeLost, node_id=node_id))
    other = "n1" if node_id == "n0" else "n0"
    assert [one for one in orders if one[0] == other and one[2] == 1], "the other part must not wait for a lost one"
    assert {(one.node_id, "not_needed", 2) for one in prepared} <= set(orders)
    scene.say(other, events.JobStopped, exit_class="stopped")
    assert scene.record.moves.preparation is None
    assert scene.phase in (Phase.PENDING, Phase.STARTING)


ENDS: tuple[tuple[type[events.AttemptReport], dict[str, Any]], ...] = (
    (events.JobFailed, {"exit_class": "signal", "exit_code": -9}),
    (events.JobStopped, {"exit_class": "checkpointed", "exit_code": 85}),
)


@for_each(("kind", "how"), ENDS)
def test_where_a_part_ends_meanwhile_the_others_are_stopped_as_without_preparation(
    kind: type[events.AttemptReport], how: dict[str, Any]
) -> None:
    scene = MovingGang()
    prepared = scene.order("n2.0", "n3.0")
    orders = scene.say("n1", kind, **how)
    assert stops(orders) == [("n2", "not_needed", 2), ("n3", "not_needed", 2), ("n0", "gang_ended", 1)]
    assert (scene.record.moves.preparation, scene.record.moves.target) == (None, None)
    scene.say("n0", events.JobStopped, exit_class="stopped")
    assert (scene.phase, scene.record.counts.restarts) == (Phase.PENDING, 1)
    for late in (scene.prepared(prepared[0]), scene.lost(prepared[1])):
        assert stops(late) == []
        assert all(launch.fence > prepared[0].fence for launch in launches(late))


def test_a_gang_that_finishes_meanwhile_gives_up_what_is_prepared() -> None:
    scene = MovingGang()
    scene.order("n2.0", "n3.0")
    assert scene.say("n0", events.JobFinished, steps_done=10) == []
    orders = scene.say("n1", events.JobFinished, steps_done=10)
    assert stops(orders) == [("n2", "not_needed", 2), ("n3", "not_needed", 2)]
    assert scene.phase is Phase.FINISHED


def test_a_cancelled_gang_stops_all_parts_of_both_attempts() -> None:
    scene = MovingGang()
    scene.order("n2.0", "n3.0")
    orders = scene.tell(events.JobCancelled, job_id="j0")
    given_up = [("n2", "not_needed", 2), ("n3", "not_needed", 2)]
    assert stops(orders) == [*given_up, ("n0", "cancelled", 1), ("n1", "cancelled", 1)]
    scene.say("n0", events.JobStopped, exit_class="stopped")
    scene.say("n1", events.JobStopped, exit_class="stopped")
    assert scene.phase is Phase.CANCELLED


WHEN_FIRST_IS_LAUNCHED: list[Callable[[MovingGang], list[commands.Command]]] = [
    lambda scene: scene.say("n2", events.LaunchRefused, code="PREPARATION_LOST"),
    lambda scene: scene.say("n2", events.JobFailed, exit_class="signal", exit_code=-9),
    lambda scene: scene.tell(events.NodeLost, node_id="n2"),
    lambda scene: scene.tell(events.JobCancelled, job_id="j0"),
    lambda scene: scene.wish(migrate("n0.0", "n1.0")),
]


@for_each("end", WHEN_FIRST_IS_LAUNCHED)
def test_parts_that_wait_for_the_first_ones_start_are_ended_when_that_will_not_come(
    end: Callable[[MovingGang], list[commands.Command]],
) -> None:
    scene, prepared, orders = handed_over()
    assert [(one.node_id, one.fence) for one in launches(orders)] == [("n2", prepared[0].fence)]
    assert stops(end(scene)).count(("n3", "not_needed", 2)) == 1


def test_parts_that_were_launched_are_stopped_as_those_of_every_gang() -> None:
    scene, _, _ = handed_over()
    scene.say("n2", events.JobStarted, rendezvous_port=PORT)
    orders = scene.say("n2", events.JobFailed, exit_class="signal", exit_code=-9)
    assert stops(orders) == [("n3", "gang_ended", 2)]


def test_a_gang_that_began_from_nothing_has_nobody_to_give_up() -> None:
    scene = MovingGang(no_preparation=True)
    scene.policy.wishes.append(migrate("n2.0", "n3.0"))
    assert stops(scene.tell(events.TimerFired)) == [("n0", "moved", 1), ("n1", "moved", 1)]
    scene.stopped("n0")
    scene.stopped("n1")
    assert stops(scene.say("n2", events.LaunchRefused, code="NO_FREE_PORT")) == []


@for_each("node_id", ["n1", "n2", "n3"])
def test_an_older_agent_among_the_next_ones_is_not_asked_and_the_gang_moves_from_nothing(node_id: str) -> None:
    scene = MovingGang(words={node_id: (PREPARED_STARTS,)})
    scene.policy.wishes.append(migrate("n2.0", "n3.0"))
    orders = scene.tell(events.TimerFired)
    expected = commands.PrepareJob if node_id == "n1" else commands.StopJob
    assert {type(one) for one in orders} == {expected}, "only the nodes to which it goes count"


def restored(scene: MovingGang) -> list[commands.Command]:
    """Crash the scheduler, which goes on from its snapshot."""
    stored = scene.engine.snapshot()
    scene.engine = SchedulerEngine.restore(stored, make_policy=lambda name, values: scene.policy)
    return [one for one in scene.engine.reissue() if not isinstance(one, commands.WakeAt)]


def test_a_scheduler_that_goes_on_from_its_snapshot_knows_which_parts_are_prepared() -> None:
    scene = MovingGang()
    first, second = scene.order("n2.0", "n3.0")
    scene.prepared(first)
    orders = restored(scene)
    assert [one.launch for one in orders if isinstance(one, commands.PrepareJob)] == [first, second]
    assert stops(scene.prepared(second)) == [("n0", "moved", 1), ("n1", "moved", 1)]
    assert stops(restored(scene)) == [("n0", "moved", 1), ("n1", "moved", 1)]
    scene.stopped("n0")
    assert launches(scene.stopped("n1"))[0].fence == first.fence
    assert [one.node_id for one in launches(restored(scene))] == ["n2"]
    assert stops(scene.say("n2", events.LaunchRefused, code="PREPARATION_LOST")) == [("n3", "not_needed", 2)]


def test_a_node_that_joins_again_is_told_again_what_to_prepare_there_and_says_again_when_it_is() -> None:
    scene = MovingGang()
    first, second = scene.order("n2.0", "n3.0")
    scene.prepared(first)
    scene.tell(events.NodeDisconnected, node_id="n2")
    orders = scene.join("n2")
    assert [one.launch for one in orders if isinstance(one, commands.PrepareJob)] == [first]
    assert scene.prepared(second) == [], "it may have to begin anew there"
    assert stops(scene.prepared(first)) == [("n0", "moved", 1), ("n1", "moved", 1)]


def test_a_node_of_the_present_attempt_that_joins_again_trains_on_and_prepares_what_is_its() -> None:
    scene = MovingGang()
    first, _ = scene.order("n1.0", "n2.0")
    for node_id, mine in (("n0", []), ("n1", [first])):
        scene.tell(events.NodeDisconnected, node_id=node_id)
        here = events.RunningAttempt(job_id="j0", attempt=1, fence=1, gpu_ids=(f"{node_id}.0",))
        orders = scene.join(node_id, here)
        assert [one.launch for one in orders if isinstance(one, commands.PrepareJob)] == mine
        assert stops(orders) == []
    assert scene.record.is_preparing


def test_a_node_of_the_present_attempt_that_knows_its_part_no_more_ends_the_others() -> None:
    scene = MovingGang()
    scene.order("n2.0", "n3.0")
    scene.tell(events.NodeDisconnected, node_id="n1")
    assert ("n0", "gang_ended", 1) in stops(scene.join("n1"))
    assert scene.record.moves.preparation is None


def test_another_incarnation_gives_up_what_waits_for_a_launch() -> None:
    scene, _, _ = handed_over()
    values = {"incarnation_id": "b", "parent_id": "a", "next_fence": 100, "last_job_number": 1, "settled_at_ms": 0}
    assert ("n3", "not_needed", 2) in stops(scene.tell(events.IncarnationBegan, **values))
