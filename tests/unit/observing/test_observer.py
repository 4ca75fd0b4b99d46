"""Windows of jobs that cotenant did not start: alone, co-located, silent."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from cotenant.engines.job_tag import read_tag
from cotenant_agent.observing.foreign_jobs import ForeignJob
from cotenant_agent.observing.observer import ObservedWindow, Observer
from cotenant_agent.observing.silent_jobs import SilentJobs
from cotenant_agent.records import (
    AttemptKey,
    GpuDescription,
    GpuReading,
    InventoryReading,
    JobProcesses,
    JobUsage,
)

BEAT_NS = 2_000_000_000
SAMPLE_NS = 50_000_000
TAG = f"cotenant graph={'ab' * 32} batch=8"


class FakeDevices:
    """One device."""

    enforcements = ()
    foreign_ratio = 0.0
    busy_ratios: Mapping[str, float] = MappingProxyType({})

    def describe(self) -> tuple[GpuDescription, ...]:
        return (GpuDescription(gpu_id="g0", device="NVIDIA A10", memory_bytes=2**34, index=0),)

    def users(self) -> Mapping[str, frozenset[int]]:
        return {}

    def observe(self, jobs: Mapping[AttemptKey, JobProcesses]) -> InventoryReading:
        usage = {
            key: JobUsage(memory_bytes=2**30, utilization_ratio=self.busy_ratios.get(key.job_id, 0.5)) for key in jobs
        }
        return InventoryReading(gpus=(GpuReading(gpu_id="g0", foreign_ratio=self.foreign_ratio),), jobs=usage)


class Scene:
    """Jobs that print, and an observer of them.

    Args:
        folder: Logs lie there.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: dict[str, ForeignJob] = {}
        self._folder = folder
        self._steps: dict[str, float] = {}
        self._numbers = itertools.count()
        self._now_ns = 10 * BEAT_NS
        ids = itertools.count()
        monkeypatch.setattr("cotenant_agent.progress_reading.log_progress.wall_ms", lambda: 0)
        self.devices = FakeDevices()
        self.silent_jobs = SilentJobs(self.devices, SAMPLE_NS / 1e9)  # type: ignore[arg-type]
        self.observer = Observer(
            self.devices,  # type: ignore[arg-type]
            lambda _: self.jobs.values(),
            campaign="collected_00000000",
            make_id=lambda: f"{next(ids):032x}",
            silent_jobs=self.silent_jobs,
        )

    def start(self, job_id: str, *, tag: str = "", prints: bool = True, began_ticks: int = 0, steps: int = 0) -> None:
        log = self._folder / f"{next(self._numbers)}.log" if prints else None
        self.jobs[job_id] = ForeignJob(
            job_id=job_id, gpu_ids=("g0",), pids=(1,), log=log, tag=read_tag(tag), began_ticks=began_ticks
        )
        self._steps[job_id] = steps
        if log is not None and steps:
            log.write_text("".join(f"step {step} loss 0.5\n" for step in range(1, steps + 1)))

    def beats(self, count: int, **steps_per_beat: float) -> list[ObservedWindow]:
        """Let time pass; each job prints its steps just before the observer looks."""
        found = []
        for _ in range(count):
            self._now_ns += BEAT_NS
            for name, steps in steps_per_beat.items():
                log = self.jobs[name].log
                self._steps[name] += steps
                if log is not None:
                    with log.open("a") as file:
                        file.write(f"step {int(self._steps[name])} loss 0.5\n")
            found += self.observer.beat(self._now_ns)
        return found

    def sampled_beats(self, count: int, **step_ms: float) -> list[ObservedWindow]:
        """Let time pass; each job computes during the first half of its steps, and prints nothing."""
        found = []
        for _ in range(count):
            for _ in range(BEAT_NS // SAMPLE_NS):
                self._now_ns += SAMPLE_NS
                now_ms = self._now_ns / 1e6
                self.devices.busy_ratios = {name: float(now_ms % one < one / 2) for name, one in step_ms.items()}
                self.silent_jobs.sample(self._now_ns)
            found += self.observer.beat(self._now_ns)
        return found

    def close(self) -> list[ObservedWindow]:
        return self.observer.close(self._now_ns)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_steps_alone_and_together_give_step_times_and_a_slowdown(scene: Scene) -> None:
    scene.start("a", tag=TAG)
    alone = scene.beats(40, a=20)
    scene.start("b", tag=TAG)
    together = scene.beats(40, a=10, b=5)
    ended = {(one.job_id, one.others): one for one in (*alone, *together, *scene.close())}
    assert set(ended) == {("a", ()), ("a", ("b",)), ("b", ("a",))}
    assert ended["a", ()].step_ms == pytest.approx(100, rel=0.02)
    assert ended["a", ("b",)].step_ms == pytest.approx(200, rel=0.02)
    assert ended["a", ("b",)].slowdown_ratio == pytest.approx(1.0, abs=0.05)
    assert ended["b", ("a",)].slowdown_ratio is None
    assert all(one.is_reportable for one in ended.values())


def test_what_a_job_printed_before_it_was_seen_tells_no_time_of_steps(scene: Scene) -> None:
    # More than is read at once: an observer that read it from its beginning would take old steps for new ones.
    scene.start("a", steps=50_000)
    found = [*scene.beats(40, a=20), *scene.close()]
    assert [one.step_ms for one in found] == [pytest.approx(100, rel=0.02)] * len(found)
    assert found


def test_a_job_that_goes_on_in_another_file_is_measured_there(scene: Scene, tmp_path: Path) -> None:
    scene.start("a")
    before = scene.beats(20, a=20)
    log = scene.jobs["a"].log
    assert log is not None
    scene.jobs["a"].log = log.rename(tmp_path / "kept.log")
    log.touch()
    found = [*before, *scene.beats(20, a=20), *scene.close()]
    assert sum(one.window.window_ms for one in found) > 60_000
    assert [one.step_ms for one in found] == [pytest.approx(100, rel=0.05)] * len(found)


def test_a_slowdown_counts_from_how_fast_a_job_was_lately(scene: Scene) -> None:
    scene.start("a")
    for steps in (10, 40):
        for _ in range(6):
            # Another job that comes and goes ends the window.
            scene.beats(40, a=steps)
            scene.start("b")
            scene.beats(2, a=steps)
            del scene.jobs["b"]
    scene.beats(40, a=40)
    scene.start("b")
    together = [*scene.beats(40, a=20, b=5), *scene.close()]
    [shared] = [one for one in together if one.job_id == "a" and one.others and one.window.window_ms > 60_000]
    assert shared.slowdown_ratio == pytest.approx(1.0, abs=0.05)


def test_a_number_of_a_process_that_is_given_again_is_another_job(scene: Scene) -> None:
    scene.start("group/7", began_ticks=100)
    scene.beats(40, **{"group/7": 20})
    scene.start("group/7", began_ticks=200)
    scene.beats(2, **{"group/7": 1})
    scene.start("b")
    found = [*scene.beats(40, **{"group/7": 5, "b": 5}), *scene.close()]
    # It was never seen alone: what the other job of that number took for a step says nothing of it.
    assert {one.job_id: one.slowdown_ratio for one in found if one.others} == {"group/7": None, "b": None}


def test_a_slowdown_that_others_disturbed_is_told_with_its_doubt(scene: Scene) -> None:
    scene.devices.foreign_ratio = 0.5
    scene.start("a")
    scene.beats(20, a=20)
    scene.start("b")
    scene.beats(20, a=10, b=5)
    [shared] = [one for one in scene.close() if one.job_id == "a"]
    assert shared.slowdown_ratio == pytest.approx(1.0, abs=0.1)
    assert shared.window.quality_flags == ("foreign_load",)


def test_only_windows_whose_jobs_all_told_their_graph_are_reportable(scene: Scene) -> None:
    scene.start("a", tag=TAG)
    scene.start("b", tag="cotenant batch=8")
    scene.beats(20, a=10, b=10)
    assert [one.is_reportable for one in scene.close()] == [False, False]


def test_a_job_that_prints_nothing_is_named_and_not_measured(scene: Scene) -> None:
    scene.start("a", prints=False)
    scene.start("b")
    scene.beats(10, a=5, b=0)
    assert scene.close() == []
    assert scene.observer.silent_job_ids == ["a", "b"]


def test_a_job_on_several_devices_is_named_with_their_number_and_not_measured(scene: Scene) -> None:
    scene.start("a")
    scene.jobs["a"].gpu_ids = ("g0", "g1")
    assert scene.beats(8, a=10) == []
    assert scene.observer.wide_jobs == {"a": 2}
    assert scene.close() == []


def test_beside_a_job_that_stays_silent_others_are_measured_after_a_minute(scene: Scene) -> None:
    scene.start("a", prints=False)
    scene.start("b")
    ended = [*scene.beats(29, a=1, b=10), *scene.close()]
    assert ended == []
    [one] = [*scene.beats(40, a=1, b=10), *scene.close()]
    assert (one.job_id, one.others) == ("b", ("a",))
    assert one.step_ms == pytest.approx(200, rel=0.02)


def test_jobs_that_come_and_go_are_forgotten(scene: Scene) -> None:
    scene.start("a")
    scene.beats(10, a=10)
    del scene.jobs["a"]
    assert [one.job_id for one in scene.beats(1)] == ["a"]
    assert scene.observer.silent_job_ids == []


def test_a_job_that_prints_nothing_is_measured_by_the_period_of_its_utilization(scene: Scene) -> None:
    scene.start("a", tag=TAG, prints=False)
    alone = scene.sampled_beats(15, a=800)
    scene.start("b", tag=TAG, prints=False)
    together = scene.sampled_beats(20, a=1_200, b=1_500)
    ended = {(one.job_id, one.others): one for one in (*alone, *together, *scene.close())}
    assert set(ended) == {("a", ()), ("a", ("b",)), ("b", ("a",))}
    assert ended["a", ()].step_ms == pytest.approx(800, rel=0.02)
    assert ended["a", ("b",)].step_ms == pytest.approx(1_200, rel=0.02)
    assert ended["a", ("b",)].slowdown_ratio == pytest.approx(0.5, abs=0.05)
    assert all(one.is_by_period and not one.is_reportable for one in ended.values())


def test_steps_that_are_printed_late_end_the_periods_and_are_never_mixed_with_them(scene: Scene) -> None:
    scene.start("a", tag=TAG)
    by_period = scene.sampled_beats(15, a=800)
    printed = scene.beats(40, a=20)
    ended = [*by_period, *printed, *scene.close()]
    assert [(one.is_by_period, one.is_reportable, round(one.step_ms, -1)) for one in ended] == [
        (True, False, 800),
        (False, True, 100),
    ]


def test_a_job_whose_utilization_has_no_period_stays_silent(scene: Scene) -> None:
    scene.start("a", prints=False)
    assert scene.sampled_beats(10) == []
    assert scene.close() == []
    assert scene.observer.silent_job_ids == ["a"]


def test_time_in_which_the_period_was_lost_is_no_time_of_steps(scene: Scene) -> None:
    scene.start("a", prints=False)
    scene.sampled_beats(15, a=800)
    scene.sampled_beats(20)
    scene.sampled_beats(15, a=800)
    [one] = scene.close()
    assert one.step_ms == pytest.approx(800, rel=0.1)


def test_the_job_of_an_engine_is_told_apart_from_those_of_others(scene: Scene) -> None:
    scene.start("ray/7")
    scene.start("group/9")
    scene.beats(2)
    assert scene.observer.seen_owners == {"ray", "group"}
