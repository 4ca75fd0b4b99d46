"""A calibration keeps its minute, and counts the memory of its networks as an agent counts that of jobs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cotenant_profiler import bench, system_clock
from cotenant_profiler import calibration as module
from cotenant_profiler.anchor_pairs import FIRST_PAIR_MS, PairFindings, WindowAlone, measure_pairs, planned_pairs
from cotenant_profiler.anchor_pairs import pairs_of as measured_pairs
from cotenant_profiler.calibration import PARTS, CalibrationTimeError, calibrate
from cotenant_profiler.errors import OutOfMemoryError, WorkerError
from cotenant_profiler.job_spec import JobSpec

from cotenant.device_calibration import Anchor, DeviceCalibration
from cotenant.device_sharing import DeviceSharing
from tests.support.calibrated_machine import NOW_MS, QUICK, SCRIPT_PEAK_BYTES, Framework, Machine, Worker

ALIKE = (0.5, 0.606)
"""Of steps that take as long, as all do here."""
PAIRS = [("resnet", "mlp", ALIKE), ("resnet", "mlp", (0.0, 0.0)), ("resnet", "lstm", ALIKE), ("mlp", "lstm", ALIKE)]
WINDOWS_OF_A_PAIR = 5
BOTH_WAYS = [
    sides
    for one, other, waits in PAIRS
    for sides in (((one, waits[0]), (other, waits[1])), ((other, waits[1]), (one, waits[0])))
]


def calibrated(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> DeviceCalibration:
    for starter in (module, bench):
        monkeypatch.setattr(starter, "WorkerClient", lambda place, **named: Worker(machine, **named))
    monkeypatch.setattr(module, "FrameworkClient", lambda arguments: Framework(machine))
    monkeypatch.setattr(system_clock, "now_ns", lambda: machine.now_ns)
    monkeypatch.setattr(system_clock, "sleep_ms", lambda duration_ms: None)
    monkeypatch.setattr(system_clock, "sleep_until_ns", machine.sleep_until)
    return calibrate(machine, now_ms=NOW_MS, listener=machine.parts.append)


def gpu_machine(
    monkeypatch: pytest.MonkeyPatch, seconds_of: dict[str, float], driver_bytes: int | None = 600_000_000
) -> Machine:
    """A machine that is taken for a GPU, whose driver tells memory or, as in some containers, none."""
    monkeypatch.setattr(module, "NvidiaDevice", Machine)
    monkeypatch.setattr(Machine, "name", "NVIDIA H200", raising=False)
    return Machine(seconds_of=seconds_of, driver_bytes=driver_bytes)


def pairs_of(record: DeviceCalibration) -> list[tuple[tuple[str, float], tuple[str, float]]]:
    return [each.sides for each in record.pairs]


def test_without_a_driver_an_anchor_holds_what_a_script_that_trains_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    record = calibrated(Machine(seconds_of={}), monkeypatch)
    assert [each.memory_peak_bytes for each in record.anchors] == [SCRIPT_PEAK_BYTES] * 3


def test_where_a_driver_counts_an_anchor_holds_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    record = calibrated(Machine(seconds_of={}, driver_bytes=600_000_000), monkeypatch)
    assert {each.memory_peak_bytes for each in record.anchors} == {600_000_000}


def test_anchors_run_together_and_lose_what_both_took_longer_than_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(seconds_of=QUICK)
    record = calibrated(machine, monkeypatch)
    assert pairs_of(record) == BOTH_WAYS
    assert [each.slowdown_ratio for each in record.pairs] == pytest.approx([1.1] * len(BOTH_WAYS))
    assert len(machine.parts) == PARTS
    assert machine.is_left


@pytest.mark.parametrize(("after_ms", "is_believed"), [(10.0, True), (11.4, True), (11.6, False), (8.4, False)])
def test_a_pair_during_which_the_device_changed_its_speed_is_not_believed(after_ms: float, is_believed: bool) -> None:
    loads = [bench.Load(job=JobSpec(architecture=name, batch=8)) for name in ("resnet", "mlp")]
    found = bench.Measurement(
        figures=({"step_ms_mean": 20.0}, {"step_ms_mean": 20.0}), references_ms=((10.0, 10.0), (10.0, after_ms))
    )
    assert bool(measured_pairs(loads, found)) is is_believed


def test_a_window_alone_tells_the_cpu_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[PairFindings] = []

    def measure(*words: Any, **named: Any) -> PairFindings:
        found.append(measure_pairs(*words, **named))
        return found[0]

    monkeypatch.setattr(module, "measure_pairs", measure)
    calibrated(Machine(seconds_of=QUICK), monkeypatch)
    assert {each.processor_ms for each in found[0].alone} == {0.9 * 10.0}


@pytest.mark.parametrize(("is_gpu", "head_start_ms"), [(False, 1.6), (True, 0.0)])
def test_a_calibration_holds_the_head_start_of_a_core_and_none_of_a_gpu(
    is_gpu: bool, head_start_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU time of a GPU's processes says nothing of the time of the device."""
    machine = gpu_machine(monkeypatch, QUICK) if is_gpu else Machine(seconds_of=QUICK)
    windows = [
        WindowAlone(network="resnet", computing_ms=6.0, wait_ms=5.0, processor_ms=7.0, length_ms=1.0) for _ in range(3)
    ]
    monkeypatch.setattr(module, "measure_pairs", lambda *_, **__: PairFindings(alone=windows))
    assert calibrated(machine, monkeypatch).head_start_ms == pytest.approx(head_start_ms)


@pytest.mark.parametrize(
    ("is_gpu", "is_served", "sharing"),
    [
        (True, True, DeviceSharing.MPS),
        (True, False, DeviceSharing.TIME_SLICING),
        (False, True, DeviceSharing.TIME_SLICING),
    ],
)
def test_a_calibration_says_how_its_pairs_shared_the_device(
    is_gpu: bool, is_served: bool, sharing: DeviceSharing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if is_served:
        (tmp_path / "control").touch()
    machine = gpu_machine(monkeypatch, QUICK) if is_gpu else Machine(seconds_of=QUICK)
    assert calibrated(machine, monkeypatch).sharing is sharing


def test_a_calibration_holds_how_far_the_speed_wandered(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = [
        WindowAlone(network="mlp", computing_ms=ms, wait_ms=0.0, processor_ms=ms, length_ms=1.0)
        for ms in (5.0, 6.0, 7.0, 8.0, 9.0)
    ]
    found = PairFindings(alone=windows)
    monkeypatch.setattr(module, "measure_pairs", lambda *_, **__: found)
    assert calibrated(Machine(seconds_of=QUICK), monkeypatch).speed_wander_ratio == found.speed_wander_ratio > 0.0


@pytest.mark.parametrize(("lost", "slowdowns"), [(-0.02, [0.0] * len(BOTH_WAYS)), (-0.1, [])])
def test_a_pair_no_slower_together_is_not_slowed_down_and_a_faster_one_is_not_believed(
    lost: float, slowdowns: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = calibrated(Machine(seconds_of=QUICK, lost=lost), monkeypatch)
    assert [each.slowdown_ratio for each in record.pairs] == slowdowns


@pytest.mark.parametrize(
    "steps_ms", [(14.0, 13.9), (10.0, 10.0), (10.0, 12.4), (12.4, 10.0), (10.0, 20.0), (20.0, 5.0)]
)
def test_no_two_that_wait_stay_in_one_phase(steps_ms: tuple[float, float]) -> None:
    """Begun at one instant with periods alike, resnet and mlp lost 54 to 62 % where turns cost a quarter."""
    anchors = [
        Anchor(network=name, graph_sha256="0" * 64, batch_size=8, step_ms=step_ms, memory_peak_bytes=1)
        for name, step_ms in zip(("one", "other"), steps_ms, strict=True)
    ]
    (_, _, waits), (_, _, none) = planned_pairs(anchors)
    periods_ms = sorted(step_ms / (1.0 - wait_ratio) for step_ms, wait_ratio in zip(steps_ms, waits, strict=True))
    assert periods_ms[1] > 1.2 * periods_ms[0]
    assert all(0.3 < wait_ratio < 0.7 for wait_ratio in waits)
    assert none == (0.0, 0.0)


def test_pairs_for_which_the_minute_is_short_are_left_out_and_the_networks_alone_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(seconds_of={**QUICK, "script": 17.0})
    record = calibrated(machine, monkeypatch)
    assert [each.network for each in record.anchors] == ["resnet", "mlp", "lstm"]
    assert record.pairs == ()
    assert machine.now_ns <= module.TIME_MS_MAX * 1_000_000 - FIRST_PAIR_MS


def test_a_pair_begins_only_where_there_is_time_for_one_like_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(seconds_of={**QUICK, "measure": 1.2})
    record = calibrated(machine, monkeypatch)
    assert 0 < len(record.pairs) < len(BOTH_WAYS)
    assert pairs_of(record) == BOTH_WAYS[: len(record.pairs)]
    assert machine.now_ns <= module.TIME_MS_MAX * 1_000_000


def test_what_the_first_pair_takes_to_start_its_processes_is_asked_of_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A context on a GPU and a network in it take seconds, and pairs after the first one have both."""
    machine = gpu_machine(monkeypatch, {**QUICK, "first": 6.0})
    assert len(calibrated(machine, monkeypatch).pairs) > 2
    assert machine.now_ns <= module.TIME_MS_MAX * 1_000_000


def test_all_processes_of_a_gpu_are_started_before_the_first_is_asked_and_none_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = gpu_machine(monkeypatch, QUICK)
    spend, started = machine.spend, list[int]()

    def count(what: str, timeout_ms: float) -> None:
        started.append(len(machine.workers))
        spend(what, timeout_ms)

    monkeypatch.setattr(machine, "spend", count)
    calibrated(machine, monkeypatch)
    assert set(started) == {module.GPU_WORKERS}
    assert machine.is_left


@pytest.mark.parametrize(("seconds_of", "driver_bytes"), [({**QUICK, "rates": 100.0}, 600_000_000), (QUICK, None)])
def test_none_of_the_processes_of_a_gpu_stays_that_were_started_and_not_needed(
    seconds_of: dict[str, float], driver_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = gpu_machine(monkeypatch, seconds_of, driver_bytes)
    with pytest.raises(CalibrationTimeError) if seconds_of["rates"] > 60 else nullcontext():
        calibrated(machine, monkeypatch)
    assert len(machine.workers) >= module.GPU_WORKERS
    assert machine.is_left


def test_what_the_host_can_do_is_measured_once_all_processes_of_a_gpu_have_imported_the_framework(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = gpu_machine(monkeypatch, QUICK)
    spend, done = machine.spend, list[str]()

    def note(what: str, timeout_ms: float) -> None:
        done.append(what)
        spend(what, timeout_ms)

    monkeypatch.setattr(machine, "spend", note)
    calibrated(machine, monkeypatch)
    assert done[: module.GPU_WORKERS + 1] == ["ready"] * (module.GPU_WORKERS - 1) + ["context", "rates"]


def test_a_measuring_process_that_dies_with_a_pair_costs_the_pairs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(seconds_of={**QUICK})

    def die(self: Worker, timeout_ms: float) -> dict[str, Any]:
        raise WorkerError("ended")

    monkeypatch.setattr(Worker, "receive", die)
    record = calibrated(machine, monkeypatch)
    assert (len(record.anchors), record.pairs) == (3, ())
    assert machine.is_left


def test_a_pair_that_does_not_fit_the_memory_is_left_out_and_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(seconds_of=QUICK)
    receive, calls = Worker.receive, itertools.count()

    def first_is_too_large(self: Worker, timeout_ms: float) -> dict[str, Any]:
        if next(calls) == 0:
            raise OutOfMemoryError("out of memory")
        return receive(self, timeout_ms)

    monkeypatch.setattr(Worker, "receive", first_is_too_large)
    assert pairs_of(calibrated(machine, monkeypatch)) == BOTH_WAYS[2:]


@pytest.mark.parametrize(("disturbed", "believed"), [(1, 4), (4, 4), (5, 3), (9, 0)])
def test_a_pair_that_was_not_believed_is_measured_once_more_while_the_minute_lasts(
    disturbed: int, believed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others use the device during the first pairs; each pair has four windows alone and one together."""
    before = [0.0] * (1 + 1 + 3 * module.WINDOWS)
    machine = Machine(
        seconds_of={**QUICK, "measure": 0.01}, foreign_ratios=(*before, *[0.2] * (WINDOWS_OF_A_PAIR * disturbed), 0.0)
    )
    record = calibrated(machine, monkeypatch)
    assert len(record.pairs) == 2 * believed
    assert len(machine.parts) == PARTS + min(disturbed, 4)


def test_nothing_is_learned_of_pairs_while_others_use_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    loud = calibrated(Machine(seconds_of=QUICK, foreign_ratios=(0.2,)), monkeypatch)
    assert (loud.foreign_load, loud.pairs) == (True, ())
    alone = 1 + 1 + 3 * module.WINDOWS  # the look before, rates, and every network's windows
    later = calibrated(Machine(seconds_of=QUICK, foreign_ratios=(*[0.0] * alone, 0.2)), monkeypatch)
    assert (later.foreign_load, later.pairs) == (False, ())


@pytest.mark.parametrize("slow_part", ["script", "measure", "prepare"])
def test_networks_that_the_minute_does_not_hold_are_left_out(monkeypatch: pytest.MonkeyPatch, slow_part: str) -> None:
    machine = Machine(seconds_of={slow_part: 35.0 if slow_part != "measure" else 10.0})
    record = calibrated(machine, monkeypatch)
    assert [each.network for each in record.anchors] == ["resnet"]
    assert machine.now_ns <= module.TIME_MS_MAX * 1_000_000
    assert machine.is_left


@pytest.mark.parametrize("slow_part", ["import", "context", "rates", "script"])
def test_a_device_too_slow_for_one_network_is_refused_when_the_minute_is_over(
    monkeypatch: pytest.MonkeyPatch, slow_part: str
) -> None:
    machine = Machine(seconds_of={slow_part: 3_600.0})
    with pytest.raises(CalibrationTimeError, match="within 60 s"):
        calibrated(machine, monkeypatch)
    assert machine.now_ns <= module.TIME_MS_MAX * 1_000_000
    assert machine.is_left


def test_the_framework_is_imported_once_for_all_measuring_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(seconds_of={**QUICK, "import": 10.0})
    calibrated(machine, monkeypatch)
    assert (len(machine.frameworks), len(machine.parts)) == (1, PARTS)
    assert [worker.is_forked for worker in machine.workers] == [
        True
    ] * 6  # rates and windows, three scripts, two paired
    assert machine.is_left


def test_where_nothing_can_be_forked_each_process_starts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Framework, "refuses", True)
    machine = Machine(seconds_of=QUICK)
    record = calibrated(machine, monkeypatch)
    assert [each.memory_peak_bytes for each in record.anchors] == [SCRIPT_PEAK_BYTES] * 3
    assert pairs_of(record) == BOTH_WAYS
    assert (len(machine.frameworks), {worker.is_forked for worker in machine.workers}) == (1, {False})
    assert machine.is_left


@pytest.mark.endurance
def test_the_memory_of_a_script_has_its_data_set_in_it() -> None:
    program = (
        "from cotenant_profiler import plain_training as script\n"
        "for samples in (512, 20_512):\n"
        "    script.SAMPLES = samples\n"
        "    print(script.train('vector_autoencoder', 64, 1))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    few, many = map(int, done.stdout.split())
    more = many - few
    assert more > 20_000 * 784 * 4 * 0.9
