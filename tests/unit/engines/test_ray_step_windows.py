"""Step times from what jobs on Ray report: alone, next to the same others, and never over a change."""

from __future__ import annotations

from cotenant.engines.job_tag import read_tag
from cotenant.engines.ray.job_records import PROGRESS, ProgressRecord, encode
from cotenant.engines.ray.step_windows import StepWindow, StepWindows, record_request
from cotenant.engines.records import EngineGpu, EngineJob, EngineNode, EnginePhase, EngineState
from tests.support.fake_ray import FakeRay

GRAPH = "a" * 64
TOLD = f"cotenant graph={GRAPH} batch=32"


def state(*jobs: str, tag: str = TOLD) -> EngineState:
    gpu = EngineGpu(gpu_id="n1/g0", device="NVIDIA A10", memory_bytes=2**30, slots=100)
    return EngineState(
        nodes=(EngineNode(node_id="n1", gpus=(gpu,)),),
        jobs=tuple(
            EngineJob(job_id=name, phase=EnginePhase.RUNNING, tag=read_tag(tag), held_slots={"n1/g0": 25})
            for name in jobs
        ),
    )


class Story:
    """Jobs that report at a pace, and a bridge that looks every second."""

    def __init__(self) -> None:
        self.ray = FakeRay()
        self.windows = StepWindows(self.ray)
        self.now_ms = 0
        self.steps: dict[str, float] = {}

    def run(self, seconds: int, tag: str = TOLD, **step_ms: float) -> list[StepWindow]:
        """Let some jobs run at these step times; return the windows that have ended."""
        for _ in range(seconds):
            self.now_ms += 1_000
            for name, milliseconds in step_ms.items():
                self.steps[name] = self.steps.get(name, 0) + 1_000 / milliseconds
                steps = int(self.steps[name])
                # When the step was done, not when somebody looked.
                at_ms = self.now_ms - int((self.steps[name] - steps) * milliseconds)
                self.ray.write(PROGRESS + name, encode(ProgressRecord(steps=steps, at_ms=at_ms)))
            self.windows.look(state(*step_ms, tag=tag))
        return self.windows.take()


def test_a_job_is_measured_alone_and_then_next_to_another_one() -> None:
    story = Story()
    assert story.run(20, a=50) == []
    [alone] = story.run(20, a=60, b=40)
    assert (alone.job_id, alone.others, round(alone.step_ms)) == ("a", (), 50)
    assert "alone" in alone.line()
    shared = {window.job_id: window for window in story.run(1)}
    assert (shared["a"].others, round(shared["a"].step_ms)) == (("b",), 60)
    assert (shared["b"].others, round(shared["b"].step_ms)) == (("a",), 40)
    assert "+20 %" in shared["a"].line()
    assert shared["b"].solo_step_ms == 0


def test_the_predictor_is_told_graphs_and_no_names() -> None:
    story = Story()
    story.run(20, secret_name=50)
    request = record_request(story.run(1))
    assert request is not None
    [window] = request.measurement_windows
    assert (window.job.graph_sha256, window.job.settings.global_batch_size) == (GRAPH, 32)
    assert window.device == "NVIDIA A10"
    assert list(window.quality_flags) == []
    assert "secret_name" not in str(request)


def test_jobs_that_tell_no_graph_are_measured_and_not_reported() -> None:
    story = Story()
    story.run(20, tag="cotenant memory=1GiB", a=50)
    [window] = story.run(1)
    assert round(window.step_ms) == 50
    assert record_request([window]) is None


def test_short_windows_and_few_steps_are_dropped() -> None:
    story = Story()
    story.run(4, a=50)
    assert story.run(1) == []
    story.run(20, b=9_000)
    assert story.run(1) == []


def test_a_job_that_begins_anew_is_not_measured_over_its_fall() -> None:
    story = Story()
    story.run(3, a=50)
    story.steps["a"] = 0
    story.run(20, a=50)
    [window] = story.run(1)
    assert round(window.step_ms) == 50


def test_an_unsteady_window_says_so() -> None:
    story = Story()
    for _ in range(4):
        for step_ms in (50, 100, 200):
            story.run(1, a=step_ms)
    [window] = story.run(1)
    assert window.message is not None
    assert list(window.message.quality_flags) == ["unsteady"]


def test_what_a_neighbour_does_before_its_first_step_does_not_count() -> None:
    story = Story()
    story.run(10, a=50)
    for _ in range(10):
        story.run(1, a=100)
        story.windows.look(state("a", "b"))
    assert all(window.others == () for window in story.run(1))


def test_what_was_never_reported_is_no_instant() -> None:
    story = Story()
    story.ray.write(PROGRESS + "a", encode(ProgressRecord()))
    story.windows.look(state("a"))
    story.run(20, a=50)
    [window] = story.run(1)
    assert round(window.step_ms) == 50


def test_five_minutes_end_a_window_and_begin_the_next() -> None:
    story = Story()
    first = story.run(305, a=50)
    assert [round(window.window_ms / 1_000) for window in first] == [300]
    assert story.run(1) == []
