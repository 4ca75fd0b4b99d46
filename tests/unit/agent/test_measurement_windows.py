"""Which steps of running jobs become windows, and which never do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

from cotenant.job_settings import JobSettings
from cotenant_agent.devices.measurement_windows import (
    WINDOW_MS_MOST,
    WINDOWS_KEPT_MAX,
    WINDOWS_PER_BEAT_MAX,
    WINDOWS_PER_HOUR_MAX,
    MeasurementWindowRecorder,
)
from cotenant_agent.protocol import window_to_message
from cotenant_agent.records import AttemptKey, AttemptObservation, GpuReading, LivingAttempt, MeasuredJob
from tests.support.measurement_windows import observed_window

BEAT_MS = 2_000
GRAPH = "a" * 64


class Node:
    """A recorder with a clock, and heartbeats of two seconds in which every tenant does its steps."""

    def __init__(self, *, collects: bool = True) -> None:
        ids = count()
        self.recorder = MeasurementWindowRecorder(
            campaign="collected_0123abcd",
            devices={"gpu-0": "cpu-standin", "gpu-1": "cpu-standin"},
            make_id=lambda: f"{next(ids):032x}",
            collects=collects,
        )
        self.now_ms = 0
        self.living: Sequence[LivingAttempt] = ()

    def look(self, *living: LivingAttempt) -> None:
        self.living = living
        self.recorder.look(living, self.now_ms)

    def beat(self, times: int = 1, step_ms: int = 100, foreign_ratio: float = 0.05, steps: int | None = None) -> None:
        for _ in range(times):
            self.now_ms += BEAT_MS
            windows = [
                observation(tenant.key, BEAT_MS // step_ms if steps is None else steps) for tenant in self.living
            ]
            readings = [GpuReading(gpu_id="gpu-0", foreign_ratio=foreign_ratio, power_watts=60.0)]
            self.recorder.add(windows, readings, self.now_ms)


def tenant(name: str, gpu_id: str = "gpu-0", *, is_private: bool = False) -> LivingAttempt:
    job = None if is_private else MeasuredJob(graph_sha256=GRAPH, settings=JobSettings(global_batch_size=16))
    return LivingAttempt(key=AttemptKey(job_id=name, attempt=1, fence=1), gpu_ids=(gpu_id,), job=job)


def observation(key: AttemptKey, steps: int) -> AttemptObservation:
    return observed_window(key, window_steps=steps, window_ms=BEAT_MS if steps else 0)


def test_a_job_alone_becomes_a_window_without_its_warm_up() -> None:
    node = Node()
    node.look(tenant("a"))
    node.beat(4)
    node.look()
    (found,) = node.recorder.due()
    assert (found.steps, found.window_ms) == (60, 6_000)
    assert found.others == ()
    assert (found.utilization_ratio, found.power_watts, found.memory_peak_bytes) == (0.5, 60.0, 1_000)
    assert found.quality_flags == ()


def test_a_window_of_a_job_under_mps_says_so() -> None:
    node = Node()
    node.look(replace(tenant("a"), under_mps=True), tenant("b"))
    node.beat(4)
    node.look()
    assert sorted(window_to_message(found).under_mps for found in node.recorder.due()) == [False, True]


def test_a_change_of_colocated_jobs_ends_a_window_and_spoils_the_heartbeat_in_which_it_falls() -> None:
    node = Node()
    node.look(tenant("a"))
    node.beat(3)
    node.look(tenant("a"), tenant("b"))
    node.beat(1, step_ms=200)
    node.beat(2, step_ms=200)
    node.look(tenant("a"))
    alone, shared_a, shared_b = node.recorder.due()
    assert (alone.steps, alone.window_ms, alone.others) == (40, 4_000, ())
    for shared in (shared_a, shared_b):
        assert (shared.steps, shared.window_ms) == (20, 4_000)
        assert [job.graph_sha256 for job in shared.others] == [GRAPH]
        assert shared.power_watts is None


def test_a_job_that_comes_and_goes_between_two_heartbeats_spoils_that_window() -> None:
    node = Node()
    node.look(tenant("a"))
    node.beat(2)
    node.look(tenant("a"), tenant("b"))
    node.look(tenant("a"))
    node.beat(1, step_ms=500)
    node.beat(1)
    node.look()
    assert [(item.steps, item.window_ms) for item in node.recorder.due()] == [(20, 2_000), (20, 2_000)]


def test_a_colocated_job_without_a_step_yet_is_not_measured_with() -> None:
    node = Node()
    node.look(tenant("a"), tenant("b"))
    for _ in range(4):
        node.now_ms += BEAT_MS
        node.recorder.add([observation(node.living[0].key, 20), observation(node.living[1].key, 0)], [], node.now_ms)
    node.look()
    assert node.recorder.due() == []


def test_jobs_on_different_devices_are_alone() -> None:
    node = Node()
    node.look(tenant("a"), tenant("b", "gpu-1"))
    node.beat(3)
    node.look()
    assert [item.others for item in node.recorder.due()] == [(), ()]


def test_nothing_is_recorded_of_a_private_job_nor_of_its_colocated_jobs() -> None:
    node = Node()
    node.look(tenant("a"), tenant("b", is_private=True))
    node.beat(5)
    node.look(tenant("b", is_private=True))
    node.beat(5)
    node.look()
    assert node.recorder.due() == []


def test_a_node_that_keeps_its_measurements_records_nothing() -> None:
    node = Node(collects=False)
    node.look(tenant("a"))
    node.beat(10)
    node.look()
    assert node.recorder.due() == []


@pytest.mark.parametrize(("beats", "steps"), [(1, 20), (3, 1)])
def test_what_is_too_short_is_dropped(beats: int, steps: int) -> None:
    node = Node()
    node.look(tenant("a"))
    node.beat(beats, steps=steps)
    node.look()
    assert node.recorder.due() == []


def test_a_long_run_becomes_several_windows() -> None:
    node = Node()
    node.look(tenant("a"))
    node.beat(1 + 2 * WINDOW_MS_MOST // BEAT_MS)
    assert [item.window_ms for item in node.recorder.due()] == [WINDOW_MS_MOST] * 2


def test_an_attempt_gives_a_bounded_number_of_windows_an_hour() -> None:
    node = Node()
    for _ in range(2 * WINDOWS_PER_HOUR_MAX):
        node.look(tenant("a"))
        node.beat(3)
        node.look(tenant("a"), tenant("b", is_private=True))
    delivered = take_all(node.recorder)
    assert len(delivered) == WINDOWS_PER_HOUR_MAX
    node.now_ms += 3_600_000
    node.look(tenant("a"))
    node.beat(3)
    node.look()
    assert len(node.recorder.due()) == 1


def take_all(recorder: MeasurementWindowRecorder) -> list[str]:
    delivered: list[str] = []
    while due := recorder.due():
        assert len(due) <= WINDOWS_PER_BEAT_MAX
        recorder.mark_delivered([item.window_id for item in due])
        delivered += [item.window_id for item in due]
    return delivered


def test_what_was_not_delivered_is_due_again_and_the_oldest_leave_when_there_are_too_many() -> None:
    node = Node()
    for number in range(WINDOWS_KEPT_MAX + 5):
        node.look(tenant(f"job-{number}"))
        node.beat(3)
    node.look()
    assert node.recorder.due() == node.recorder.due()
    delivered = take_all(node.recorder)
    assert len(delivered) == WINDOWS_KEPT_MAX
    assert delivered[0] == f"{5:032x}"


def test_step_times_that_jump_about_are_flagged() -> None:
    node = Node()
    node.look(tenant("a"))
    for step_ms in (100, 100, 200, 100, 250, 400):
        node.beat(1, step_ms=step_ms)
    node.look()
    assert node.recorder.due()[0].quality_flags == ("unsteady",)


def test_use_of_the_device_by_others_is_flagged() -> None:
    node = Node()
    node.look(tenant("a"))
    node.beat(4, foreign_ratio=0.4)
    node.look()
    assert node.recorder.due()[0].quality_flags == ("foreign_load",)


def test_a_pause_ends_the_windows_of_its_job_and_of_the_co_located_one_and_nothing_is_measured_in_it() -> None:
    node = Node()
    one, other = tenant("one"), tenant("other")
    node.look(one, other)
    node.beat(5)
    before_ms = 4 * BEAT_MS
    node.look(replace(one, pause_changes=1), other)
    assert [window.window_ms for window in node.recorder.due()] == [before_ms, before_ms]
    node.living = [other]
    node.beat(20, step_ms=50)
    node.look(replace(one, pause_changes=2), other)
    assert len(node.recorder.due()) == 2
    node.beat(5)
    node.look()
    assert [window.window_ms for window in node.recorder.due()] == [before_ms] * 4
    assert {window.window_ms // window.steps for window in node.recorder.due()} == {100}
