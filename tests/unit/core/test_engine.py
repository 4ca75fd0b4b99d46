"""What the engine does with one fact after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, HoldMany, Start
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import InvalidTransition
from scheduler_service.core.records import Assignment, Phase, Reason, Share
from scheduler_service.policy_registry import make_policy
from tests.support.engine_invariants import check
from tests.support.engine_play import Play
from tests.support.scheduling import GIB, all_pairs, explained, job, memory, node, prediction


def kinds(found: Sequence[commands.Command]) -> list[str]:
    return [type(command).__name__ for command in found]


def without_pairs(play: Play, key: str) -> list[commands.Command]:
    return play.tell(events.PairPredictionsFailed, device="standin", keys=(key,), code="UNAVAILABLE")


def test_a_job_waits_for_its_predictions_and_then_starts() -> None:
    play = Play()
    assert kinds(play.submit(graph="g")) == ["RequestPrediction"]
    assert play.code() == "AWAITING_PREDICTION"
    found = play.tell(events.PredictionArrived, prediction=prediction())
    assert kinds(found) == ["RequestPairPredictions"]
    assert play.code() == "AWAITING_PREDICTION"
    answer = tuple(all_pairs(["key-j0"]))
    assert kinds(play.tell(events.PairPredictionsArrived, pairs=answer)) == ["LaunchJob"]
    assert play.code() == "STARTS_ALONE"


def test_a_job_that_never_shares_does_not_wait_for_an_answer_about_pairs() -> None:
    play = Play()
    play.submit(graph="g", share=Share.NEVER)
    assert kinds(play.tell(events.PredictionArrived, prediction=prediction())) == ["LaunchJob"]


def test_a_failed_prediction_means_running_alone_and_says_so() -> None:
    play = Play()
    play.submit("j0", graph="g")
    assert kinds(play.tell(events.PredictionFailed, key="key-j0", device="standin", code="UNAVAILABLE")) == [
        "LaunchJob"
    ]
    assert play.code() == "STARTS_ALONE_PREDICTION_FAILED"
    play.submit("j1")
    assert play.code("j1") == "CLUSTER_FULL"


def test_without_a_node_a_job_says_that_none_has_joined() -> None:
    play = Play(nodes=0)
    assert play.submit(graph="g") == []
    assert play.code() == "NO_NODE"
    assert kinds(play.tell(events.NodeJoined, node=node())) == ["RequestPrediction"]


def test_two_jobs_share_when_both_consent_and_the_launch_names_the_memory() -> None:
    play = Play()
    for name in ("a", "b"):
        play.submit(name, key=name, graph="g")
        play.tell(events.PredictionArrived, prediction=prediction(name))
        assert play.code(name) == "AWAITING_PREDICTION"
        if name == "a":
            without_pairs(play, "a")
    (launch,) = play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["a", "b"], 0.15)))
    assert isinstance(launch, commands.LaunchJob)
    assert launch.memory_limit_bytes == 2 * GIB
    assert play.engine.state.jobs["b"].shape.predicted_slowdown_ratio == pytest.approx(0.15)


def test_a_stale_report_changes_nothing() -> None:
    play = Play()
    play.submit()
    play.report(events.JobStarted)
    before = play.engine.snapshot()["state"]
    assert play.report(events.JobFinished, fence=99, steps_done=10) == []
    assert play.report(events.JobFinished, attempt=7, steps_done=10) == []
    after = play.engine.snapshot()["state"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert {**after, "now_ms": 0} == {**before, "now_ms": 0}


def test_a_lost_job_restarts_from_its_checkpoint_with_the_next_fence_after_a_pause() -> None:
    play = Play()
    play.submit()
    play.report(events.JobStarted)
    play.report(events.JobProgressed, steps_done=7, checkpoint_step=5)
    found = play.report(events.JobFailed, exit_class="communication", steps_done=7)
    assert found == [commands.WakeAt(at_ms=play.now_ms + 1_000)]
    assert play.code() == "RESTART_BACKOFF"
    (launch,) = play.tell(events.TimerFired)
    assert isinstance(launch, commands.LaunchJob)
    assert (launch.attempt, launch.fence, launch.steps_done, launch.granted_fences) == (2, 2, 5, (1,))


def test_restarts_are_bounded() -> None:
    play = Play()
    play.submit(restart_limit=2)
    for _ in range(2):
        play.report(events.JobFailed, exit_class="lost")
        play.tell(events.TimerFired, after_ms=60_000)
    play.report(events.JobFailed, exit_class="lost")
    assert play.engine.state.jobs["j0"].reason.code == "RESTART_LIMIT"


def test_a_users_error_is_final() -> None:
    play = Play()
    play.submit()
    play.report(events.JobFailed, exit_class="error", exit_code=3, detail="ValueError")
    record = play.engine.state.jobs["j0"]
    assert (record.phase, record.exit.exit_code, record.exit.exit_detail) == (Phase.FAILED, 3, "ValueError")


def test_out_of_memory_while_sharing_raises_the_floor_above_what_was_available() -> None:
    play = Play()
    for name in ("a", "b"):
        play.submit(name, key=name, graph="g")
        play.tell(events.PredictionArrived, prediction=prediction(name))
    play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["a", "b"])))
    play.report(events.JobFailed, "b", exit_class="gpu_oom", memory_available_bytes=7 * GIB)
    assert play.engine.state.jobs["b"].request.memory_floor_bytes == 7 * GIB + 1
    play.tell(events.TimerFired, after_ms=60_000)
    assert play.code("b") == "MEMORY_DOES_NOT_FIT"
    play.report(events.JobFinished, "a", steps_done=10)
    assert play.phase("b") is Phase.STARTING


def test_out_of_memory_below_what_was_reserved_raises_the_floor_above_the_reservation() -> None:
    play = Play()
    for name in ("a", "b"):
        play.submit(name, key=name, graph="g")
        play.tell(events.PredictionArrived, prediction=prediction(name))
    play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["a", "b"])))
    assert play.engine.state.jobs["b"].shape.memory_reserved_bytes == 2 * GIB
    play.report(events.JobFailed, "b", exit_class="gpu_oom", memory_available_bytes=GIB, memory_peak_bytes=GIB)
    assert play.engine.state.jobs["b"].request.memory_floor_bytes == 2 * GIB + 1


def test_out_of_memory_alone_is_tried_once_more_and_then_final() -> None:
    play = Play()
    play.submit()
    play.report(events.JobFailed, exit_class="gpu_oom")
    play.tell(events.TimerFired, after_ms=60_000)
    assert play.phase() is Phase.STARTING
    play.report(events.JobFailed, exit_class="gpu_oom")
    assert play.engine.state.jobs["j0"].reason.code == "OUT_OF_MEMORY"


def test_a_refused_launch_is_tried_again_a_bounded_number_of_times() -> None:
    play = Play()
    play.submit()
    play.report(events.LaunchRefused, code="COMMAND_NOT_ALLOWED", message="rm")
    assert play.code() == "LAUNCH_REFUSED"
    for _ in range(4):
        play.tell(events.TimerFired, after_ms=600_000)
        play.report(events.LaunchRefused, code="COMMAND_NOT_ALLOWED", message="rm")
    record = play.engine.state.jobs["j0"]
    assert (record.reason.code, record.counts.restarts) == ("LAUNCH_REFUSED_FOR_GOOD", 0)
    assert record.exit.exit_detail == "COMMAND_NOT_ALLOWED: rm"


def test_a_refusal_that_nothing_would_change_ends_the_job_at_once() -> None:
    play = Play()
    play.submit()
    play.report(events.LaunchRefused, code="COMMAND_NOT_ALLOWED", message="rm", is_final=True)
    record = play.engine.state.jobs["j0"]
    assert (record.phase, record.reason.code) == (Phase.FAILED, "LAUNCH_REFUSED_FOR_GOOD")
    assert (record.attempt, record.exit.exit_detail) == (1, "COMMAND_NOT_ALLOWED: rm")


def test_cancelling_stops_first_and_the_gpu_is_free_only_after_the_confirmation() -> None:
    play = Play()
    play.submit()
    (stop,) = play.tell(events.JobCancelled, job_id="j0")
    assert isinstance(stop, commands.StopJob)
    assert play.tell(events.JobCancelled, job_id="j0") == []
    play.submit("next")
    assert play.code("next") == "CLUSTER_FULL"
    assert kinds(play.report(events.JobStopped, exit_class="stopped")) == ["LaunchJob"]
    assert play.phase() is Phase.CANCELLED
    assert play.tell(events.JobCancelled, job_id="j0") == []
    assert play.tell(events.JobCancelled, job_id="never heard of") == []


def test_a_job_that_finishes_while_being_cancelled_is_cancelled() -> None:
    play = Play()
    play.submit()
    play.tell(events.JobCancelled, job_id="j0")
    play.report(events.JobFinished, steps_done=10)
    assert play.phase() is Phase.CANCELLED


def test_the_same_job_twice_is_a_bug_that_tells_the_story() -> None:
    play = Play()
    play.submit()
    with pytest.raises(
        InvalidTransition, match=r"JobSubmitted is impossible for job j0 in phase starting[\s\S]*launch"
    ):
        play.submit()


def joined(play: Play, *attempts: events.RunningAttempt) -> list[commands.Command]:
    play.tell(events.NodeDisconnected, node_id="n0")
    return play.tell(events.NodeJoined, node=node("n0", 1), attempts=attempts)


def held() -> events.RunningAttempt:
    return events.RunningAttempt(job_id="j0", attempt=1, fence=1, gpu_ids=("n0.0",))


def test_a_rejoining_node_keeps_what_both_sides_know() -> None:
    play = Play()
    play.submit()
    assert joined(play, held()) == []
    assert play.phase() is Phase.RUNNING


def test_a_rejoining_node_without_the_running_job_has_lost_it() -> None:
    play = Play()
    play.submit()
    play.report(events.JobStarted)
    joined(play)
    assert (play.phase(), play.code()) == (Phase.PENDING, "RESTART_BACKOFF")


def test_a_rejoining_node_that_never_got_the_order_gets_it_again() -> None:
    play = Play()
    (first,) = play.submit()
    assert joined(play) == [first]


def test_a_rejoining_node_without_the_gpu_of_an_order_has_lost_the_job() -> None:
    play = Play()
    play.submit()
    play.tell(events.NodeDisconnected, node_id="n0")
    orders = play.tell(events.NodeJoined, node=node("n0", []))
    assert "LaunchJob" not in kinds(orders)
    assert (play.phase(), play.engine.state.jobs["j0"].counts.restarts) == (Phase.PENDING, 1)


def test_a_lost_node_gives_its_jobs_back_to_the_queue() -> None:
    play = Play(nodes=2)
    play.submit()
    play.tell(events.NodeDisconnected, node_id="n0")
    assert play.phase() is Phase.STARTING
    play.tell(events.NodeLost, node_id="n0")
    (launch,) = play.tell(events.TimerFired)
    assert isinstance(launch, commands.LaunchJob)
    assert launch.node_id == "n1"


def test_a_sick_gpu_gets_no_work_until_it_is_well() -> None:
    play = Play()
    play.tell(events.GpuHealthChanged, gpu_id="n0.0", healthy=False)
    play.submit()
    assert play.code() == "GPUS_NOT_IN_CLUSTER"
    assert kinds(play.tell(events.GpuHealthChanged, gpu_id="n0.0", healthy=True)) == ["LaunchJob"]


def progress(play: Play, job_id: str, step_ms: int, windows: int) -> list[commands.Command]:
    found = []
    for _ in range(windows):
        done = play.engine.state.jobs[job_id].steps_done + 10
        found += play.report(
            events.JobProgressed, job_id, after_ms=10_000, steps_done=done, window_steps=10, window_ms=10 * step_ms
        )
    return found


def test_measured_slowdown_overrides_the_predicted_one_and_is_reported_once() -> None:
    play = Play()
    for name in ("a", "b"):
        play.submit(name, key=name, graph="g", steps_total=10_000, share=Share.ANY)
        play.tell(events.PredictionArrived, prediction=prediction(name, prediction_id=f"p-{name}"))
        without_pairs(play, name)
        if name == "a":
            play.report(events.JobStarted, "a")
            assert kinds(progress(play, "a", 500, 5)) == ["RecordOutcome"]
    play.report(events.JobStarted, "b")
    assert play.engine.state.jobs["b"].reason.code == "STARTS_SHARED_BLINDLY"
    progress(play, "a", 600, 2)
    seen = play.engine.state.predictions.pair("a", "b", "standin")
    assert seen is not None
    assert (seen.level.value, round(seen.slowdown_ratio, 6)) == ("observed", 0.2)
    assert play.engine.state.jobs["a"].measured.observed_slowdown_ratio == pytest.approx(0.2)
    assert play.engine.state.occupancy.slowdown_ewma_ratios["n0.0"] == pytest.approx(0.9 * 0.1 * 0.2 + 0.1 * 0.2)


def test_ended_jobs_are_kept_up_to_the_bound() -> None:
    play = Play("fifo", ended_jobs_max=3)
    for index in range(6):
        play.submit(f"j{index}")
        play.report(events.JobFinished, f"j{index}", steps_done=10)
    assert sorted(play.engine.state.jobs) == ["j3", "j4", "j5"]


def test_explain_shows_every_gpu_that_was_looked_at() -> None:
    play = Play(gpus=2)
    for index in range(3):
        play.submit(f"j{index}")
    decision = explained(play.engine, "j2")
    assert {candidate.gpu_id: candidate.feasible for candidate in decision.candidates} == {
        "n0.0": False,
        "n0.1": False,
    }
    assert explained(play.engine, "j0").reason.code.startswith("STARTS_ALONE")


def test_after_a_crash_outstanding_orders_are_given_again() -> None:
    play = Play(gpus=2)
    play.submit("j0")
    play.submit("j1")
    play.submit("j2", graph="g")
    play.tell(events.JobCancelled, job_id="j1")
    restored = SchedulerEngine.restore(play.engine.snapshot(), make_policy=make_policy)
    assert kinds(restored.reissue()) == ["RequestPrediction", "LaunchJob", "StopJob"]
    assert restored.snapshot() == play.engine.snapshot()


class Rogue:
    """A policy that gives every job the same GPU, and one job a GPU that does not exist."""

    def decide(self, view: SchedulingView) -> list[Decision]:
        return [
            Start(
                job_id=one.request.job_id,
                reason=Reason(code="STARTS_ALONE"),
                assignments=(Assignment(gpu_id="nowhere" if one.request.job_id == "j2" else "n0.0"),),
                micro_batch_size=1,
            )
            for one in view.pending
        ]


class Broken:
    """A policy with a bug."""

    def decide(self, view: SchedulingView) -> list[Decision]:
        raise ZeroDivisionError("0 / 0")


class Silent:
    """A policy that forgets jobs."""

    def decide(self, view: SchedulingView) -> list[Decision]:
        return [HoldMany(job_ids=("another job",), reason=Reason(code="CLUSTER_FULL"))]


@pytest.mark.parametrize(
    ("rogue", "codes"),
    [
        (Rogue(), ["STARTS_ALONE", "JOB_UNKNOWN", "GPU_NOT_USABLE"]),
        (Broken(), ["POLICY_FAILED"] * 3),
        (Silent(), ["NO_DECISION"] * 3),
    ],
)
def test_a_wrong_policy_is_recorded_and_breaks_nothing(rogue: Any, codes: list[str]) -> None:
    engine = SchedulerEngine(make_policy=lambda name, parameters: rogue, policy="rogue")
    for index in range(3):
        engine.handle(events.JobSubmitted(at_ms=index, request=job(f"j{index}")))
    engine.handle(events.NodeJoined(at_ms=10, node=node()))
    check(engine.state)
    assert [engine.state.decisions[f"j{index}"].reason.code for index in range(3)] == codes
    assert engine.state.rejected


def test_time_never_goes_back() -> None:
    play = Play()
    play.tell(events.TimerFired, after_ms=-500)
    assert play.engine.state.now_ms == 1_000


def test_a_job_that_cannot_be_trusted_keeps_its_gpu_to_itself() -> None:
    play = Play()
    for name in ("a", "b"):
        play.submit(name, key=name, graph="g")
        play.tell(events.PredictionArrived, prediction=prediction(name, in_domain=name == "b", memory=memory(1)))
        without_pairs(play, name)
    assert play.engine.state.gpus["n0.0"].memory_reserved_bytes == 8 * GIB
    assert play.code("b") == "CLUSTER_FULL"
