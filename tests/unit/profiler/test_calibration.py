"""A calibration keeps its minute, and counts the memory of its networks as an agent counts that of jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Self

import pytest
from cotenant_profiler import calibration as module
from cotenant_profiler import system_clock
from cotenant_profiler.calibration import CalibrationTimeError, calibrate
from cotenant_profiler.errors import WorkerError
from cotenant_profiler.measured_device import DeviceWindow, EndOfWatch, WorkerPlace

from cotenant.device_calibration import DeviceCalibration

NOW_MS = 1_760_000_000_000
WORKER_PEAK_BYTES, SCRIPT_PEAK_BYTES = 100_000_000, 107_000_000
RATES = {
    "rates": {"fp32": {"matmul_flops_per_s": 1e10, "convolution_flops_per_s": 1e10}},
    "copy_bytes_per_s": 1e10,
    "launch_ms": 0.01,
    "host_steps_per_s": 5e3,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "context": {"context_bytes": 90_000_000, "workspace_bytes": 1_000_000, "reserved_bytes": 0},
    "rates": RATES,
    "memory": {"peak_bytes": WORKER_PEAK_BYTES},
    "prepare": {"steady": True},
    "measure": {"step_ms_mean": 10.0, "utilization_ratio": 0.9},
}


class Machine:
    """Stands in for the clock, the measuring processes and the device; every answer takes its time on that clock."""

    def __init__(self, *, seconds_of: dict[str, float], driver_bytes: int | None = None) -> None:
        self.now_ns = 0
        self.seconds_of = seconds_of
        self.driver_bytes = driver_bytes
        self.workers: list[Worker] = []
        self.driver = "none"
        self.place = WorkerPlace(arguments=("--core", "1"))

    def spend(self, what: str, timeout_ms: float) -> None:
        taken_ms = 1e3 * self.seconds_of.get(what, 1.0)
        self.now_ns += round(1e6 * min(taken_ms, timeout_ms))
        if taken_ms > timeout_ms:
            raise TimeoutError

    def watch(self, pids: Sequence[int]) -> EndOfWatch:
        return lambda: DeviceWindow(foreign_ratio=0.0)

    def memory_bytes(self, pid: int) -> int | None:
        return self.driver_bytes

    def run_script(self, command: Sequence[str], *, timeout: float, **_: object) -> SimpleNamespace:
        try:
            self.spend("script", 1e3 * timeout)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(command, timeout) from error
        return SimpleNamespace(stdout=f"{SCRIPT_PEAK_BYTES}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Worker:
    """A measuring process of a machine."""

    pid = 1

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_closed = False
        machine.workers.append(self)

    def ask(self, do: str, timeout_ms: float, **_: object) -> dict[str, Any]:
        try:
            self._machine.spend(do, timeout_ms)
        except TimeoutError as error:
            raise WorkerError("gave no answer") from error
        return dict(ANSWERS[do])

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def calibrated(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> DeviceCalibration:
    monkeypatch.setattr(module, "WorkerClient", lambda place: Worker(machine))
    monkeypatch.setattr(system_clock, "now_ns", lambda: machine.now_ns)
    monkeypatch.setattr(system_clock, "sleep_ms", lambda duration_ms: None)
    monkeypatch.setattr(subprocess, "run", machine.run_script)
    return calibrate(machine, now_ms=NOW_MS)


def test_without_a_driver_an_anchor_holds_what_a_script_that_trains_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    record = calibrated(Machine(seconds_of={}), monkeypatch)
    assert [each.memory_peak_bytes for each in record.anchors] == [SCRIPT_PEAK_BYTES] * 3


def test_where_a_driver_counts_an_anchor_holds_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    record = calibrated(Machine(seconds_of={}, driver_bytes=600_000_000), monkeypatch)
    assert {each.memory_peak_bytes for each in record.anchors} == {600_000_000}


@pytest.mark.parametrize("slow_part", ["script", "measure", "prepare"])
def test_networks_that_the_minute_does_not_hold_are_left_out(monkeypatch: pytest.MonkeyPatch, slow_part: str) -> None:
    machine = Machine(seconds_of={slow_part: 35.0 if slow_part != "measure" else 10.0})
    record = calibrated(machine, monkeypatch)
    assert [each.network for each in record.anchors] == ["resnet"]
    assert machine.now_ns <= module.TIME_MS_MAX * 1_000_000
    assert all(worker.is_closed for worker in machine.workers)


@pytest.mark.parametrize("slow_part", ["context", "rates", "script"])
def test_a_device_too_slow_for_one_network_is_refused_when_the_minute_is_over(
    monkeypatch: pytest.MonkeyPatch, slow_part: str
) -> None:
    machine = Machine(seconds_of={slow_part: 3_600.0})
    with pytest.raises(CalibrationTimeError, match="within 60 s"):
        calibrated(machine, monkeypatch)
    assert machine.now_ns <= module.TIME_MS_MAX * 1_000_000
    assert all(worker.is_closed for worker in machine.workers)


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
