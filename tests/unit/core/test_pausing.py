"""Pausing a running job: its memory stays reserved, its time does not count, and whatever ends it ends the pause."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.progress_extrapolation import ExtrapolatedJobs
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Decision, Pause, Resume, Start, Stop
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import PAUSED_MS_MAX, Assignment, Phase, Reason, Share
from scheduler_service.core.sharing.pausability import Placed, Places, pause_obstacle
from scheduler_service.core.sharing.pausing import CONFIRMATION_MS_MAX, OVERDUE_MS
from scheduler_service.policies.fifo import Fifo
from tests.support.cases import for_each
from tests.support.engine_invariants import check
from tests.support.scheduling import GIB, all_pairs, explained, job, node, prediction

WHY = Reason(code="PAUSE_UNWANTED")
PAUSING = {"enforcements": ("stop_signal",)}


@dataclass
class Script:
    """First in, first out, and what the test wants next."""

    wanted: list[Decision] = field(default_factory=list)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return the wanted decisions once, before the queue's."""
        wanted, self.wanted = self.wanted, []
        named = {one.job_id for one in wanted}
        return [*wanted, *(one for one in Fifo().decide(view) if one.job_id not in named)]


class Scene:
    """One node, and a policy that does what it is told."""

    def __init__(self, gpus: int = 1, **of_the_node: Any) -> None:
        self.script = Script()
        self.engine = SchedulerEngine(make_policy=self._policy, policy="script")
        self.now_ms = 0
        self.node = node("n0", gpus, **(of_the_node or PAUSING))
        self.tell(events.NodeJoined, node=self.node)

    def _policy(self, name: str, parameters: Mapping[str, object]) -> Policy:
        return self.script

    def tell(self, kind: type[events.Event], *, after_ms: int = 1_000, **values: Any) -> list[commands.Command]:
        self.now_ms += after_ms
        found = self.engine.handle(kind(at_ms=self.now_ms, **values))
        check(self.engine.state)
        return [one for one in found if not isinstance(one, commands.WakeAt)]

    def decide(self, *wanted: Decision, after_ms: int = 1_000) -> list[commands.Command]:
        self.script.wanted = list(wanted)
        return self.tell(events.TimerFired, after_ms=after_ms)

    def report(self, kind: type[events.AttemptReport], name: str = "j0", **values: Any) -> list[commands.Command]:
        record = self.engine.state.jobs[name]
        return self.tell(kind, job_id=name, **{"attempt": record.attempt, "fence": record.fence, **values})

    def run(self, name: str = "j0", **changes: Any) -> None:
        self.tell(events.JobSubmitted, request=job(name, steps_total=1_000, **changes))
        self.report(events.JobStarted, name)

    def pause(self, name: str = "j0") -> None:
        self.decide(Pause(job_id=name, reason=WHY))
        self.report(events.AttemptPaused, name)

    def record(self, name: str = "j0") -> Any:
        return self.engine.state.jobs[name]

    def crash(self) -> list[commands.Command]:
        snapshot = json.loads(json.dumps(self.engine.snapshot()))
        self.engine = SchedulerEngine.restore(snapshot, make_policy=self._policy)
        return [one for one in self.engine.reissue() if not isinstance(one, commands.WakeAt)]

    @property
    def rejected(self) -> list[str]:
        return [one.reason.code for one in self.engine.state.rejected]


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.run()
    return scene


def kinds(found: Sequence[commands.Command]) -> list[str]:
    return [type(one).__name__ for one in found]


def test_a_pause_is_ordered_confirmed_and_ended_by_order(scene: Scene) -> None:
    (order,) = scene.decide(Pause(job_id="j0", reason=WHY, paused_ms_max=20_000))
    assert isinstance(order, commands.PauseJob)
    assert (order.cause, order.paused_ms_max, order.fence) == ("PAUSE_UNWANTED", 20_000, scene.record().fence)
    assert scene.record().phase is Phase.RUNNING
    scene.report(events.AttemptPaused)
    assert scene.record().phase is Phase.PAUSED
    assert scene.record().pause.until_ms == scene.now_ms + 20_000
    (resume,) = scene.decide(Resume(job_id="j0", reason=WHY))
    assert isinstance(resume, commands.ResumeJob)
    scene.report(events.AttemptResumed, paused_ms=2_000)
    assert (scene.record().phase, scene.record().pause, scene.record().measured.paused_ms) == (
        Phase.RUNNING,
        None,
        2_000,
    )


def test_a_paused_job_keeps_gpu_and_memory_and_nobody_starts_there(scene: Scene) -> None:
    before = scene.engine.state.gpus["n0.0"]
    scene.pause()
    paused = scene.engine.state.gpus["n0.0"]
    assert (paused.job_ids, paused.memory_reserved_bytes) == (before.job_ids, before.memory_reserved_bytes)
    assert paused.memory_reserved_bytes > 0
    assert paused.is_releasing
    start = Start(job_id="j1", reason=WHY, assignments=(Assignment(gpu_id="n0.0"),), micro_batch_size=1)
    scene.script.wanted = [start]
    scene.tell(events.JobSubmitted, request=job("j1"))
    assert scene.rejected == ["GPU_RELEASING"]
    scene.report(events.AttemptResumed)
    assert not scene.engine.state.gpus["n0.0"].is_releasing


def test_nobody_starts_on_a_gpu_in_the_very_round_that_pauses_its_job(scene: Scene) -> None:
    start = Start(job_id="j1", reason=WHY, assignments=(Assignment(gpu_id="n0.0"),), micro_batch_size=1)
    scene.script.wanted = [Pause(job_id="j0", reason=WHY), start]
    scene.tell(events.JobSubmitted, request=job("j1"))
    assert scene.rejected == ["GPU_RELEASING"]


def test_paused_time_is_no_gpu_time_and_makes_no_steps(scene: Scene) -> None:
    for steps in (10, 20):
        scene.report(events.JobProgressed, steps_done=steps, window_steps=10, window_ms=1_000)
    scene.pause()
    served_ms, state = scene.record().attained_gpu_ms, scene.engine.state
    assert served_ms == scene.now_ms - scene.record().times.started_at_ms
    for now_ms in (scene.now_ms + 1, scene.now_ms + 30_000):
        now = ExtrapolatedJobs(state.running, now_ms)["j0"]
        assert (now.steps_done, now.attained_gpu_ms, now.is_paused) == (20, served_ms, True)
    assert scene.record().pace_ms == 0.0
    scene.tell(events.TimerFired, after_ms=7_000)
    scene.report(events.JobProgressed, steps_done=20)
    assert scene.record().attained_gpu_ms == served_ms
    scene.report(events.AttemptResumed, paused_ms=8_000)
    assert scene.record().attained_gpu_ms == served_ms
    scene.report(events.JobProgressed, steps_done=21)
    assert scene.record().attained_gpu_ms == served_ms + 1_000


def test_a_window_across_a_pause_teaches_nothing() -> None:
    scene = Scene()
    scene.run()
    for steps in (10, 20, 30):
        scene.report(events.JobProgressed, steps_done=steps, window_steps=10, window_ms=900)
    assert scene.record().solo_step_ms == pytest.approx(90.0)
    scene.pause()
    scene.report(events.AttemptResumed)
    scene.report(events.JobProgressed, steps_done=31, window_steps=1, window_ms=5_000)
    assert scene.record().solo_step_ms == pytest.approx(90.0)
    assert scene.record().measured.solo_windows_step_ms == (90.0, 90.0)


@pytest.mark.parametrize(
    ("kind", "values", "phase"),
    [
        (events.JobFinished, {"steps_done": 1_000}, Phase.FINISHED),
        (events.JobFailed, {"exit_class": "error"}, Phase.FAILED),
        (events.JobFailed, {"exit_class": "lost"}, Phase.PENDING),
        (events.JobStopped, {"exit_class": "stopped"}, Phase.PENDING),
    ],
)
def test_an_attempt_that_ends_while_paused_ends_the_pause(
    scene: Scene, kind: type[events.AttemptReport], values: dict[str, Any], phase: Phase
) -> None:
    scene.pause()
    scene.report(kind, **values)
    assert (scene.record().phase, scene.record().pause) == (phase, None)
    assert list(scene.engine.state.pauses) == []


def test_a_cancel_a_stop_and_a_lost_node_are_possible_while_paused() -> None:
    for end in ("cancel", "stop", "lose"):
        scene = Scene()
        scene.run()
        scene.pause()
        served_ms = scene.record().attained_gpu_ms
        scene.now_ms += 9_000
        if end == "cancel":
            found = scene.tell(events.JobCancelled, job_id="j0")
        elif end == "stop":
            found = scene.decide(Stop(job_id="j0", reason=WHY))
        else:
            found = scene.tell(events.NodeLost, node_id="n0")
        assert kinds(found) == ([] if end == "lose" else ["StopJob"])
        assert scene.record().phase is (Phase.PENDING if end == "lose" else Phase.STOPPING)
        assert (scene.record().pause, scene.record().attained_gpu_ms) == (None, served_ms)


def test_a_refusal_stops_the_job_with_a_checkpoint_instead(scene: Scene) -> None:
    scene.decide(Pause(job_id="j0", reason=WHY))
    (stop,) = scene.report(events.PauseRefused, code="NOT_PAUSABLE", message="MPS serves this device")
    assert isinstance(stop, commands.StopJob)
    assert stop.checkpoint
    assert any("MPS serves this device" in line.message for line in scene.record().history)
    scene.report(events.PauseRefused, code="NOT_PAUSABLE")
    assert scene.record().phase is Phase.STOPPING


@for_each(
    ("gpus", "of_the_node", "decision", "code"),
    [
        (1, {"enforcements": ("watchdog",)}, Pause(job_id="j0", reason=WHY), "NOT_PAUSABLE"),
        (1, PAUSING, Pause(job_id="j0", reason=WHY, paused_ms_max=0), "PAUSE_TOO_LONG"),
        (1, PAUSING, Pause(job_id="j0", reason=WHY, paused_ms_max=PAUSED_MS_MAX + 1), "PAUSE_TOO_LONG"),
        (1, PAUSING, Pause(job_id="j9", reason=WHY), "JOB_NOT_RUNNING"),
        (1, PAUSING, Resume(job_id="j0", reason=WHY), "JOB_NOT_PAUSED"),
    ],
)
def test_what_cannot_be_paused_is_refused_before_it_is_ordered(
    gpus: int, of_the_node: dict[str, Any], decision: Decision, code: str
) -> None:
    scene = Scene(gpus, **of_the_node)
    scene.run(gpus=gpus, allowed_gpus=(gpus,))
    assert scene.decide(decision) == []
    assert scene.rejected == [code]
    assert scene.record().pause is None


def test_a_gang_on_one_node_is_paused_as_a_whole() -> None:
    scene = Scene(2, **PAUSING)
    scene.run(gpus=2, allowed_gpus=(2,))
    assert kinds(scene.decide(Pause(job_id="j0", reason=WHY))) == ["PauseJob"]


@pytest.mark.parametrize(("nodes", "can_pause"), [(("a", "b"), True), (("a", "older"), False), (("a", ""), False)])
def test_a_gang_across_nodes_is_paused_where_every_node_of_it_can(nodes: tuple[str, str], *, can_pause: bool) -> None:
    entries = {f"g{place}": SimpleNamespace(node_id=name) for place, name in enumerate(nodes) if name}
    known = {"a": node("a", 1, **PAUSING), "b": node("b", 1, **PAUSING), "older": node("older", 1)}
    places = SimpleNamespace(gpus=entries, nodes=known)
    held = SimpleNamespace(
        request=job("j0"), assignments=(Assignment(gpu_id="g0", rank=0), Assignment(gpu_id="g1", rank=1))
    )
    found = pause_obstacle(cast("Places", places), cast("Placed", held))
    assert (None if found is None else found.code) == (None if can_pause else "NOT_PAUSABLE")


def test_a_job_is_paused_and_told_to_go_on_once(scene: Scene) -> None:
    pause, resume = Pause(job_id="j0", reason=WHY), Resume(job_id="j0", reason=WHY)
    assert kinds(scene.decide(pause, resume)) == ["PauseJob"]
    scene.decide(pause)
    scene.report(events.AttemptPaused)
    assert kinds(scene.decide(resume)) == ["ResumeJob"]
    scene.decide(resume)
    assert scene.rejected == ["DECIDED_TWICE", "ALREADY_PAUSED", "JOB_NOT_PAUSED"]


def test_an_order_that_nobody_confirms_is_withdrawn(scene: Scene) -> None:
    scene.decide(Pause(job_id="j0", reason=WHY))
    assert scene.decide(after_ms=CONFIRMATION_MS_MAX - 1) == []
    assert kinds(scene.decide(after_ms=1)) == ["ResumeJob"]
    assert scene.record().pause is None
    assert not scene.engine.state.gpus["n0.0"].is_releasing


def test_a_pause_that_is_not_wanted_any_more_is_ended_at_once(scene: Scene) -> None:
    scene.decide(Pause(job_id="j0", reason=WHY))
    scene.decide(Resume(job_id="j0", reason=WHY))
    assert scene.record().pause is None
    assert kinds(scene.report(events.AttemptPaused)) == ["ResumeJob"]
    assert scene.record().phase is Phase.PAUSED


def test_a_job_that_stays_paused_for_too_long_is_told_to_go_on_again(scene: Scene) -> None:
    scene.pause()
    assert scene.decide(after_ms=PAUSED_MS_MAX + OVERDUE_MS - 1) == []
    assert kinds(scene.decide(after_ms=1)) == ["ResumeJob"]


def test_orders_about_pauses_are_repeated_after_a_crash_and_when_a_node_returns(scene: Scene) -> None:
    scene.decide(Pause(job_id="j0", reason=WHY))
    assert kinds(scene.crash()) == ["PauseJob"]
    assert kinds(rejoin(scene, is_paused=False)) == ["PauseJob"]
    assert rejoin(scene, is_paused=True) == []
    assert scene.record().phase is Phase.PAUSED
    assert scene.crash() == []
    scene.decide(Resume(job_id="j0", reason=WHY))
    assert kinds(scene.crash()) == ["ResumeJob"]
    assert kinds(rejoin(scene, is_paused=True)) == ["ResumeJob"]
    rejoin(scene, is_paused=False, paused_ms=5_000)
    assert (scene.record().phase, scene.record().measured.paused_ms) == (Phase.RUNNING, 5_000)


def rejoin(scene: Scene, **of_the_attempt: Any) -> list[commands.Command]:
    record = scene.record()
    held = events.RunningAttempt(
        job_id="j0", attempt=record.attempt, fence=record.fence, gpu_ids=record.gpu_ids, **of_the_attempt
    )
    return scene.tell(events.NodeJoined, node=scene.node, attempts=(held,))


def test_a_paused_job_that_its_node_does_not_know_is_lost(scene: Scene) -> None:
    scene.pause()
    scene.tell(events.NodeJoined, node=replace(scene.node), attempts=())
    assert (scene.record().phase, scene.record().pause) == (Phase.PENDING, None)


def test_the_reason_of_a_pause_is_told_after_a_restart(scene: Scene) -> None:
    scene.pause()
    before = explained(scene.engine, "j0").reason
    scene.crash()
    assert explained(scene.engine, "j0").reason == before == WHY


def test_an_operator_pauses_and_resumes_and_repeating_it_changes_nothing(scene: Scene) -> None:
    (order,) = scene.tell(events.PauseRequested, job_id="j0", paused_ms_max=5_000)
    assert isinstance(order, commands.PauseJob)
    assert (order.cause, order.paused_ms_max) == ("PAUSED_BY_OPERATOR", 5_000)
    assert scene.tell(events.PauseRequested, job_id="j0", paused_ms_max=60_000) == []
    scene.report(events.AttemptPaused)
    assert scene.tell(events.PauseRequested, job_id="j0", paused_ms_max=60_000) == []
    assert kinds(scene.tell(events.ResumeRequested, job_id="j0")) == ["ResumeJob"]
    scene.report(events.AttemptResumed)
    assert scene.tell(events.ResumeRequested, job_id="j0") == []
    assert scene.tell(events.PauseRequested, job_id="nobody", paused_ms_max=1) == []
    assert scene.tell(events.ResumeRequested, job_id="nobody") == []


def test_a_job_that_an_operator_cannot_pause_runs_on(scene: Scene) -> None:
    scene.tell(events.PauseRequested, job_id="j0", paused_ms_max=5_000)
    assert scene.report(events.PauseRefused, code="NOT_PAUSABLE", message="stuck in the driver") == []
    assert (scene.record().phase, scene.record().pause) == (Phase.RUNNING, None)
    assert "stuck in the driver" in scene.record().history[-1].message


@pytest.mark.parametrize("kind", [events.JobFinished, events.JobCancelled])
def test_a_job_that_does_not_run_is_not_paused(scene: Scene, kind: type[events.Event]) -> None:
    if kind is events.JobFinished:
        scene.report(events.JobFinished, steps_done=1_000)
    else:
        scene.tell(events.JobCancelled, job_id="j0")
    assert scene.tell(events.PauseRequested, job_id="j0", paused_ms_max=5_000) == []
    assert scene.record().pause is None


def test_what_the_co_located_job_does_meanwhile_teaches_neither_its_pace_alone_nor_that_of_the_pair() -> None:
    scene = Scene()
    for name in ("j0", "j1"):
        request = job(name, steps_total=1_000, share=Share.ANY, memory_request_bytes=GIB)
        scene.tell(events.JobSubmitted, request=request, graph_sha256="graph")
        scene.tell(events.PredictionArrived, prediction=prediction(f"key-{name}"))
    scene.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["key-j0", "key-j1"], 0.1)))
    progress: dict[str, Any] = {"after_ms": 5_000, "window_steps": 10, "window_ms": 1_000}
    scene.report(events.JobStarted)
    for steps in (10, 20, 30):
        scene.report(events.JobProgressed, steps_done=steps, **progress)
    place = (Assignment(gpu_id="n0.0"),)
    scene.decide(Start(job_id="j1", reason=WHY, assignments=place, micro_batch_size=1))
    scene.report(events.JobStarted, "j1")
    scene.pause("j1")
    for steps in (40, 50, 60):
        scene.report(events.JobProgressed, steps_done=steps, **{**progress, "window_ms": 500})
    assert scene.engine.state.gpus["n0.0"].job_ids == ("j0", "j1")
    assert (scene.record().solo_step_ms, scene.record().measured.observed_slowdown_ratio) == (100.0, None)
    assert scene.engine.state.predictions.solo_step_ms("key-j0", "standin", gpus=1, micro_batch_size=1) == 100.0
    scene.report(events.AttemptResumed, "j1")
    for steps in (70, 80, 90):
        scene.report(events.JobProgressed, steps_done=steps, **{**progress, "window_ms": 1_200})
    assert scene.record().measured.observed_slowdown_ratio == pytest.approx(0.2)
