"""The next attempt of a job that is moved is prepared beside the present one: what is ordered, kept and given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.lifecycle.preparation import PREPARATION_MS_MAX, can_prepare
from scheduler_service.core.records import PREPARED_STARTS, AfterStop, Phase
from tests.support.cases import for_each
from tests.support.scheduling import GIB, job, node
from tests.unit.core.test_moves import Moving, migrate, reshape


class Preparing(Moving):
    """One job that runs on n0, whose agent can start attempts early."""

    def __init__(self, **changes: Any) -> None:
        self.launch = changes.pop("launch", {})
        super().__init__(**changes)

    def tell(self, kind: type[events.Event], **values: Any) -> list[commands.Command]:
        if kind is events.NodeJoined:
            values["node"] = node(values["node"].node_id, 2, enforcements=(PREPARED_STARTS,))
        if kind is events.JobSubmitted:
            values.setdefault("launch", self.launch)
        return super().tell(kind, **values)

    def order(self) -> commands.LaunchJob:
        """Let the job be given another GPU of its node; return what is to be prepared."""
        (order,) = [one for one in self.wish(migrate("n0.1")) if not isinstance(one, commands.WakeAt)]
        assert isinstance(order, commands.PrepareJob)
        return order.launch

    def about(self, kind: type[events.Event], launch: commands.LaunchJob, **values: Any) -> list[commands.Command]:
        return self.tell(kind, job_id="j0", attempt=launch.attempt, fence=launch.fence, **values)

    def prepared(self, launch: commands.LaunchJob) -> list[commands.Command]:
        return self.about(events.AttemptPrepared, launch)

    def lost(self, launch: commands.LaunchJob, code: str = "PREPARATION_LOST") -> list[commands.Command]:
        return self.about(events.PreparationEnded, launch, code=code, message="killed")


def stops(orders: list[commands.Command]) -> list[tuple[int, str]]:
    return [(one.attempt, one.cause) for one in orders if isinstance(one, commands.StopJob)]


def launches(orders: list[commands.Command]) -> list[commands.LaunchJob]:
    return [one for one in orders if isinstance(one, commands.LaunchJob)]


def test_a_job_trains_on_until_its_next_attempt_is_prepared_and_that_one_is_launched() -> None:
    scene = Preparing()
    prepared = scene.order()
    assert (prepared.attempt, [part.gpu_id for part in prepared.assignments]) == (2, ["n0.1"])
    scene.report(events.JobProgressed, steps_done=3, window_steps=3, window_ms=300)
    assert (scene.job.steps_done, scene.job.attempt, scene.job.gpu_ids) == (3, 1, ("n0.0",))
    assert stops(scene.prepared(prepared)) == [(1, "moved")]
    assert scene.prepared(prepared) == []
    (launch,) = launches(scene.stopped())
    assert (launch.attempt, launch.fence, launch.steps_done) == (prepared.attempt, prepared.fence, 4)
    assert launch.granted_fences == (1,)
    assert (scene.job.moves.preparation, scene.job.phase, scene.job.counts.migrations) == (None, Phase.STARTING, 1)
    assert scene.job.history[-1].message == "attempt 2 on n0.1, prepared"


def test_both_places_are_kept_while_the_next_attempt_is_prepared() -> None:
    scene = Preparing()
    scene.order()
    assert set(scene.engine.state.occupancy.free_gpu_ids) == {"n1.0", "n1.1"}


def test_after_a_bounded_time_the_present_attempt_stops_all_the_same() -> None:
    scene = Preparing()
    prepared = scene.order()
    scene.now_ms += PREPARATION_MS_MAX - 2_000
    assert stops(scene.tell(events.TimerFired)) == []
    scene.now_ms += 1_000
    assert stops(scene.tell(events.TimerFired)) == [(1, "moved")]
    (launch,) = launches(scene.stopped())
    assert (launch.attempt, launch.fence) == (prepared.attempt, prepared.fence)


def test_a_lost_preparation_leaves_the_present_attempt_as_it_is_and_the_next_move_begins_from_nothing() -> None:
    scene = Preparing()
    prepared = scene.order()
    assert stops(scene.lost(prepared)) == []
    assert (scene.job.phase, scene.job.attempt, scene.job.moves.target) == (Phase.RUNNING, 1, None)
    assert scene.job.reason.code == "MOVE_WITHDRAWN"
    assert "n0.1" in scene.engine.state.occupancy.free_gpu_ids
    assert stops(scene.wish(migrate("n0.1"))) == [(1, "moved")]
    (launch,) = launches(scene.stopped())
    assert launch.attempt == 3, "the number of an attempt that was prepared is never given again"
    assert launch.fence > prepared.fence


def test_what_cannot_be_prepared_is_moved_as_before() -> None:
    scene = Preparing()
    prepared = scene.order()
    assert stops(scene.lost(prepared, code="NOT_PREPARABLE")) == [(1, "moved")]
    (launch,) = launches(scene.stopped())
    assert launch.fence > prepared.fence


def test_a_preparation_that_is_lost_after_the_stop_costs_its_gain_only() -> None:
    scene = Preparing()
    prepared = scene.order()
    scene.prepared(prepared)
    assert scene.lost(prepared) == []
    (launch,) = launches(scene.stopped())
    assert launch.fence > prepared.fence


def test_a_cancelled_job_stops_both_attempts() -> None:
    scene = Preparing()
    scene.order()
    assert stops(scene.tell(events.JobCancelled, job_id="j0")) == [(2, "not_needed"), (1, "cancelled")]
    assert scene.job.moves.preparation is None
    scene.stopped()
    assert scene.job.phase is Phase.CANCELLED


def test_a_job_that_is_cancelled_after_the_stop_gives_the_prepared_attempt_up_as_well() -> None:
    scene = Preparing()
    scene.prepared(scene.order())
    assert stops(scene.tell(events.JobCancelled, job_id="j0")) == [(2, "not_needed")]


ENDS: list[tuple[Callable[[Preparing], list[commands.Command]], Phase]] = [
    (lambda scene: scene.report(events.JobFinished, steps_done=10), Phase.FINISHED),
    (lambda scene: scene.report(events.JobFailed, exit_class="error", exit_code=1), Phase.FAILED),
    (lambda scene: scene.report(events.JobFailed, exit_class="lost"), Phase.PENDING),
    (lambda scene: scene.tell(events.NodeLost, node_id="n0"), Phase.STARTING),
]


@for_each(("end", "phase"), ENDS)
@for_each("is_prepared", [False, True])
def test_a_job_that_ends_meanwhile_gives_the_prepared_attempt_up(
    end: Callable[[Preparing], list[commands.Command]], phase: Phase, is_prepared: bool
) -> None:
    scene = Preparing()
    prepared = scene.order()
    if is_prepared:
        scene.prepared(prepared)
    orders = end(scene)
    assert (2, "not_needed") in stops(orders)
    assert (scene.job.phase, scene.job.moves.preparation) == (phase, None)
    for late in (orders, scene.lost(prepared), scene.prepared(prepared)):
        assert all(launch.fence > prepared.fence for launch in launches(late))


def test_an_end_that_was_asked_for_by_nobody_launches_what_is_prepared() -> None:
    scene = Preparing()
    prepared = scene.order()
    (launch,) = launches(scene.stopped())
    assert launch.fence == prepared.fence


def test_a_place_that_goes_meanwhile_gives_the_prepared_attempt_up() -> None:
    scene = Preparing()
    scene.prepared(scene.order())
    scene.tell(events.GpuHealthChanged, gpu_id="n0.1", healthy=False)
    orders = scene.stopped()
    assert stops(orders) == [(2, "not_needed")]
    assert [launch.attempt for launch in launches(orders)] == [3]


def test_a_crash_of_the_scheduler_repeats_the_order_that_is_outstanding() -> None:
    scene = Preparing()
    prepared = scene.order()
    for answer, expected in ((None, commands.PrepareJob), (prepared, commands.StopJob)):
        if answer is not None:
            scene.prepared(answer)
        stored = scene.engine.snapshot()
        scene.engine = SchedulerEngine.restore(stored, make_policy=lambda name, values: scene.policy)
        orders = [order for order in scene.engine.reissue() if not isinstance(order, commands.WakeAt)]
        assert [type(order) for order in orders] == [expected]
    assert launches(scene.stopped())[0].fence == prepared.fence


def test_a_node_that_joins_again_is_told_again_what_to_prepare_and_the_job_trains_on() -> None:
    scene = Preparing()
    prepared = scene.order()
    scene.tell(events.NodeDisconnected, node_id="n0")
    running = events.RunningAttempt(job_id="j0", attempt=1, fence=1, gpu_ids=("n0.0",))
    orders = scene.tell(events.NodeJoined, node=node("n0", 2), attempts=(running,))
    assert [one.launch for one in orders if isinstance(one, commands.PrepareJob)] == [prepared]
    assert stops(orders) == []


def test_another_incarnation_launches_nothing_that_an_earlier_one_prepared() -> None:
    scene = Preparing()
    prepared = scene.order()
    restored = scene.tell(
        events.IncarnationBegan, incarnation_id="b", parent_id="a", next_fence=100, last_job_number=1, settled_at_ms=0
    )
    assert stops(restored) == [(2, "not_needed"), (1, "moved")]
    (launch,) = launches(scene.stopped())
    assert launch.fence >= 100 > prepared.fence


def test_a_job_that_must_not_be_prepared_is_stopped_at_once() -> None:
    assert stops(Preparing(no_preparation=True).wish(migrate("n0.1"))) == [(1, "moved")]


def test_the_ranks_of_a_gang_are_prepared_like_one_process() -> None:
    scene = Preparing(launch={"ranks": 2})
    (order,) = [one for one in scene.wish(reshape("n0.0", "n0.1")) if isinstance(one, commands.PrepareJob)]
    assert order.launch.launch == {"ranks": 2}
    assert [part.rank for part in order.launch.assignments] == [0, 1]


def across(**changes: Any) -> tuple[Preparing, commands.LaunchJob]:
    """A job on n0 whose next attempt is being prepared on n1."""
    scene = Preparing(**changes)
    (order,) = [one for one in scene.wish(migrate("n1.0")) if isinstance(one, commands.PrepareJob)]
    assert order.launch.node_id == "n1"
    return scene, order.launch


def test_a_move_to_another_node_is_prepared_there_and_launched_there_after_the_stop() -> None:
    scene, prepared = across()
    scene.report(events.JobProgressed, steps_done=3, window_steps=3, window_ms=300)
    found = [one for one in scene.prepared(prepared) if isinstance(one, commands.StopJob)]
    assert [(one.node_id, one.attempt) for one in found] == [("n0", 1)]
    (launch,) = launches(scene.stopped())
    assert (launch.node_id, launch.fence, launch.granted_node_ids) == ("n1", prepared.fence, ("n0",))


def test_a_preparation_that_is_lost_on_another_node_leaves_the_present_attempt_as_it_is() -> None:
    scene, prepared = across()
    assert stops(scene.lost(prepared)) == []
    assert (scene.job.phase, scene.job.node_ids, scene.job.moves.target) == (Phase.RUNNING, ("n0",), None)


@for_each("kind", [events.NodeLost, events.NodeForgotten])
def test_the_node_on_which_a_job_is_prepared_may_go_and_the_job_trains_on(kind: type[events.Event]) -> None:
    scene, prepared = across()
    orders = scene.tell(kind, node_id="n1")
    assert [(one.node_id, one.attempt) for one in orders if isinstance(one, commands.StopJob)] == [("n1", 2)]
    assert (scene.job.phase, scene.job.attempt, scene.job.moves.preparation) == (Phase.RUNNING, 1, None)
    assert scene.prepared(prepared) == []
    assert stops(scene.wish(migrate("n0.1"))) == [(1, "moved")], "the next move begins from nothing"


def test_the_node_of_the_present_attempt_may_go_and_what_is_prepared_elsewhere_is_given_up() -> None:
    scene, _ = across()
    found = scene.tell(events.NodeLost, node_id="n0")
    assert [(one.node_id, one.attempt) for one in found if isinstance(one, commands.StopJob)] == [("n1", 2)]
    assert scene.job.moves.preparation is None


def test_a_node_that_joins_again_is_told_again_what_to_prepare_for_another_ones_job() -> None:
    scene, prepared = across()
    scene.tell(events.NodeDisconnected, node_id="n1")
    orders = scene.tell(events.NodeJoined, node=node("n1", 2))
    assert [one.launch for one in orders if isinstance(one, commands.PrepareJob)] == [prepared]
    assert (scene.job.is_preparing, stops(orders)) == (True, [])
    scene.prepared(prepared)
    orders = scene.tell(events.NodeJoined, node=node("n1", 2))
    assert not [one for one in orders if isinstance(one, commands.PrepareJob)]


def test_a_gang_on_two_nodes_is_moved_to_one_without_preparation() -> None:
    scene = Preparing(launch={"ranks": 2})
    record = scene.job.changed(node_ids=("n0", "n1"))
    assert not can_prepare(scene.engine.state, record, record.assignments)
    assert can_prepare(scene.engine.state, scene.job, scene.job.assignments)


def test_a_node_that_does_not_say_that_it_can_is_not_asked() -> None:
    assert stops(Moving().wish(migrate("n0.1"))) == [(1, "moved")]


def test_a_reshape_is_prepared_in_its_new_shape() -> None:
    scene = Preparing()
    (order,) = [one for one in scene.wish(reshape("n0.0", "n0.1")) if isinstance(one, commands.PrepareJob)]
    assert (len(order.launch.assignments), order.launch.micro_batch_size) == (2, 1)
    scene.prepared(order.launch)
    (launch,) = launches(scene.stopped())
    assert launch.fence == order.launch.fence
    assert scene.job.counts.reshapes == 1


def test_a_job_submitted_meanwhile_gets_neither_place() -> None:
    scene = Preparing()
    scene.order()
    scene.tell(events.JobSubmitted, request=job("late", gpus=1, memory_request_bytes=GIB))
    assert scene.engine.state.jobs["late"].gpu_ids[0].startswith("n1")
    assert scene.job.after_stop is AfterStop.MOVE
