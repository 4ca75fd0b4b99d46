"""A gang across nodes stands still with all of its parts or with none; its time counts while any of them runs."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.decisions import Pause
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.event_handling.time_limits import ran_ms
from scheduler_service.core.records import Phase, Reason
from scheduler_service.core.sharing.pausing import CONFIRMATION_MS_MAX, order_pause
from scheduler_service.policy_registry import make_policy
from tests.unit.core.test_gangs_across_nodes import PORT, Spanning, spanning_node

Orders = list[tuple[str, str]]


class Pausable(Spanning):
    """A gang on two nodes that can pause."""

    def __init__(self, *, is_started: bool = True, **changes: Any) -> None:
        super().__init__(*(spanning_node(name, enforcements=("stop_signal",)) for name in ("n0", "n1")), **changes)
        if is_started:
            self.start()

    def ask(self, paused_ms_max: int = 60_000) -> Orders:
        return named(self.tell(events.PauseRequested, job_id="j0", paused_ms_max=paused_ms_max))

    def pause(self) -> None:
        self.ask()
        for node_id in ("n0", "n1"):
            self.say(node_id, events.AttemptPaused)

    def hear(self, node_id: str, kind: type[events.AttemptReport], **values: Any) -> Orders:
        return named(self.say(node_id, kind, **values))

    def rejoin(self, node_id: str, *, is_paused: bool) -> Orders:
        record = self.record
        listed = events.RunningAttempt(
            job_id="j0", attempt=1, fence=record.fence, gpu_ids=(f"{node_id}.0",), is_paused=is_paused
        )
        node = spanning_node(node_id, enforcements=("stop_signal",))
        return named(self.tell(events.NodeJoined, node=node, attempts=(listed,)))


@pytest.fixture
def gang() -> Pausable:
    return Pausable()


def named(orders: list[Any]) -> Orders:
    return [(type(one).__name__, one.node_id) for one in orders]


def test_every_node_is_told_to_hold_its_part_and_it_is_paused_when_all_stand_still(gang: Pausable) -> None:
    assert gang.ask() == [("PauseJob", "n0"), ("PauseJob", "n1")]
    assert gang.hear("n1", events.AttemptPaused) == []
    assert gang.phase.value == "running"
    assert gang.hear("n0", events.AttemptPaused) == []
    assert gang.phase.value == "paused"


def test_the_first_part_that_goes_on_takes_the_others_with_it(gang: Pausable) -> None:
    gang.pause()
    assert gang.hear("n1", events.AttemptResumed, paused_ms=900) == [("ResumeJob", "n0")]
    assert (gang.phase, gang.record.pause, gang.record.measured.paused_ms) == (Phase.RUNNING, None, 900)
    assert gang.hear("n0", events.AttemptResumed, paused_ms=1_000) == []
    assert gang.phase is Phase.RUNNING


def test_by_order_all_parts_go_on(gang: Pausable) -> None:
    gang.pause()
    resumed = gang.tell(events.ResumeRequested, job_id="j0")
    assert named(resumed) == [("ResumeJob", "n0"), ("ResumeJob", "n1")]


def test_time_counts_while_any_part_runs_and_not_while_all_stand_still(gang: Pausable) -> None:
    gang.ask()
    gang.say("n0", events.AttemptPaused)
    before_ms = ran_ms(gang.record, gang.now_ms)
    gang.say("n1", events.AttemptPaused)
    assert ran_ms(gang.record, gang.now_ms) == before_ms + 1_000
    gang.now_ms += 20_000
    gang.say("n0", events.AttemptResumed)
    assert ran_ms(gang.record, gang.now_ms) == before_ms + 1_000
    gang.say("n1", events.AttemptResumed)
    assert ran_ms(gang.record, gang.now_ms) == before_ms + 2_000


def test_a_part_that_cannot_be_paused_lets_the_others_go_on_and_an_operator_hears_why(gang: Pausable) -> None:
    gang.ask()
    gang.say("n0", events.AttemptPaused)
    refused = {"code": "NOT_PAUSABLE", "message": "stuck in the driver"}
    assert gang.hear("n1", events.PauseRefused, **refused) == [("ResumeJob", "n0")]
    assert (gang.phase, gang.record.pause) == (Phase.RUNNING, None)
    assert gang.record.history[-1].message == "NOT_PAUSABLE: node n1: stuck in the driver"


def test_where_the_scheduler_wanted_the_pause_a_refusal_stops_the_whole_gang_with_a_checkpoint(gang: Pausable) -> None:
    order_pause(gang.engine.state, Pause(job_id="j0", reason=Reason(code="TRIAL_BROKEN")), EventEffects())
    orders = gang.say("n1", events.PauseRefused, code="NOT_PAUSABLE")
    assert named(orders) == [("ResumeJob", "n0"), ("StopJob", "n0"), ("StopJob", "n1")]
    assert [one.checkpoint for one in orders if isinstance(one, commands.StopJob)] == [True, True]
    assert gang.phase is Phase.STOPPING


def test_a_part_of_which_nothing_is_heard_in_time_lets_the_others_go_on(gang: Pausable) -> None:
    gang.ask()
    gang.say("n0", events.AttemptPaused)
    gang.now_ms += CONFIRMATION_MS_MAX
    assert named(gang.tell(events.TimerFired)) == [("ResumeJob", "n0"), ("ResumeJob", "n1")]
    assert (gang.phase, gang.record.pause) == (Phase.RUNNING, None)
    assert gang.hear("n0", events.AttemptResumed) == []


def test_a_part_that_goes_on_before_the_last_one_stands_still_withdraws_the_pause(gang: Pausable) -> None:
    gang.ask(paused_ms_max=1_500)
    gang.say("n0", events.AttemptPaused)
    assert gang.hear("n0", events.AttemptResumed) == [("ResumeJob", "n0"), ("ResumeJob", "n1")]
    assert gang.record.pause is None
    assert gang.hear("n1", events.AttemptPaused) == [("ResumeJob", "n1")]
    assert gang.phase is Phase.RUNNING


def test_a_pause_that_is_ordered_before_all_parts_run_waits_for_the_last_one() -> None:
    gang = Pausable(is_started=False)
    assert gang.ask() == []
    gang.say("n0", events.JobStarted, rendezvous_port=PORT)
    assert gang.hear("n1", events.JobStarted) == [("PauseJob", "n0"), ("PauseJob", "n1")]


def test_a_stop_of_paused_parts_reaches_all_of_them_and_a_lost_part_ends_the_pause(gang: Pausable) -> None:
    gang.pause()
    assert gang.hear("n1", events.JobFailed, exit_class="signal", exit_code=-9) == [("StopJob", "n0")]
    assert (gang.phase, gang.record.pause) == (Phase.STOPPING, None)
    assert gang.hear("n0", events.AttemptPaused) == []
    gang.say("n0", events.JobStopped, exit_class="checkpointed", exit_code=85)
    assert gang.phase is Phase.PENDING


def test_a_part_that_has_ended_with_success_is_not_told_of_a_pause(gang: Pausable) -> None:
    gang.say("n1", events.JobFinished, steps_done=0)
    assert gang.ask() == [("PauseJob", "n0")]
    gang.say("n0", events.AttemptPaused)
    assert gang.phase is Phase.PAUSED


def test_orders_are_repeated_after_a_crash_and_to_the_node_that_comes_back(gang: Pausable) -> None:
    gang.ask()
    gang.say("n0", events.AttemptPaused)
    restored = SchedulerEngine.restore(gang.engine.snapshot(), make_policy=make_policy)
    assert restored.state.jobs["j0"] == gang.record
    again = [one for one in restored.reissue() if isinstance(one, commands.PauseJob)]
    assert [one.node_id for one in again] == ["n0", "n1"]
    assert gang.rejoin("n1", is_paused=False) == [("PauseJob", "n1")]
    assert gang.rejoin("n1", is_paused=True) == []
    assert gang.phase.value == "paused"
    assert gang.rejoin("n0", is_paused=False) == [("ResumeJob", "n1")]
    assert gang.phase.value == "running"


def test_a_pause_that_nobody_wants_is_ended_where_it_is(gang: Pausable) -> None:
    assert gang.hear("n1", events.AttemptPaused) == [("ResumeJob", "n1")]
    assert gang.phase.value == "running"
    assert gang.hear("n0", events.AttemptPaused) == [("ResumeJob", "n0"), ("ResumeJob", "n1")]
    assert gang.record.pause is not None
    assert gang.record.pause.reason.code == "PAUSE_UNWANTED"
    assert gang.hear("n0", events.AttemptResumed) == [("ResumeJob", "n1")]
    assert gang.phase is Phase.RUNNING


def test_what_comes_late_or_from_elsewhere_changes_nothing(gang: Pausable) -> None:
    gang.ask()
    assert gang.hear("n0", events.AttemptResumed) == []
    assert gang.record.pause is not None
    before = gang.record
    for kind in (events.AttemptPaused, events.AttemptResumed):
        assert gang.hear("elsewhere", kind) == []
    assert gang.record == before


def test_whoever_looks_ahead_may_tell_of_the_pause_of_all_parts_at_once(gang: Pausable) -> None:
    gang.say("", events.AttemptPaused)
    assert gang.phase.value == "paused"
    gang.say("", events.AttemptResumed)
    assert gang.phase.value == "running"
