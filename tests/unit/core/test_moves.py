"""A running job is moved or reshaped: what the engine orders, keeps and shows, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Migrate, Reshape
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_parts import AttemptExit, AttemptMeasurements
from scheduler_service.core.records import AfterStop, Assignment, Phase, Reason
from scheduler_service.policies.fifo import Fifo
from tests.support.cases import for_each
from tests.support.engine_invariants import check
from tests.support.scheduling import GIB, job, node

REASON = Reason(code="CANDIDATE")


def parts(*gpu_ids: str) -> tuple[Assignment, ...]:
    return tuple(Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids))


def migrate(*gpu_ids: str) -> Migrate:
    return Migrate(job_id="j0", reason=REASON, assignments=parts(*gpu_ids))


def reshape(*gpu_ids: str, micro_batch_size: int = 1) -> Reshape:
    return Reshape(job_id="j0", reason=REASON, assignments=parts(*gpu_ids), micro_batch_size=micro_batch_size)


class OnDemand:
    """First in, first out, and whatever a test wants next."""

    def __init__(self) -> None:
        self.wishes: list[Decision] = []

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        wishes, self.wishes = self.wishes, []
        return [*wishes, *Fifo().decide(view)]


class Moving:
    """Two nodes with two GPUs, one running job, and a policy that does what it is asked to."""

    def __init__(self, *, can_move: bool = True, **changes: Any) -> None:
        self.policy = OnDemand()
        self.now_ms = 0
        self.engine = SchedulerEngine(make_policy=lambda name, values: self.policy, policy="x", can_move=can_move)
        for name in ("n0", "n1"):
            self.tell(events.NodeJoined, node=node(name, 2))
        self.tell(events.JobSubmitted, request=job(**{"allowed_gpus": (1, 2), "global_batch_size": 2, **changes}))
        self.report(events.JobStarted)

    def tell(self, kind: type[events.Event], **values: Any) -> list[commands.Command]:
        self.now_ms += 1_000
        found = self.engine.handle(kind(at_ms=self.now_ms, **values))
        check(self.engine.state)
        return found

    def report(self, kind: type[events.AttemptReport], **values: Any) -> list[commands.Command]:
        record = self.engine.state.jobs["j0"]
        return self.tell(kind, job_id="j0", attempt=record.attempt, fence=record.fence, **values)

    def wish(self, *decisions: Decision) -> list[commands.Command]:
        self.policy.wishes += decisions
        return self.tell(events.TimerFired)

    def stopped(self) -> list[commands.Command]:
        return self.report(events.JobStopped, exit_class="checkpointed", steps_done=5, checkpoint_step=4)

    @property
    def job(self) -> Any:
        return self.engine.state.jobs["j0"]

    @property
    def rejected(self) -> list[str]:
        return [one.reason.code for one in self.engine.state.rejected]


def test_a_migration_checkpoints_stops_and_starts_a_new_attempt_with_the_same_progress() -> None:
    moving = Moving()
    (order,) = moving.wish(migrate("n1.1"))
    assert isinstance(order, commands.StopJob)
    assert (order.node_id, order.checkpoint, order.cause) == ("n0", True, "moved")
    assert moving.job.phase is Phase.STOPPING
    (launch,) = moving.stopped()
    assert isinstance(launch, commands.LaunchJob)
    assert (launch.node_id, launch.attempt, launch.steps_done) == ("n1", 2, 4)
    assert launch.granted_fences == (order.fence,)
    assert (moving.job.phase, moving.job.gpu_ids, moving.job.counts.migrations) == (Phase.STARTING, ("n1.1",), 1)
    assert (moving.job.counts.restarts, moving.job.counts.preemptions, moving.rejected) == (0, 0, [])


def test_a_new_attempt_begins_without_measurements_and_exit_of_the_one_before() -> None:
    moving = Moving()
    for step in (1, 2):
        moving.report(events.JobProgressed, steps_done=step, window_steps=1, window_ms=500, memory_peak_bytes=9)
    moving.wish(migrate("n1.1"))
    moving.stopped()
    assert moving.job.step_ms == 500.0
    assert moving.job.reported.memory_peak_bytes == 9
    assert moving.job.measured == AttemptMeasurements(neighbours_since_ms=moving.now_ms)
    assert moving.job.exit == AttemptExit()


@pytest.mark.parametrize(("missing_steps", "phase"), [(0, Phase.FINISHED), (1, Phase.STARTING)])
def test_success_of_a_program_that_was_asked_to_stop_needs_its_steps(missing_steps: int, phase: Phase) -> None:
    moving = Moving()
    moving.wish(migrate("n1.1"))
    steps_done = moving.job.request.steps_total - missing_steps
    moving.report(events.JobStopped, exit_class="stopped", exit_code=0, steps_done=steps_done)
    assert moving.job.phase is phase


def test_both_places_are_kept_while_the_job_moves() -> None:
    moving = Moving()
    moving.wish(migrate("n1.1"))
    assert set(moving.engine.state.occupancy.free_gpu_ids) == {"n0.1", "n1.0"}
    moving.tell(events.JobSubmitted, request=job("late", gpus=2))
    assert moving.engine.state.decisions["late"].reason.code == "NO_FREE_GPU"
    moving.stopped()
    assert moving.engine.state.jobs["late"].gpu_ids == ("n0.0", "n0.1")


def test_a_reshape_gives_the_job_more_gpus_and_smaller_micro_batches() -> None:
    moving = Moving()
    moving.wish(reshape("n0.0", "n0.1"))
    (launch,) = moving.stopped()
    assert isinstance(launch, commands.LaunchJob)
    assert (len(launch.assignments), launch.micro_batch_size, moving.job.counts.reshapes) == (2, 1, 1)
    moving.report(events.JobStarted)
    moving.wish(reshape("n0.1", micro_batch_size=2))
    moving.stopped()
    assert (moving.job.gpu_ids, moving.job.shape.micro_batch_size, moving.job.counts.reshapes) == (("n0.1",), 2, 2)
    assert "n0.0" in moving.engine.state.occupancy.free_gpu_ids


@pytest.mark.parametrize("fault", ["lost", "disconnected", "sick"])
def test_a_job_whose_new_place_is_gone_waits_in_the_queue_with_its_progress(fault: str) -> None:
    moving = Moving()
    moving.wish(migrate("n1.1"))
    if fault == "lost":
        moving.tell(events.NodeLost, node_id="n1")
        assert moving.job.after_stop is AfterStop.REQUEUE
    elif fault == "disconnected":
        moving.tell(events.NodeDisconnected, node_id="n1")
    else:
        moving.tell(events.GpuHealthChanged, gpu_id="n1.1", healthy=False)
    (launch,) = moving.stopped()
    assert isinstance(launch, commands.LaunchJob)  # FIFO starts it again where there is room
    assert (launch.steps_done, moving.job.counts.migrations, moving.job.counts.preemptions) == (4, 0, 1)
    assert moving.job.gpu_ids[0] not in {"n1.1"}


def test_a_rejoining_target_node_does_not_count_the_coming_job_as_lost() -> None:
    moving = Moving()
    moving.wish(migrate("n1.1"))
    moving.tell(events.NodeDisconnected, node_id="n1")
    moving.tell(events.NodeJoined, node=node("n1", 2))
    assert moving.job.phase is Phase.STOPPING
    moving.stopped()
    assert moving.job.gpu_ids == ("n1.1",)


def test_a_job_that_is_cancelled_or_ends_on_the_way_leaves_both_places() -> None:
    cancelled, finished = Moving(), Moving()
    for moving in (cancelled, finished):
        moving.wish(migrate("n1.1"))
    cancelled.tell(events.JobCancelled, job_id="j0")
    assert "n1.1" in cancelled.engine.state.occupancy.free_gpu_ids
    cancelled.stopped()
    assert cancelled.job.phase is Phase.CANCELLED
    finished.report(events.JobFinished, steps_done=10)
    assert finished.job.phase is Phase.FINISHED
    for moving in (cancelled, finished):
        assert len(moving.engine.state.occupancy.free_gpu_ids) == 4


def test_a_snapshot_in_the_middle_of_a_move_goes_on_to_the_same_place() -> None:
    moving = Moving()
    (order,) = moving.wish(migrate("n1.1"))
    stored = moving.engine.snapshot()
    moving.engine = SchedulerEngine.restore(stored, make_policy=lambda name, values: moving.policy)
    assert moving.engine.reissue() == [order]
    (launch,) = moving.stopped()
    assert isinstance(launch, commands.LaunchJob)
    assert launch.node_id == "n1"


@for_each(
    ("wish", "code"),
    [
        (migrate("n0.0"), "NOTHING_TO_MOVE"),
        (migrate("n1.0", "n1.1"), "GANG_INCOMPLETE"),
        (reshape("n1.0", "n0.1"), "GANG_NEEDS_MORE_NODES"),
        (reshape("n1.0"), "BATCH_NOT_COVERED"),
        (migrate("n7.0"), "GPU_NOT_USABLE"),
        (Migrate(job_id="j1", reason=REASON, assignments=parts("n1.0")), "JOB_NOT_RUNNING"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(wish: Decision, code: str) -> None:
    moving = Moving()
    assert moving.wish(wish) == []
    assert moving.rejected == [code]


def test_no_policy_lets_a_job_make_its_steps_in_passes_whose_program_cuts_no_batch() -> None:
    moving = Moving(takes_whole_batch=True)
    in_passes = replace(reshape("n1.0"), accumulation_steps=2)
    assert moving.wish(in_passes) == []
    assert moving.rejected == ["BATCH_NOT_CUT"]
    assert moving.wish(reshape("n1.0", micro_batch_size=2))


def test_a_job_is_not_moved_twice_nor_onto_what_is_kept_for_another_one() -> None:
    moving = Moving(memory_request_bytes=5 * GIB)
    moving.tell(events.JobSubmitted, request=job("j1", memory_request_bytes=5 * GIB))
    assert moving.engine.state.jobs["j1"].gpu_ids == ("n0.1",)
    other = Migrate(job_id="j1", reason=REASON, assignments=parts("n1.1"))
    moving.wish(migrate("n1.1"), migrate("n1.0"), other)
    assert moving.rejected == ["JOB_NOT_RUNNING", "JOB_UNKNOWN"]


def test_where_no_launcher_can_move_jobs_that_is_reported() -> None:
    moving = Moving(can_move=False)
    assert moving.wish(migrate("n1.1")) == []
    assert moving.rejected == ["MOVES_NOT_SUPPORTED"]
    reported = moving.job.history[-1]
    assert (reported.kind, "no launcher supports here" in reported.message) == ("refused", True)
    moving.wish(migrate("n1.1"))
    assert [line.kind for line in moving.job.history].count("refused") == 1
    assert moving.job.phase is Phase.RUNNING


def test_a_policy_with_an_interval_is_asked_as_time_goes_by() -> None:
    moving = Moving()
    moving.policy.interval_ms = 60_000  # type: ignore[attr-defined]
    assert moving.wish() == [commands.WakeAt(at_ms=60_000)]
    assert moving.wish() == []
