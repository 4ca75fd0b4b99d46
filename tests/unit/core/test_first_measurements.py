"""A job that was never measured is measured next to a running one, which is paused for a window; then both share."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.lifecycle.trial_start import TRIAL_MS
from scheduler_service.core.predictions.measured_alone import bound_of_peak
from scheduler_service.core.records import REPORT_INTERVAL_MS, Phase, Share, TrialStage
from scheduler_service.core.sharing.pausing import CONFIRMATION_MS_MAX
from scheduler_service.core.trial_sharing.first_measurement_rules import (
    LENT_PAUSES_MAX,
    LENT_RATIO_LEAST,
    needed_to_measure_bytes,
    pause_ms_least,
)
from scheduler_service.core.trial_sharing.first_measurements import START_UP_MS_MAX
from scheduler_service.policy_registry import make_policy
from tests.support.scheduling import GIB, gpu, job, memory, node, pair, prediction
from tests.unit.core.test_trials import WINDOW_MS, TrialPlay, launched, stopped

FREEZER = {"enforcements": ("cgroup_freezer",)}


def one_device(**options: Any) -> TrialPlay:
    """Job `a` runs alone on the only GPU, a long one that was measured, on a node that can pause."""
    play = TrialPlay("sjf_bsbf", nodes=0, **options)
    play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
    play.unsure("a", max_slowdown_ratio=0.5)
    play.measured_alone("a")
    return play


def starting_up(**changes: Any) -> TrialPlay:
    """The same, and `b` has begun next to it."""
    play = one_device()
    assert launched(play.unsure("b", **{"max_slowdown_ratio": 0.5, **changes})) == ["b"]
    play.report(events.JobStarted, "b")
    return play


def measuring(**changes: Any) -> TrialPlay:
    """The same, `b` makes steps, and `a` stands still."""
    play = starting_up(**changes)
    assert paused(play.window("b")) == ["a"]
    play.report(events.AttemptPaused, "a")
    return play


def paused(orders: list[commands.Command]) -> list[str]:
    return [order.job_id for order in orders if isinstance(order, commands.PauseJob)]


def resumed(orders: list[commands.Command]) -> list[str]:
    return [order.job_id for order in orders if isinstance(order, commands.ResumeJob)]


def reason_of(play: TrialPlay, job_id: str) -> str:
    return play.engine.state.jobs[job_id].reason.code


def stage(play: TrialPlay, job_id: str = "b") -> TrialStage | None:
    trial = play.engine.state.jobs[job_id].trial
    return trial.stage if trial is not None else None


def test_a_job_that_was_never_measured_starts_in_the_memory_that_a_measured_one_leaves() -> None:
    play = one_device()
    (order,) = (one for one in play.unsure("b", max_slowdown_ratio=0.5) if isinstance(one, commands.LaunchJob))
    kept = play.engine.state.jobs["a"].shape.memory_reserved_bytes
    assert (order.memory_limit_bytes, order.yields_memory) == (8 * GIB - kept, True)
    assert [limit.memory_limit_bytes for limit in order.co_located_limits] == [kept]
    assert reason_of(play, "b") == "STARTS_TO_BE_MEASURED"
    assert play.engine.state.jobs["b"].reason.job_ids == ("a",)


def test_the_other_job_runs_on_until_the_new_job_makes_steps() -> None:
    play = starting_up()
    assert paused(play.window("a", 150)) == []
    assert paused(play.tell(events.TimerFired)) == []
    assert paused(play.window("b")) == ["a"]
    assert play.engine.state.jobs["a"].reason.code != "PAUSED_FOR_MEASUREMENT", "the pause has a reason of its own"
    pause = play.engine.state.jobs["a"].pause
    assert pause is not None
    assert (pause.reason.code, pause.reason.job_ids) == ("PAUSED_FOR_MEASUREMENT", ("b",))
    assert reason_of(play, "b") == "IS_MEASURED"


def test_nothing_is_learned_of_a_pair_while_the_new_job_starts_up() -> None:
    play = starting_up()
    for _ in range(3):
        play.window("a", 300)
    assert play.engine.state.predictions.pair("key-a", "key-b", "standin") is None
    assert play.engine.state.predictions.sound_solo_step_ms("key-a", "standin", gpus=1, micro_batch_size=1) == 100


def test_a_window_beside_a_paused_job_measures_the_new_job_alone_and_then_both_share_on_trial() -> None:
    play = measuring()
    orders = play.window("b", 100, peak=2.0)
    assert (resumed(orders), stopped(orders)) == (["a"], [])
    known = play.engine.state.predictions.job("key-b", "standin")
    assert known is not None
    assert (known.measured_micro_batch_sizes, known.step_ms) == ((1,), {(1, 1): 100})
    assert play.engine.state.jobs["b"].shape.memory_reserved_bytes == int(2.0 * GIB * 1.15)
    assert (stage(play), reason_of(play, "b")) == (TrialStage.SHARING, "STARTS_ON_TRIAL")
    play.report(events.AttemptResumed, "a")
    play.window("b", 120)
    for _ in range(4):
        play.window("a", 120)
        play.window("b", 120)
    assert reason_of(play, "b") == "TRIAL_PASSED"


def test_once_both_were_measured_only_their_peaks_and_margins_are_kept_of_the_device() -> None:
    play = measuring()
    play.window("b", 100, peak=1.0)
    assert play.engine.state.gpus["n0.0"].memory_reserved_bytes == 2 * int(1.15 * GIB)


def test_a_job_that_is_known_to_slow_the_other_one_down_too_much_is_not_measured_next_to_it() -> None:
    play = one_device()
    known = [pair(f"key-{one}", f"key-{two}", 0.9) for one, two in ("ab", "ba")]
    play.submit("b", graph="f" * 64, steps_total=1_000_000)
    for key in "ab":
        assert (
            launched(play.tell(events.PredictionArrived, prediction=prediction(f"key-{key}", step_ms={(1, 1): 100.0})))
            == []
        )
    assert launched(play.tell(events.PairPredictionsArrived, pairs=tuple(known))) == []
    assert play.code("b") == "SLOWDOWN_TOO_HIGH"


def test_a_new_job_that_would_slow_the_other_one_down_too_much_leaves_and_that_one_goes_on_at_once() -> None:
    play = measuring(max_slowdown_ratio=0.3)
    orders = play.window("b", utilization_ratio=1.0)
    assert (resumed(orders), stopped(orders)) == (["a"], ["b"])
    assert reason_of(play, "b") == "MEASURED_APART"
    assert play.engine.state.jobs["b"].reason.numbers["max_slowdown_ratio"] == 0.3
    play.report(events.AttemptResumed, "a")
    assert launched(play.stopped("b")) == []
    assert play.code("b") == "SLOWDOWN_TOO_HIGH"
    assert play.engine.state.jobs["a"].counts.broken_trials == 0


def test_a_new_job_whose_peak_leaves_no_room_for_the_other_one_leaves() -> None:
    play = measuring()
    orders = play.window("b", peak=6.5)
    assert stopped(orders) == ["b"]
    assert reason_of(play, "b") == "TRIAL_MEMORY"
    assert "a" in resumed(orders) or "a" in resumed(play.tell(events.TimerFired))


def test_the_other_job_grows_into_what_the_new_job_does_not_use() -> None:
    play = starting_up()
    assert stopped(play.window("a", peak=1.1)) == []
    jobs = play.engine.state.jobs
    assert jobs["a"].shape.memory_reserved_bytes == bound_of_peak(int(1.1 * GIB))
    assert jobs["a"].shape.memory_reserved_bytes + jobs["b"].shape.memory_reserved_bytes == 8 * GIB


def test_the_new_job_gives_way_where_the_other_one_needs_what_it_uses() -> None:
    play = starting_up()
    play.report(events.JobProgressed, "b", steps_done=0, memory_peak_bytes=5 * GIB)
    assert stopped(play.window("a", peak=3.0)) == ["b"]


def test_a_new_job_that_was_not_measured_during_the_pause_leaves_and_is_not_started_so_again() -> None:
    play = measuring()
    play.window("b", quality_flags=("foreign_load",))
    play.report(events.AttemptResumed, "a", after_ms=60_000)
    assert stopped(play.window("b")) == ["b"]
    assert reason_of(play, "b") == "NOT_MEASURED_IN_TIME"
    assert launched(play.stopped("b")) == []
    assert launched(play.tell(events.TimerFired, after_ms=60_000)) == []


def test_a_pause_that_is_refused_or_lapses_lets_the_new_job_leave_and_not_the_other_job() -> None:
    play = starting_up()
    play.window("b")
    assert stopped(play.report(events.PauseRefused, "a", code="NOT_PAUSABLE", message="MPS")) == []
    assert stopped(play.window("b")) == ["b"]
    play = starting_up()
    play.window("b")
    play.tell(events.TimerFired, after_ms=CONFIRMATION_MS_MAX)
    assert stopped(play.window("b")) == ["b"]


def test_a_new_job_that_makes_no_step_leaves_after_a_while_although_nobody_was_paused() -> None:
    play = starting_up()
    waited_ms, orders = 0, list[commands.Command]()
    while not stopped(orders) and waited_ms < 2 * START_UP_MS_MAX:
        orders = play.tell(events.TimerFired, after_ms=TRIAL_MS)
        waited_ms += TRIAL_MS
    assert waited_ms <= START_UP_MS_MAX
    assert play.engine.state.jobs["a"].counts.lent_pauses == 0


def test_a_new_job_whose_start_slows_the_other_job_down_leaves_after_a_minute() -> None:
    play = starting_up()
    for _ in range(3):
        play.window("a", 400)
    assert stopped(play.tell(events.TimerFired, after_ms=TRIAL_MS)) == ["b"]


@pytest.mark.parametrize("end", ["cancelled", "failed", "lost"])
def test_whatever_ends_the_new_job_the_other_job_goes_on(end: str) -> None:
    play = measuring()
    if end == "cancelled":
        assert resumed(play.tell(events.JobCancelled, job_id="b")) == ["a"]
    elif end == "failed":
        assert resumed(play.report(events.JobFailed, "b", exit_class="error")) == ["a"]
    else:
        assert resumed(play.report(events.JobFailed, "b", exit_class="lost")) == ["a"]
    play.report(events.AttemptResumed, "a")
    assert play.phase("a") is Phase.RUNNING


def test_the_end_of_the_other_job_leaves_the_new_job_alone() -> None:
    play = measuring()
    play.tell(events.JobCancelled, job_id="a")
    play.report(events.JobStopped, "a", exit_class="stopped")
    assert (play.phase("b"), stage(play)) == (Phase.RUNNING, None)
    play.window("b")
    play.window("b")
    assert play.engine.state.predictions.job("key-b", "standin").measured_micro_batch_sizes == (1,)  # type: ignore[union-attr]


def test_paused_time_counts_for_nothing_and_what_was_lent_is_remembered() -> None:
    play = measuring()
    ran_ms = play.engine.state.jobs["a"].ran_ms
    play.window("b")
    play.report(events.AttemptResumed, "a", after_ms=500)
    record = play.engine.state.jobs["a"]
    assert (record.ran_ms, record.counts.lent_ms, record.counts.lent_pauses) == (ran_ms, WINDOW_MS + 500, 1)


@pytest.mark.parametrize(
    "changes", [{"no_trial": True}, {"share": Share.NEVER}, {"gpus": 2}, {"memory_request_bytes": 7 * GIB}]
)
def test_a_job_that_may_not_share_or_needs_more_than_is_left_is_not_started_so(changes: dict[str, Any]) -> None:
    assert launched(one_device().unsure("b", **changes)) == []


def test_a_job_whose_unsure_bound_does_not_fit_into_what_is_left_is_not_started_so() -> None:
    play = TrialPlay("sjf_bsbf", nodes=0)
    play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
    play.unsure("a")
    play.measured_alone("a", peak=6.5)
    assert launched(play.unsure("b")) == [], "nearly nothing is left"


def test_a_job_of_which_nothing_is_predicted_starts_where_half_of_the_device_is_free() -> None:
    play = one_device()
    assert launched(play.submit("b", key="command")) == ["b"]
    play = TrialPlay("sjf_bsbf", nodes=0)
    play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
    play.unsure("a")
    play.measured_alone("a", peak=3.5)
    assert launched(play.submit("b", key="command")) == [], "less than 4 of 8 GiB are left"


@pytest.mark.parametrize(
    "changes",
    [
        {"no_trial": True},
        {"max_slowdown_ratio": 0.0},
        {"steps_total": 400},
        {"steps_total": 2_500},
    ],
    ids=["refuses trials", "accepts no slowdown", "ends within a minute", "would lend more than 5 % of its life"],
)
def test_no_job_is_paused_that_refuses_it_or_that_would_lose_too_much(changes: dict[str, Any]) -> None:
    play = TrialPlay("sjf_bsbf", nodes=0)
    play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
    play.unsure("a", **changes)
    play.measured_alone("a")
    assert launched(play.unsure("b")) == []


def test_no_job_is_paused_for_another_one_where_the_node_cannot_pause() -> None:
    play = TrialPlay("sjf_bsbf")
    play.unsure("a")
    play.measured_alone("a")
    assert launched(play.unsure("b")) == []


def test_no_job_is_paused_whose_gpu_hardly_any_other_could_share() -> None:
    play = TrialPlay("sjf_bsbf", nodes=0)
    play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
    play.unsure("a", max_slowdown_ratio=0.2)
    play.measured_alone("a", utilization_ratio=0.9)
    assert launched(play.unsure("b")) == []


def test_no_job_is_paused_where_the_operator_does_not_want_that() -> None:
    assert launched(one_device(parameters={"trial_pauses": False}).unsure("b")) == []


def test_no_job_is_started_so_while_a_gpu_is_free() -> None:
    play = one_device()
    play.tell(events.NodeJoined, node=node("n1", 1, **FREEZER))
    play.unsure("b")
    assert play.engine.state.jobs["b"].gpu_ids == ("n1.0",)


def test_a_job_of_unknown_length_lends_once_it_has_run_for_a_while_and_the_scheduler_wakes_then() -> None:
    play = TrialPlay("sjf_bsbf", nodes=0)
    play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
    play.unsure("a", steps_total=0)
    play.measured_alone("a")
    orders = play.unsure("b")
    assert launched(orders) == []
    ran_ms = pause_ms_least(REPORT_INTERVAL_MS) / LENT_RATIO_LEAST / 2
    (wake,) = (one.at_ms for one in orders if isinstance(one, commands.WakeAt) and one.at_ms < ran_ms + 10_000)
    assert launched(play.tell(events.TimerFired, after_ms=wake - play.now_ms)) == ["b"]


def test_two_devices_and_four_jobs_are_measured_two_by_two() -> None:
    play = TrialPlay("sjf_bsbf", nodes=0)
    play.tell(events.NodeJoined, node=node("n0", 2, **FREEZER))
    for job_id in "ab":
        play.unsure(job_id)
        play.measured_alone(job_id)
    assert launched(play.unsure("c")) == ["c"]
    assert launched(play.unsure("d")) == ["d"]
    state = play.engine.state
    assert {state.jobs["c"].gpu_ids, state.jobs["d"].gpu_ids} == {("n0.0",), ("n0.1",)}


def test_a_third_job_does_not_come_next_to_one_that_is_being_measured() -> None:
    play = measuring()
    assert launched(play.unsure("c", key="key-a")) == []
    assert play.phase("c") is Phase.PENDING


def test_a_job_lends_a_few_times_at_most() -> None:
    play = one_device()
    for number in range(LENT_PAUSES_MAX):
        incoming = f"b{number}"
        assert launched(play.unsure(incoming, max_slowdown_ratio=0.5)) == [incoming]
        play.report(events.JobStarted, incoming)
        assert paused(play.window(incoming)) == ["a"]
        play.report(events.AttemptPaused, "a")
        play.report(events.JobFailed, incoming, exit_class="error")
        play.report(events.AttemptResumed, "a")
    assert launched(play.unsure("c", max_slowdown_ratio=0.5)) == []


def test_a_restart_in_the_middle_of_a_measurement_loses_nothing() -> None:
    play = measuring()
    restored = SchedulerEngine.restore(play.engine.snapshot(), make_policy=make_policy)
    assert restored.snapshot() == play.engine.snapshot()
    play.engine = restored
    assert resumed(play.window("b")) == ["a"]
    assert stage(play) is TrialStage.SHARING


def test_an_operators_pause_does_not_end_with_the_measurement() -> None:
    play = starting_up()
    play.tell(events.PauseRequested, job_id="a", paused_ms_max=60_000)
    play.report(events.AttemptPaused, "a")
    assert resumed(play.window("b")) == []
    assert resumed(play.tell(events.JobCancelled, job_id="b")) == []


@pytest.mark.parametrize(
    ("known", "needed_gib"),
    [
        ({"predicted": (1, 3)}, 3),
        ({"predicted": (1, 3), "memory_floor_bytes": 5 * GIB}, 5),
        ({"predicted": (1, 3), "memory_request_bytes": GIB}, 1),
        ({"memory_floor_bytes": GIB}, 1),
        ({}, 4),
    ],
)
def test_a_job_that_was_never_measured_needs_what_is_stated_or_predicted_and_never_less_than_it_ran_out_of(
    known: dict[str, Any], needed_gib: int
) -> None:
    found = prediction(memory=memory(*known["predicted"])) if "predicted" in known else None
    request = job(**{name: value for name, value in known.items() if name != "predicted"})
    assert needed_to_measure_bytes(request, found, 1, gpu()) == needed_gib * GIB
