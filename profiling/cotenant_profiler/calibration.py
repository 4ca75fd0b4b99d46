"""Measures the device at hand within a minute: rates, context and workspace, host, and three networks of the zoo.

Everything runs in measuring processes of its own, one after the other, so that whoever stops this process frees the
device at once. What others do on the device meanwhile is watched, and said in the record.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from cotenant.device_calibration import Anchor, DeviceCalibration, PrecisionRates
from cotenant_profiler import system_clock
from cotenant_profiler.bench import LEAD_MS
from cotenant_profiler.errors import OutOfMemoryError, ProfilerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.measured_device import MeasuredDevice
from cotenant_profiler.nvidia_device import NvidiaDevice
from cotenant_profiler.worker_client import WorkerClient
from predictor_service.features.anchor_networks import GPU_ANCHORS, STANDIN_ANCHORS, AnchorNetwork
from predictor_service.features.devices import STANDIN_DEVICE

Listener = Callable[[str], None]
"""Called with the name of every part before it is measured."""

RATE_MS: Final = 400
WINDOW_MS: Final = 700
WINDOWS: Final = 3
MEMORY_STEPS: Final = 12
"""As in the campaigns: the peak is that of the first steps."""
_WARM_UP: Final = {"steps_min": 5, "duration_ms_min": 300, "duration_ms_max": 2_000}
_LOOK_MS: Final = 500
BUSY_RATIO: Final = 0.5
"""Share of the device taken by others above which nothing is measured."""
FOREIGN_RATIO_MAX: Final = 0.1
"""Share above which the record says that others used the device."""
_ANSWER_MS: Final = 60_000


class DeviceBusyError(ProfilerError):
    """Others use the device: what would be measured is theirs."""


class _Calibrator:
    """One calibration under way."""

    def __init__(self, device: MeasuredDevice, listener: Listener) -> None:
        self._device = device
        self._listener = listener
        self._foreign_ratios: list[float] = []

    def refuse_busy(self) -> None:
        """Look at the device before anything of ours runs there."""
        end = self._device.watch([])
        system_clock.sleep_ms(_LOOK_MS)
        foreign_ratio = end().foreign_ratio
        if foreign_ratio > BUSY_RATIO:
            raise DeviceBusyError(f"others use {foreign_ratio:.0%} of the device; calibrate it while it is free")

    def measure_rates(self) -> dict[str, Any]:
        """Rates, copies, launches, host steps, context and workspace."""
        self._listener("measuring rates")
        with WorkerClient(self._device.place) as worker:
            context = worker.ask("context", _ANSWER_MS)
            held_bytes = self._device.memory_bytes(worker.pid)
            if held_bytes is not None:
                context["context_bytes"] = max(0, held_bytes - context["reserved_bytes"])
                context["workspace_bytes"] = 0
            return context | self._watched(worker, lambda: worker.ask("rates", _ANSWER_MS, duration_ms=RATE_MS))

    def measure_anchor(self, network: AnchorNetwork) -> tuple[Anchor, int]:
        """Measure one network; also what the driver says is held beyond its tensors, 0 where there is none to ask."""
        self._listener(f"measuring {network.network}")
        job = JobSpec(architecture=network.network, batch=network.batch_size)
        with WorkerClient(self._device.place) as worker:
            memory = worker.ask("memory", _ANSWER_MS, job=job, steps=MEMORY_STEPS)
            held_bytes = self._device.memory_bytes(worker.pid)
            worker.ask("prepare", _ANSWER_MS, job=job, **_WARM_UP)
            windows = [self._watched(worker, lambda: self._window(worker, job)) for _ in range(WINDOWS)]
        steps_ms = sorted(window["step_ms_mean"] for window in windows)
        middle_ms = statistics.median(steps_ms)
        anchor = Anchor(
            network=network.network,
            graph_sha256=network.graph_sha256,
            batch_size=network.batch_size,
            optimizer=network.optimizer,
            step_ms=middle_ms,
            step_spread_ratio=(steps_ms[-1] - steps_ms[0]) / middle_ms,
            memory_peak_bytes=held_bytes or memory["peak_bytes"],
            utilization_ratio=statistics.median(window["utilization_ratio"] for window in windows),
        )
        return anchor, max(0, (held_bytes or 0) - memory["peak_bytes"])

    @property
    def foreign_load(self) -> bool:
        """Whether others used the device."""
        return statistics.fmean(self._foreign_ratios or [0.0]) > FOREIGN_RATIO_MAX

    def _window(self, worker: WorkerClient, job: JobSpec) -> dict[str, Any]:
        start_ns = system_clock.now_ns() + LEAD_MS * 1_000_000
        times = {"start_ns": start_ns, "warm_in_ms": 0, "window_ms": WINDOW_MS, "tail_ms": 0}
        return worker.ask("measure", _ANSWER_MS, job=job, wait_ms=0.0, **times)

    def _watched(self, worker: WorkerClient, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        end = self._device.watch([worker.pid])
        answer = work()
        window = end()
        self._foreign_ratios.append(window.foreign_ratio)
        if isinstance(self._device, NvidiaDevice) and window.utilization_ratio is not None:
            answer["utilization_ratio"] = window.utilization_ratio
        return answer


def calibrate(
    device: MeasuredDevice,
    *,
    now_ms: int,
    listener: Listener = lambda part: None,
    networks: Sequence[AnchorNetwork] | None = None,
    despite_load: bool = False,
) -> DeviceCalibration:
    """Measure a device.

    Args:
        device: An open one.
        now_ms: Milliseconds since 1970, for the record.
        listener: Told of every part.
        networks: Anchors; None = those of the device's kind.
        despite_load: Measure although others use the device.

    Raises:
        DeviceBusyError: Others use most of the device.
        WorkerError: A measuring process ended, or was silent for a minute.
        CalibrationError: A figure came out that cannot be.
    """
    calibrator = _Calibrator(device, listener)
    if not despite_load:
        calibrator.refuse_busy()
    figures = calibrator.measure_rates()
    anchors, workspace_bytes = [], int(figures["workspace_bytes"])
    for network in networks if networks is not None else anchor_networks(device):
        try:
            anchor, beyond_bytes = calibrator.measure_anchor(network)
        except OutOfMemoryError:
            continue
        anchors.append(anchor)
        workspace_bytes = max(workspace_bytes, beyond_bytes - int(figures["context_bytes"]))
    return DeviceCalibration(
        device=device_name(device),
        measured_at_ms=now_ms,
        context_bytes=int(figures["context_bytes"]),
        workspace_bytes=workspace_bytes,
        rates={precision: PrecisionRates(**rates) for precision, rates in figures["rates"].items()},
        copy_bytes_per_s=figures["copy_bytes_per_s"],
        launch_ms=figures["launch_ms"],
        host_steps_per_s=figures["host_steps_per_s"],
        anchors=tuple(anchors),
        driver=device.driver,
        framework=f"torch-{torch.__version__.partition('+')[0]}",
        foreign_load=calibrator.foreign_load,
    ).checked(now_ms)


def anchor_networks(device: MeasuredDevice) -> tuple[AnchorNetwork, ...]:
    """Return the networks that suit a device."""
    return GPU_ANCHORS if isinstance(device, NvidiaDevice) else STANDIN_ANCHORS


def device_name(device: MeasuredDevice) -> str:
    """Return the device type by name, as an agent offers it."""
    return device.name if isinstance(device, NvidiaDevice) else STANDIN_DEVICE
