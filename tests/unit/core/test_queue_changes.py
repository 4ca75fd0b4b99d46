"""Holding, altering, depending, arrays, cordons and limits: what the queue does before any policy is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_service.core import commands, events, queue_events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.queue.queue_terms import QueueTerms, is_device_named
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Phase, Share
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.scheduling import gpu, job, node


def play(gpus: int = 1, **options: Any) -> Play:
    return Play("fifo", gpus=gpus, **options)


def submit(scene: Play, job_id: str, *, gpus: int = 1, **terms: Any) -> None:
    scene.submit(job_id, gpus=gpus, terms=QueueTerms(**terms))


def restored(scene: Play, **options: Any) -> Play:
    """The same cluster after a restart that wrote a snapshot."""
    snapshot = json.loads(json.dumps(scene.engine.snapshot()))
    again = Play("fifo", nodes=0, **options)
    again.engine = SchedulerEngine.restore(snapshot, make_policy=make_policy, **options)
    again.now_ms = scene.now_ms
    return again


def finish(scene: Play, job_id: str) -> None:
    scene.report(events.JobFinished, job_id, steps_done=10)


def test_a_held_job_waits_on_a_free_gpu_until_it_is_released() -> None:
    scene = play()
    submit(scene, "j0", is_held=True)
    assert (scene.phase(), scene.code()) == (Phase.PENDING, "HELD")
    scene = restored(scene)
    scene.tell(queue_events.JobReleased, job_id="j0")
    assert scene.phase() is Phase.STARTING


def test_a_waiting_job_that_is_held_lets_the_next_one_pass() -> None:
    scene = play()
    submit(scene, "j0")
    submit(scene, "j1")
    submit(scene, "j2")
    scene.tell(queue_events.JobHeld, job_id="j1")
    finish(scene, "j0")
    assert (scene.phase("j1"), scene.code("j1"), scene.phase("j2")) == (Phase.PENDING, "HELD", Phase.STARTING)


def test_a_running_job_cannot_be_held() -> None:
    scene = play()
    submit(scene, "j0")
    scene.tell(queue_events.JobHeld, job_id="j0")
    assert scene.phase() is Phase.STARTING
    assert not scene.engine.state.jobs["j0"].request.terms.is_held


def test_an_altered_job_asks_for_something_else() -> None:
    scene = play()
    submit(scene, "j0")
    submit(scene, "j1")
    submit(scene, "j2")
    changed: dict[str, Any] = {
        "priority": 100,
        "share": Share.NEVER,
        "max_slowdown_ratio": 0.5,
        "time_limit_ms": 60_000,
    }
    scene.tell(queue_events.JobAltered, job_id="j2", launch={"priority": 100}, **changed)
    altered = scene.engine.state.jobs["j2"]
    assert (altered.request.share, altered.request.max_slowdown_ratio) == (Share.NEVER, 0.5)
    assert (altered.request.terms.time_limit_ms, altered.submission.launch) == (60_000, {"priority": 100})
    finish(scene, "j0")
    assert (scene.phase("j2"), scene.phase("j1")) == (Phase.STARTING, Phase.PENDING)


def test_a_job_starts_after_the_jobs_that_it_waits_for() -> None:
    scene = play(gpus=3)
    submit(scene, "j0")
    submit(scene, "j1")
    submit(scene, "child", after_job_ids=("j0", "j1"))
    assert scene.code("child") == "AFTER"
    finish(scene, "j0")
    assert scene.engine.state.decisions["child"].reason.job_ids == ("j1",)
    scene = restored(scene)
    finish(scene, "j1")
    assert scene.phase("child") is Phase.STARTING


@pytest.mark.parametrize("any_end", [False, True])
def test_a_failed_job_cancels_those_that_wait_for_its_success_and_theirs(any_end: bool) -> None:
    scene = play()
    submit(scene, "j0")
    submit(scene, "child", after_job_ids=("j0",), after_any=any_end)
    submit(scene, "grandchild", after_job_ids=("child",))
    scene.report(events.JobFailed, "j0", exit_class="error", exit_code=1)
    if any_end:
        assert (scene.phase("child"), scene.code("grandchild")) == (Phase.STARTING, "AFTER")
    else:
        assert scene.engine.state.jobs["grandchild"].reason.code == "PARENT_FAILED"
        assert (scene.phase("child"), scene.phase("grandchild")) == (Phase.CANCELLED, Phase.CANCELLED)


def test_a_long_chain_of_jobs_falls_with_its_first() -> None:
    scene = play()
    submit(scene, "j0", gpus=9)
    for number in range(1, 1_500):
        scene.engine.handle(
            events.JobSubmitted(
                at_ms=scene.now_ms,
                request=job(f"j{number}", terms=QueueTerms(after_job_ids=(f"j{number - 1}",))),
            )
        )
    scene.tell(events.JobCancelled, job_id="j0")
    assert not scene.engine.state.in_phase(Phase.PENDING)


def test_an_array_runs_no_more_tasks_at_once_than_it_may() -> None:
    scene = play(gpus=8)
    for index in range(6):
        submit(scene, f"t{index}", array_id="array-1", array_index=index, array_running_max=2)
    submit(scene, "other")
    running = [job_id for job_id in scene.engine.state.running if job_id.startswith("t")]
    assert (running, scene.code("t2")) == (["t0", "t1"], "ARRAY_LIMIT")
    assert scene.phase("other") is Phase.STARTING
    scene = restored(scene)
    finish(scene, "t1")
    assert [scene.phase(f"t{index}") for index in (2, 3)] == [Phase.STARTING, Phase.PENDING]


def test_a_task_that_waits_again_comes_before_the_later_ones() -> None:
    scene = play(gpus=8)
    for index in range(4):
        submit(scene, f"t{index}", array_id="array-1", array_index=index, array_running_max=2)
    scene.report(events.JobFailed, "t0", exit_class="signal", exit_code=9)
    assert (scene.code("t0"), scene.phase("t2"), scene.code("t2")) == ("RESTART_BACKOFF", Phase.PENDING, "ARRAY_LIMIT")
    scene.tell(events.TimerFired, after_ms=2_000)
    assert [scene.phase(f"t{index}") for index in range(3)] == [Phase.STARTING, Phase.STARTING, Phase.PENDING]


def test_a_held_task_leaves_its_place_to_the_next() -> None:
    scene = play()
    submit(scene, "busy")
    for index in range(3):
        submit(scene, f"t{index}", array_id="array-1", array_index=index, array_running_max=1)
    scene.tell(queue_events.JobHeld, job_id="t0")
    assert (scene.code("t0"), scene.code("t2")) == ("HELD", "ARRAY_LIMIT")
    finish(scene, "busy")
    assert scene.phase("t1") is Phase.STARTING


def test_nothing_starts_on_a_cordoned_node_and_what_runs_there_runs_on() -> None:
    scene = Play("fifo", nodes=2)
    scene.tell(queue_events.NodeCordoned, node_id="n0")
    scene = restored(scene)
    submit(scene, "j0")
    submit(scene, "j1")
    assert scene.engine.state.jobs["j0"].gpu_ids == ("n1.0",)
    assert scene.phase("j1") is Phase.PENDING
    scene.tell(events.NodeJoined, node=node("n0", 1))
    assert scene.phase("j1") is Phase.PENDING, "an agent that dials in again undoes no cordon"
    scene.tell(queue_events.NodeUncordoned, node_id="n0")
    assert scene.engine.state.jobs["j1"].gpu_ids == ("n0.0",)


def test_a_drained_node_gives_its_jobs_to_others_with_their_checkpoints() -> None:
    scene = Play("fifo", nodes=2)
    submit(scene, "j0")
    scene.report(events.JobStarted)
    orders = scene.tell(queue_events.NodeCordoned, node_id="n0", is_draining=True)
    stops = [order for order in orders if isinstance(order, commands.StopJob)]
    assert [(stop.job_id, stop.checkpoint) for stop in stops] == [("j0", True)]
    scene.report(events.JobStopped, exit_class="stopped", steps_done=4, checkpoint_step=4)
    moved = scene.engine.state.jobs["j0"]
    assert (moved.gpu_ids, moved.steps_done, moved.counts.restarts) == (("n1.0",), 4, 0)
    scene.tell(queue_events.NodeUncordoned, node_id="n0")
    submit(scene, "j1")
    assert scene.engine.state.jobs["j1"].gpu_ids == ("n0.0",)


def test_a_job_is_stopped_with_a_checkpoint_when_its_time_is_over() -> None:
    scene = play()
    submit(scene, "j0", time_limit_ms=60_000)
    scene.report(events.JobStarted)
    wakes = [one.at_ms for one in scene.engine.reissue() if isinstance(one, commands.WakeAt)]
    assert min(wakes) == scene.engine.state.jobs["j0"].times.started_at_ms + 60_000
    scene.tell(events.TimerFired, after_ms=58_000)
    assert scene.phase() is Phase.RUNNING
    orders = scene.tell(events.TimerFired, after_ms=1_000)
    assert [one.checkpoint for one in orders if isinstance(one, commands.StopJob)] == [True]
    scene.report(events.JobStopped, exit_class="stopped", steps_done=4, checkpoint_step=4)
    assert (scene.phase(), scene.engine.state.jobs["j0"].reason.code) == (Phase.FAILED, "TIME_LIMIT")


def test_neither_a_pause_nor_the_queue_counts_for_the_time_limit() -> None:
    scene = Play("fifo", nodes=0)
    scene.tell(events.NodeJoined, node=node("n0", 1, enforcements=("stop_signal",)))
    submit(scene, "j0", time_limit_ms=60_000)
    scene.report(events.JobStarted)
    scene.tell(events.PauseRequested, job_id="j0", paused_ms_max=60_000)
    scene.report(events.AttemptPaused, "j0")
    scene.report(events.AttemptResumed, "j0", after_ms=50_000, paused_ms=50_000)
    scene.tell(events.TimerFired, after_ms=10_000)
    assert scene.phase() is Phase.RUNNING
    scene.report(events.JobFailed, exit_class="signal", exit_code=9)
    scene.tell(events.TimerFired, after_ms=100_000)
    scene.report(events.JobStarted)
    scene.tell(events.TimerFired, after_ms=40_000)
    assert scene.phase() is Phase.RUNNING
    scene.tell(events.TimerFired, after_ms=20_000)
    assert scene.phase() is Phase.STOPPING


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_that_makes_no_step_any_more_stalls(restarts: bool) -> None:
    scene = play(stall_ms=600_000)
    submit(scene, "j0", restarts_stalled=restarts)
    scene.report(events.JobStarted)
    scene.tell(events.TimerFired, after_ms=3_600_000)
    assert scene.phase() is Phase.RUNNING, "a job that never reports does not stall"
    scene.report(events.JobProgressed, steps_done=2, window_steps=2, window_ms=200_000, checkpoint_step=1)
    scene.tell(events.TimerFired, after_ms=900_000)
    assert not scene.engine.state.jobs["j0"].measured.stalled_since_ms, "nine of its own steps are no stall"
    scene.tell(events.TimerFired, after_ms=200_000)
    stalled = scene.engine.state.jobs["j0"]
    assert stalled.measured.stalled_since_ms == scene.now_ms - 1_100_000
    assert scene.phase() is (Phase.STOPPING if restarts else Phase.RUNNING)
    if restarts:
        scene.report(events.JobStopped, exit_class="stopped", steps_done=2, checkpoint_step=1)
        assert (scene.code(), scene.engine.state.jobs["j0"].counts.restarts) == ("RESTART_BACKOFF", 1)
    else:
        scene.report(events.JobProgressed, steps_done=3, window_steps=1, window_ms=1_000)
        assert not scene.engine.state.jobs["j0"].measured.stalled_since_ms


def test_somebody_looks_for_stalls_while_a_job_runs() -> None:
    scene = play(stall_ms=600_000)
    submit(scene, "j0")
    assert commands.WakeAt(at_ms=150_000) in scene.engine.reissue()


def test_a_job_runs_only_on_the_devices_that_it_names() -> None:
    scene = Play("fifo", nodes=0)
    cards = (gpu("a", device="NVIDIA L40S"), gpu("b", device="NVIDIA A100-SXM4-40GB", index=1))
    scene.tell(events.NodeJoined, node=node("n0", cards))
    submit(scene, "j0", devices=("a100",))
    submit(scene, "j1", devices=("a100",))
    submit(scene, "j2")
    assert scene.engine.state.jobs["j0"].gpu_ids == ("b",)
    assert (scene.phase("j1"), scene.engine.state.jobs["j2"].gpu_ids) == (Phase.PENDING, ("a",))


@for_each(
    ("name", "device", "fits"),
    [
        ("a100", "NVIDIA A100-SXM4-40GB", True),
        ("a100 40gb", "NVIDIA A100-SXM4-40GB", True),
        ("l4", "NVIDIA L40S", False),
        ("L4", "NVIDIA L4", True),
        ("40gb a100", "NVIDIA A100-SXM4-40GB", False),
        ("rtx 4090", "NVIDIA GeForce RTX 4090", True),
    ],
)
def test_a_device_is_named_by_words_of_its_name(name: str, device: str, fits: bool) -> None:
    assert is_device_named((name,), device) is fits


def test_a_job_without_a_checkpoint_is_not_said_to_have_one_when_its_time_is_over() -> None:
    scene = play()
    submit(scene, "j0", time_limit_ms=60_000)
    scene.report(events.JobStarted)
    scene.tell(events.TimerFired, after_ms=60_000)
    scene.report(events.JobStopped, exit_class="stopped", steps_done=4)
    told = describe_reason(scene.engine.state.jobs["j0"].reason)
    assert told == "The job had run for its time limit, 1m, and was stopped, after an order for a checkpoint."


def _told(scene: Play) -> str:
    return describe_reason(scene.engine.state.jobs["j0"].reason)


def test_a_job_off_which_no_step_was_read_is_said_to_lose_its_time() -> None:
    scene = play()
    submit(scene, "j0")
    scene.report(events.JobStarted, "j0")
    scene.report(events.JobProgressed, "j0", after_ms=120_000, steps_done=0)
    scene.tell(queue_events.JobHeld, job_id="j0", stops_running=True)
    assert _told(scene).endswith(" unless its script writes one now, 2m2s of work would be lost.")


@pytest.mark.parametrize("way", ["hold", "drain", "cancel"])
def test_a_job_that_never_wrote_a_checkpoint_is_said_to_lose_its_steps_when_it_is_stopped(way: str) -> None:
    scene = play()
    submit(scene, "j0")
    scene.report(events.JobStarted, "j0")
    scene.report(events.JobProgressed, "j0", after_ms=120_000, steps_done=1_200)
    orders: dict[str, tuple[type[events.Event], dict[str, Any]]] = {
        "hold": (queue_events.JobHeld, {"job_id": "j0", "stops_running": True}),
        "drain": (queue_events.NodeCordoned, {"node_id": "n0", "is_draining": True}),
        "cancel": (events.JobCancelled, {"job_id": "j0"}),
    }
    kind, values = orders[way]
    scene.tell(kind, **values)
    assert _told(scene).endswith(
        " It has written no checkpoint so far: unless its script writes one now, 1200 steps made in 2m2s would be lost."
    )
    scene.report(events.JobStopped, "j0", exit_class="stopped", exit_code=143, steps_done=1_250)
    if way != "cancel":
        assert "It had written no checkpoint: 1250 steps were lost." in _told(scene)
        assert "1250 steps lost" in scene.engine.state.jobs["j0"].history[-1].message


def test_a_job_that_has_written_a_checkpoint_is_said_to_lose_nothing() -> None:
    scene = play()
    submit(scene, "j0")
    scene.report(events.JobStarted, "j0")
    scene.report(events.JobProgressed, "j0", after_ms=120_000, steps_done=1_200, checkpoint_step=1_000)
    scene.tell(queue_events.JobHeld, job_id="j0", stops_running=True)
    assert "no checkpoint" not in _told(scene)
    scene.report(events.JobStopped, "j0", exit_class="checkpointed", exit_code=85, checkpoint_step=1_210)
    assert "lost" not in _told(scene)


def test_a_running_job_is_stopped_with_a_checkpoint_to_be_held_and_goes_on_once_it_is_released() -> None:
    scene = play()
    submit(scene, "j0")
    submit(scene, "j1")
    scene.report(events.JobStarted, "j0")
    scene.tell(queue_events.JobHeld, job_id="j0", stops_running=True)
    assert (scene.phase(), scene.engine.state.jobs["j0"].reason.code) == (Phase.STOPPING, "STOPPING_TO_HOLD")
    scene = restored(scene)
    scene.report(events.JobStopped, "j0", exit_class="checkpointed", exit_code=85, checkpoint_step=7)
    assert (scene.phase(), scene.code(), scene.phase("j1")) == (Phase.PENDING, "HELD", Phase.STARTING)
    finish(scene, "j1")
    assert scene.phase() is Phase.PENDING
    scene.tell(queue_events.JobReleased, job_id="j0")
    assert (scene.phase(), scene.engine.state.jobs["j0"].checkpoint_step) == (Phase.STARTING, 7)


def test_a_job_that_is_released_before_it_has_stopped_waits_for_nothing_but_a_gpu() -> None:
    scene = play()
    submit(scene, "j0")
    scene.report(events.JobStarted, "j0")
    scene.tell(queue_events.JobHeld, job_id="j0", stops_running=True)
    scene.tell(queue_events.JobReleased, job_id="j0")
    scene.report(events.JobStopped, "j0", exit_class="checkpointed", exit_code=85, checkpoint_step=7)
    assert scene.phase() is Phase.STARTING


def test_a_running_jobs_time_limit_is_moved_and_nothing_else_of_it() -> None:
    scene = play()
    submit(scene, "j0", time_limit_ms=60_000)
    scene.report(events.JobStarted, "j0")
    asked = scene.engine.state.jobs["j0"].request
    kept: dict[str, Any] = {"priority": 0, "share": asked.share, "max_slowdown_ratio": asked.max_slowdown_ratio}
    scene.tell(
        queue_events.JobAltered, job_id="j0", launch={"kept": 1}, **{**kept, "priority": 5}, time_limit_ms=60_000
    )
    assert (scene.engine.state.jobs["j0"].request, scene.engine.state.jobs["j0"].submission.launch) == (asked, {})
    scene.tell(queue_events.JobAltered, job_id="j0", launch={}, **kept, time_limit_ms=600_000)
    scene.now_ms += 90_000
    scene.tell(events.TimerFired)
    assert scene.phase() is Phase.RUNNING, "by the old limit its time is over"
    scene.tell(queue_events.JobAltered, job_id="j0", launch={}, **kept, time_limit_ms=1_000)
    limits = [line.message for line in scene.engine.state.jobs["j0"].history if line.kind == "alter"]
    assert limits == ["time limit 10m", "time limit 1.0 s"]
    assert (scene.phase(), scene.engine.state.jobs["j0"].reason.code) == (Phase.STOPPING, "STOPPING_AT_TIME_LIMIT")


def test_the_story_of_a_job_says_who_held_altered_and_cancelled_it() -> None:
    scene = play()
    submit(scene, "j0")
    submit(scene, "j1")
    carol = events.Actor(role="operator", name="carol", address="10.0.0.9")
    scene.tell(queue_events.JobHeld, job_id="j1", actor=carol)
    scene.tell(queue_events.JobReleased, job_id="j1")
    scene.tell(events.JobCancelled, job_id="j1", actor=carol)
    story = [(line.kind, line.message) for line in scene.engine.state.jobs["j1"].history]
    assert story[1:] == [
        ("hold", "by operator carol"), ("release", ""), ("cancel", "by operator carol"), ("cancelled", "CANCELLED"),
    ]  # fmt: skip
