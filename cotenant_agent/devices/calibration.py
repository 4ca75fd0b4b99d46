"""Measures this node's devices once, while nothing runs: at the first start on a device, or under another driver.

The profiler measures, as a process of its own: the agent imports none of it. The agent serves from the beginning; a job
that comes ends the measuring process first, and it begins anew when the devices are free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant.calibration_files import FOLDER, calibration_path, keep_calibration
from cotenant.device_calibration import NOT_YET, CalibrationError, DeviceCalibration, read_calibration_file
from cotenant.extras import NEEDED_AT_START, TORCH, missing_modules
from cotenant_agent.devices.gpu_inventory import GpuInventory
from cotenant_agent.errors import DeviceError
from cotenant_agent.records import GpuDescription
from cotenant_agent.system_clock import wall_ms

_log = logging.getLogger(__name__)

PROFILER: Final = "cotenant_profiler"
_LOOK_S: Final = 0.5
_MEASURING_S_MAX: Final = 90.0
"""The profiler's own minute, its start and its end."""
_ENDING_S_MAX: Final = 3.0
_PAUSES_S: Final = (60.0, 600.0, 600.0, 3_600.0)
"""Between tries that failed, e.g. because others used the device; then it stays as it is until the next start."""
_REASON_CHARACTERS_MAX: Final = 200
SWITCHED_OFF: Final = "calibration is switched off there (--no-calibrate)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A device type of this node under its driver, and the first device of it, which is measured for all."""

    device: str
    driver: str
    gpu_id: str


class Calibrations:
    """What is known of this node's devices, and the process that finds it out.

    Args:
        state_dir: The agent's; records are kept below it.
        inventory: The devices.
        is_free: Whether no attempt lives on this node.
        enabled: False: nothing is measured; what was kept is used.
        command: Makes the command line that measures a device into a file.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        inventory: GpuInventory,
        is_free: Callable[[], bool],
        enabled: bool = True,
        command: Callable[[str, Path], Sequence[str]] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._inventory = inventory
        self._is_free = is_free
        self._enabled = enabled
        self._command = command or measuring_command
        self._process: asyncio.subprocess.Process | None = None
        self._creation = asyncio.Lock()
        self._on_change: Callable[[], None] = lambda: None
        self._kinds = _kinds_of(inventory)
        self._known: dict[tuple[str, str], DeviceCalibration] = {}
        self._reasons: dict[tuple[str, str], str] = {}
        self._unreadable: dict[tuple[str, str], str] = {}
        for kind in self._kinds:
            self._read_kept(kind)

    def of(self, gpu: GpuDescription) -> DeviceCalibration | None:
        """What was measured of a device; None = nothing yet, `reason` has the cause."""
        return self._known.get((gpu.device, gpu.driver))

    def reason(self, gpu: GpuDescription) -> str:
        """Why a device is not calibrated; empty when it is."""
        key = (gpu.device, gpu.driver)
        if key in self._known:
            return ""
        return self._reasons.get(key, NOT_YET if self._enabled else SWITCHED_OFF) + self._unreadable.get(key, "")

    async def run(self, on_change: Callable[[], None]) -> None:
        """Measure what is missing, one device type after the other, while the node is free.

        Args:
            on_change: Called after every new record, and when there is another reason for none.
        """
        self._on_change = on_change
        due = [kind for kind in self._kinds if (kind.device, kind.driver) not in self._known]
        cause = missing_cause() if self._enabled else SWITCHED_OFF
        for kind in due:
            if cause:
                self._give_reason(kind, cause)
            else:
                await self._measure_when_free(kind)

    async def make_way(self) -> None:
        """End the measuring process, if one runs; returns when it is gone, after seconds at most."""
        async with self._creation:
            process = self._process
        if process is not None:
            await _end(process)

    def _read_kept(self, kind: _Kind) -> None:
        path = calibration_path(self._state_dir, kind.device, kind.driver)
        if not path.exists():
            return
        try:
            kept = read_calibration_file(path, wall_ms())
        except CalibrationError as error:
            _log.warning("calibration_unreadable", extra={"reason": error.message})
            cause = error.message.replace(str(path), path.name)[:_REASON_CHARACTERS_MAX]
            self._unreadable[kind.device, kind.driver] = f"; what was kept cannot be read ({cause})"
            return
        if not kept.is_stale(device=kind.device, driver=kind.driver, framework=framework()):
            self._known[kind.device, kind.driver] = kept

    async def _measure_when_free(self, kind: _Kind) -> None:
        """Measure until there is a record, or the tries are used up; a job that comes between costs none."""
        for pause_s in (*_PAUSES_S, None):
            while not await self._measure_once(kind):
                continue
            if (kind.device, kind.driver) in self._known:
                return
            if pause_s is not None:
                await asyncio.sleep(pause_s)

    async def _measure_once(self, kind: _Kind) -> bool:
        """Whether a measurement came to its end, good or bad; False = a job was there or came."""
        if not self._is_free():
            await asyncio.sleep(_LOOK_S)
            return False
        partial = self._state_dir / FOLDER / f".measuring-{os.getpid()}.json"
        try:
            partial.parent.mkdir(exist_ok=True)
            status, words = await self._run_process(self._command(self._profiler_device(kind), partial))
            if status == -signal.SIGTERM or status == 128 + signal.SIGTERM or not self._is_free():
                _log.info("calibration_interrupted", extra={"device": kind.device})
                await asyncio.sleep(_LOOK_S)
                return False
            self._take(kind, status, words, partial)
        except (OSError, DeviceError) as error:
            self._give_reason(kind, str(error))
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        return True

    async def _run_process(self, command: Sequence[str]) -> tuple[int, str]:
        """Exit status and standard error of the measuring process; it never outlives this call."""
        _log.info("calibration_started", extra={"command": " ".join(command[1:5])})
        # It runs before it is known here: a caller that wants it gone waits until it is.
        async with self._creation:
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_MEASURING_S_MAX):
                _, errors = await process.communicate()
            return process.returncode or 0, errors.decode("utf-8", "replace")
        except TimeoutError:
            return 1, f"it took longer than {_MEASURING_S_MAX:.0f} s"
        finally:
            self._process = None
            await _end(process)

    def _take(self, kind: _Kind, status: int, words: str, partial: Path) -> None:
        if status != 0:
            lines = [line for line in words.splitlines() if line.strip()] or [f"exit status {status}"]
            self._give_reason(kind, lines[-1].removeprefix("error: "))
            return
        try:
            measured = read_calibration_file(partial, wall_ms())
        except CalibrationError as error:
            self._give_reason(kind, error.message)
            return
        if measured.device != kind.device:
            self._give_reason(kind, f"the profiler measured a {measured.device}")
            return
        keep_calibration(calibration_path(self._state_dir, kind.device, kind.driver), measured)
        self._known[kind.device, kind.driver] = measured
        _log.info("calibrated", extra={"device": kind.device, "foreign_load": measured.foreign_load})
        self._on_change()

    def _give_reason(self, kind: _Kind, reason: str) -> None:
        reason = reason[:_REASON_CHARACTERS_MAX]
        if self._reasons.get((kind.device, kind.driver)) == reason:
            return
        _log.warning("not_calibrated", extra={"device": kind.device, "reason": reason})
        self._reasons[kind.device, kind.driver] = reason
        self._on_change()

    def _profiler_device(self, kind: _Kind) -> str:
        """The device as the profiler names it."""
        binding = self._inventory.bind([kind.gpu_id])
        if binding.cpu_cores:
            return f"cpu-standin:{binding.cpu_cores[0]}"
        return f"nvidia:{binding.environment.get('CUDA_VISIBLE_DEVICES', '')}"


def measuring_command(device: str, file: Path, *, despite_load: bool = False) -> list[str]:
    """The command line that measures a device, as the profiler names it, into a file."""
    command = [sys.executable, "-m", PROFILER, "calibrate", "--device", device, "--file", str(file)]
    return [*command, "--despite-load"] if despite_load else command


def missing_cause() -> str:
    """Why nothing can be measured on this node; empty when it can."""
    missing = missing_modules((PROFILER, *NEEDED_AT_START[PROFILER]))
    if TORCH in missing:
        return "torch is not installed there"
    return f"cotenant[profiler] is not installed there ({', '.join(missing)} not found)" if missing else ""


def framework() -> str:
    """The framework that would measure, as records name it; empty = none."""
    try:
        return f"torch-{importlib.metadata.version(TORCH).partition('+')[0]}"
    except importlib.metadata.PackageNotFoundError:
        return ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, which ends its measuring processes in order, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S_MAX):
                await process.wait()


def _kinds_of(inventory: GpuInventory) -> tuple[_Kind, ...]:
    first: Mapping[tuple[str, str], GpuDescription] = {
        (gpu.device, gpu.driver): gpu for gpu in reversed(inventory.describe()) if gpu.healthy
    }
    return tuple(
        _Kind(device=device, driver=driver, gpu_id=gpu.gpu_id) for (device, driver), gpu in sorted(first.items())
    )
