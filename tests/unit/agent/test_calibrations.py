"""An agent's calibration: only while the node is free, once per device and driver, and never in a job's way."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cotenant.calibration_files import calibration_path, keep_calibration
from cotenant.device_calibration import NOT_YET, DeviceCalibration, write_calibration
from cotenant_agent.devices import calibration as module
from cotenant_agent.devices.calibration import SWITCHED_OFF, Calibrations, missing_cause
from tests.support.calibrations import calibration
from tests.support.fake_devices import FakeInventory

DEVICE = "fake"


class Profiler:
    """Stands in for the profiler: a script that writes a record, waits, or fails."""

    def __init__(self, folder: Path, measured: DeviceCalibration, *, status: int = 0, wait_s: float = 0.0) -> None:
        self._record = folder / "record.json"
        self._record.write_text(write_calibration(measured))
        self._status, self._wait_s = status, wait_s
        self.devices: list[str] = []

    def command(self, device: str, file: Path) -> Sequence[str]:
        self.devices.append(device)
        script = (
            f"import shutil, sys, time; time.sleep({self._wait_s}); "
            f"shutil.copy({str(self._record)!r}, {str(file)!r}) if not {self._status} else None; "
            f"sys.stderr.write('error: others use 80% of the device\\n') if {self._status} else None; "
            f"sys.exit({self._status})"
        )
        return [sys.executable, "-c", script]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.02)
    monkeypatch.setattr(module, "_PAUSES_S", (0.02, 0.02))
    monkeypatch.setattr(module, "missing_cause", lambda: "")
    monkeypatch.setattr(module, "framework", lambda: calibration().framework)


def measured_here() -> DeviceCalibration:
    return replace(calibration(device=DEVICE), measured_at_ms=1_750_000_000_000)


def calibrations(
    folder: Path, profiler: Profiler, *, free: Sequence[bool] = (), enabled: bool = True, gpus: int = 2
) -> Calibrations:
    """Calibrations of a node that is free as the list says, then always."""
    answers = iter(free)
    return Calibrations(
        state_dir=folder,
        inventory=FakeInventory([f"gpu-{number}" for number in range(gpus)]),
        is_free=lambda: next(answers, True),
        enabled=enabled,
        command=profiler.command,
    )


def run_and_count_changes(subject: Calibrations) -> int:
    """How often the inventory changed until there was nothing left to measure."""
    changes: list[None] = []
    asyncio.run(asyncio.wait_for(subject.run(lambda: changes.append(None)), timeout=90))
    return len(changes)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(9_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


def test_a_device_type_is_measured_once_for_all_its_devices_and_kept(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, measured_here())
    subject = calibrations(tmp_path, profiler)
    first, second = FakeInventory(["gpu-0", "gpu-1"]).describe()
    assert (subject.of(first), subject.reason(first)) == (None, NOT_YET)
    assert run_and_count_changes(subject) == 1
    assert subject.of(first) == subject.of(second) == measured_here()
    assert subject.reason(first) == ""
    assert len(profiler.devices) == 1

    again = calibrations(tmp_path, profiler)
    assert again.of(first) == measured_here()
    assert run_and_count_changes(again) == 0
    assert len(profiler.devices) == 1


@pytest.mark.parametrize("change", [{"driver": "600.1"}, {"framework": "torch-9"}, {"code_version": 99}])
def test_a_record_of_another_driver_framework_or_method_is_measured_anew(
    tmp_path: Path, change: dict[str, object]
) -> None:
    keep_calibration(calibration_path(tmp_path, DEVICE, "none"), replace(measured_here(), **change))  # type: ignore[arg-type]
    profiler = Profiler(tmp_path, measured_here())
    subject = calibrations(tmp_path, profiler)
    assert subject.of(FakeInventory(["gpu-0"]).describe()[0]) is None
    assert run_and_count_changes(subject) == 1


@pytest.mark.parametrize("content", ["", "{", '{"format": "cotenant.device_calibration/1"}', "\0" * 100])
def test_a_damaged_record_is_measured_anew(tmp_path: Path, content: str) -> None:
    path = calibration_path(tmp_path, DEVICE, "none")
    path.parent.mkdir()
    path.write_text(content)
    assert run_and_count_changes(calibrations(tmp_path, Profiler(tmp_path, measured_here()))) == 1


def test_nothing_is_measured_while_a_job_lives(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, measured_here())
    subject = calibrations(tmp_path, profiler, free=[False] * 5)

    async def watch() -> int:
        task = asyncio.create_task(subject.run(lambda: None))
        await asyncio.sleep(0.05)
        early = len(profiler.devices)
        await task
        return early

    assert asyncio.run(asyncio.wait_for(watch(), timeout=90)) == 0
    assert len(profiler.devices) == 1


def test_a_job_that_comes_ends_the_measuring_and_it_begins_anew_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ENDING_S_MAX", 60.0)
    slow = Profiler(tmp_path, measured_here(), wait_s=60)
    holds_job = False
    subject = Calibrations(
        state_dir=tmp_path,
        inventory=FakeInventory(["gpu-0"]),
        is_free=lambda: not holds_job,
        command=slow.command,
    )

    async def play() -> int | None:
        nonlocal holds_job
        task = asyncio.create_task(subject.run(lambda: None))
        await until(lambda: subject._process is not None)
        process = subject._process
        assert process is not None
        await subject.make_way()
        holds_job = True
        await asyncio.sleep(0.1)
        assert subject._process is None
        slow._wait_s = 0.0
        holds_job = False
        await task
        return process.returncode

    assert asyncio.run(asyncio.wait_for(play(), timeout=90)) == -signal.SIGTERM, "it needs not be killed"
    assert len(slow.devices) >= 2
    assert subject.of(FakeInventory(["gpu-0"]).describe()[0]) == measured_here()


def test_a_measuring_process_that_ignores_the_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENDING_S_MAX", 0.2)
    ready = tmp_path / "ready"
    script = (
        f"import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    subject = Calibrations(
        state_dir=tmp_path,
        inventory=FakeInventory(["gpu-0"]),
        is_free=lambda: True,
        command=lambda device, file: [sys.executable, "-c", script],
    )

    async def play() -> int | None:
        task = asyncio.create_task(subject.run(lambda: None))
        await until(lambda: ready.exists() and subject._process is not None)
        process = subject._process
        assert process is not None
        await subject.make_way()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return process.returncode

    assert asyncio.run(asyncio.wait_for(play(), timeout=90)) == -signal.SIGKILL


def test_a_measuring_process_that_is_just_being_started_makes_way_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, create = tmp_path / "ready", asyncio.create_subprocess_exec

    async def create_slowly(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*command, **options)
        await asyncio.sleep(0.3)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_slowly)
    script = f"import os, pathlib, time; pathlib.Path({str(ready)!r}).write_text(str(os.getpid())); time.sleep(60)"
    subject = Calibrations(
        state_dir=tmp_path,
        inventory=FakeInventory(["gpu-0"]),
        is_free=lambda: True,
        command=lambda device, file: [sys.executable, "-c", script],
    )

    def is_there() -> bool:
        return Path(f"/proc/{ready.read_text()}/stat").exists()

    async def play() -> bool:
        task = asyncio.create_task(subject.run(lambda: None))
        await until(lambda: ready.exists() and bool(ready.read_text()))
        await subject.make_way()
        still_there = is_there()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return still_there

    assert not asyncio.run(asyncio.wait_for(play(), timeout=90))


def test_the_measuring_process_ends_with_the_agent(tmp_path: Path) -> None:
    subject = calibrations(tmp_path, Profiler(tmp_path, measured_here(), wait_s=60))

    async def play() -> int | None:
        task = asyncio.create_task(subject.run(lambda: None))
        await until(lambda: subject._process is not None)
        process = subject._process
        assert process is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return process.returncode

    assert asyncio.run(asyncio.wait_for(play(), timeout=90)) is not None
    assert list((tmp_path / "calibrations").iterdir()) == []


def test_a_failure_is_said_in_words_and_tried_again_a_few_times(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, measured_here(), status=1)
    subject = calibrations(tmp_path, profiler)
    assert run_and_count_changes(subject) == 1
    assert subject.reason(FakeInventory(["gpu-0"]).describe()[0]) == "others use 80% of the device"
    assert len(profiler.devices) == 3


def test_the_scheduler_is_told_of_every_new_cause(tmp_path: Path) -> None:
    assert run_and_count_changes(calibrations(tmp_path, Profiler(tmp_path, measured_here(), status=1))) == 1


def test_a_record_of_another_device_is_not_taken(tmp_path: Path) -> None:
    subject = calibrations(tmp_path, Profiler(tmp_path, calibration(device="NVIDIA H200")))
    assert run_and_count_changes(subject) == 1
    assert "NVIDIA H200" in subject.reason(FakeInventory(["gpu-0"]).describe()[0])


def test_a_node_without_torch_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing_cause", missing_cause)
    monkeypatch.setattr(module, "missing_modules", lambda modules: [name for name in modules if name == "torch"])
    profiler = Profiler(tmp_path, measured_here())
    subject = calibrations(tmp_path, profiler)
    assert run_and_count_changes(subject) == 1
    assert subject.reason(FakeInventory(["gpu-0"]).describe()[0]) == "torch is not installed there"
    assert profiler.devices == []


def test_calibration_can_be_switched_off_and_what_was_kept_still_counts(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, measured_here())
    gpu = FakeInventory(["gpu-0"]).describe()[0]
    off = calibrations(tmp_path, profiler, enabled=False)
    assert run_and_count_changes(off) == 1
    assert (off.of(gpu), off.reason(gpu)) == (None, SWITCHED_OFF)
    keep_calibration(calibration_path(tmp_path, DEVICE, "none"), measured_here())
    assert calibrations(tmp_path, profiler, enabled=False).of(gpu) == measured_here()


@pytest.mark.parametrize(("enabled", "otherwise"), [(True, NOT_YET), (False, SWITCHED_OFF)])
def test_a_kept_record_that_cannot_be_read_is_told_until_there_is_another(
    tmp_path: Path, enabled: bool, otherwise: str
) -> None:
    kept = calibration_path(tmp_path, DEVICE, "none")
    kept.parent.mkdir()
    kept.write_text("{")
    subject = calibrations(tmp_path, Profiler(tmp_path, measured_here()), enabled=enabled)
    gpu = FakeInventory(["gpu-0"]).describe()[0]
    told = f"{otherwise}; what was kept cannot be read ({kept.name}: no calibration: no JSON)"
    assert subject.reason(gpu) == told
    run_and_count_changes(subject)
    assert subject.reason(gpu) == ("" if enabled else told)
