"""Measures the device at hand within a minute: rates, context, workspace, host, and three networks, alone and in pairs.

Everything runs in measuring processes of its own, one after the other, so that stopping this process frees the
device at once. What others do on the device meanwhile is watched, and said in the record.

Where a driver reports a process' memory, a network's is read there. A stand-in device has none: all that a job's
process holds counts, its script's data included, so each network is trained once more as by a plain script for its
memory. There the framework is imported once, and all measuring processes are forked from that: on a slow core six
imports would take longer than the minute. On a GPU all processes that will be needed import it at once: one after the
other took so long on an H200 that no time was left for pairs.
The minute is kept: a network or a pair that no longer fits into it is left out; without a network there is no record.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import torch

from cotenant.device_calibration import Anchor, DeviceCalibration, PrecisionRates
from cotenant.device_sharing import DeviceSharing, uses_mps
from cotenant_profiler import system_clock
from cotenant_profiler.anchor_pairs import PairFindings, measure_pairs
from cotenant_profiler.bench import LEAD_MS
from cotenant_profiler.errors import ForkRefusedError, OutOfMemoryError, ProfilerError, WorkerError
from cotenant_profiler.framework_client import FrameworkClient
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.measured_device import MeasuredDevice
from cotenant_profiler.nvidia_device import NvidiaDevice
from cotenant_profiler.worker_client import WorkerClient
from predictor_service.features.anchor_networks import GPU_ANCHORS, STANDIN_ANCHORS, AnchorNetwork
from predictor_service.features.devices import STANDIN_DEVICE
from predictor_service.features.head_start import NO_HEAD_START

Listener = Callable[[str], None]
"""Called with the name of every part before it is measured."""

TIME_MS_MAX: Final = 60_000
"""For all of it."""
PARTS: Final = 8
"""Of which a listener is told where everything fits: rates, three networks, four pairs, none of them once more."""
GPU_WORKERS: Final = 6
"""One for the rates, one for each of three networks, two for pairs."""
RATE_MS: Final = 400
WINDOW_MS: Final = 700
WINDOWS: Final = 3
MEMORY_STEPS: Final = 12
"""As in the campaigns: the peak is that of the first steps."""
_WARM_UP: Final = {"steps_min": 5, "duration_ms_min": 300, "duration_ms_max": 2_000}
_LOOK_MS: Final = 500
_TOO_SLOW: Final = (
    f"the device could not be measured within {TIME_MS_MAX // 1000} s: it is slow or others use it; "
    "calibrate it while it is free"
)
BUSY_RATIO: Final = 0.5
"""Share of the device taken by others above which nothing is measured."""
FOREIGN_RATIO_MAX: Final = 0.1
"""Share above which the record says that others used the device."""


class DeviceBusyError(ProfilerError):
    """Others use the device: what would be measured is theirs."""


class CalibrationTimeError(ProfilerError):
    """The minute is over."""


class _Calibrator:
    """One calibration under way; what it started ends with it."""

    def __init__(self, device: MeasuredDevice, listener: Listener) -> None:
        self._device = device
        self._listener = listener
        self._foreign_ratios: list[float] = []
        self._deadline_ns = system_clock.now_ns() + TIME_MS_MAX * 1_000_000
        # Of a device without a driver: starting a process costs more there than a measurement.
        self._kept_worker: WorkerClient | None = None
        self._framework: FrameworkClient | None = None
        self._started_ahead: list[WorkerClient] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._kept_worker is not None:
            self._kept_worker.close()
        if self._framework is not None:
            self._framework.close()
        for worker in self._started_ahead:
            worker.close()

    def import_framework(self) -> None:
        """Begin to import it: where workers are forked, or in all that will be on a GPU, which hold none of it yet."""
        if isinstance(self._device, NvidiaDevice):
            self._started_ahead = [WorkerClient(self._device.place) for _ in range(GPU_WORKERS)]
        else:
            self._framework = FrameworkClient(self._device.place.arguments)

    def refuse_busy(self) -> None:
        """Look at the device before anything of ours runs there."""
        end = self._device.watch([])
        system_clock.sleep_ms(_LOOK_MS)
        foreign_ratio = end().foreign_ratio
        if foreign_ratio > BUSY_RATIO:
            raise DeviceBusyError(
                f"others use {100 * foreign_ratio:.0f} % of the device; calibrate it while it is free"
            )

    def measure_rates(self) -> dict[str, Any]:
        """Rates, copies, launches, host steps, context and workspace."""
        self._listener("measuring rates")
        with contextlib.ExitStack() as stack:
            worker = stack.enter_context(self._start_worker())
            # On a host of few cores they would still import while the first one measures what the host can do.
            for other in self._started_ahead:
                self._ask(other, "ready")
            context = self._ask(worker, "context")
            held_bytes = self._device.memory_bytes(worker.pid)
            if held_bytes is not None:
                context["context_bytes"] = max(0, held_bytes - context["reserved_bytes"])
                context["workspace_bytes"] = 0
            figures = context | self._watched(worker, lambda: self._ask(worker, "rates", duration_ms=RATE_MS))
            if held_bytes is None:
                stack.pop_all()
                self._kept_worker = worker
            return figures

    def measure_anchor(self, network: AnchorNetwork) -> tuple[Anchor, int]:
        """Measure one network; also what the driver says is held beyond its tensors, 0 where there is none to ask."""
        self._listener(f"measuring {network.network}")
        job = JobSpec(architecture=network.network, batch=network.batch_size)
        if self._kept_worker is not None:
            windows = self._windows(self._kept_worker, job)
            return _anchor(network, windows, self._memory_of_a_script(job)), 0
        with self._start_worker() as worker:
            memory = self._ask(worker, "memory", job=job, steps=MEMORY_STEPS)
            held_bytes = self._device.memory_bytes(worker.pid) or memory["peak_bytes"]
            return _anchor(network, self._windows(worker, job), held_bytes), max(0, held_bytes - memory["peak_bytes"])

    def measure_pairs(self, anchors: Sequence[Anchor]) -> PairFindings:
        """Measure anchors together, while nothing but them is on the device and the minute lasts."""
        if self.foreign_load:
            return PairFindings()
        return measure_pairs(
            self._device,
            anchors,
            remaining_ms=self._left_ms,
            listener=self._listener,
            start_worker=self._start_worker,
        )

    def _start_worker(self, keeps_freed_memory: bool | None = True) -> WorkerClient:
        remaining_ms = self._remaining_ms()
        if self._framework is not None:
            try:
                return self._framework.start(remaining_ms, keeps_freed_memory=keeps_freed_memory)
            except ForkRefusedError:
                self._framework.close()
                self._framework = None
            except WorkerError:
                self._remaining_ms()
                raise
        if self._started_ahead and keeps_freed_memory:
            return self._started_ahead.pop()
        return WorkerClient(self._device.place, keeps_freed_memory=keeps_freed_memory)

    def _windows(self, worker: WorkerClient, job: JobSpec) -> list[dict[str, Any]]:
        self._ask(worker, "prepare", job=job, **_WARM_UP)
        return [self._watched(worker, lambda: self._window(worker, job)) for _ in range(WINDOWS)]

    def _memory_of_a_script(self, job: JobSpec) -> int:
        """What an agent would count of a job that trains this network, bytes."""
        with self._start_worker(keeps_freed_memory=None) as worker:
            return int(self._ask(worker, "script", job=job, steps=MEMORY_STEPS)["peak_bytes"])

    def _ask(self, worker: WorkerClient, do: str, **arguments: object) -> dict[str, Any]:
        try:
            return worker.ask(do, self._remaining_ms(), **arguments)
        except OutOfMemoryError:
            raise
        except WorkerError as error:
            self._remaining_ms()
            raise error

    def _remaining_ms(self) -> float:
        """Milliseconds until the minute is over, which raises."""
        remaining_ms = self._left_ms()
        if remaining_ms <= 0:
            raise CalibrationTimeError(_TOO_SLOW)
        return remaining_ms

    def _left_ms(self) -> float:
        return (self._deadline_ns - system_clock.now_ns()) / 1e6

    @property
    def foreign_load(self) -> bool:
        """Whether others used the device."""
        return statistics.fmean(self._foreign_ratios or [0.0]) > FOREIGN_RATIO_MAX

    def _window(self, worker: WorkerClient, job: JobSpec) -> dict[str, Any]:
        start_ns = system_clock.now_ns() + LEAD_MS * 1_000_000
        times = {"start_ns": start_ns, "warm_in_ms": 0, "window_ms": WINDOW_MS, "tail_ms": 0}
        return self._ask(worker, "measure", job=job, wait_ms=0.0, **times)

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
    despite_load: bool = False,
) -> DeviceCalibration:
    """Measure a device.

    Args:
        device: An open one.
        now_ms: Milliseconds since 1970, for the record.
        listener: Told of every part.
        despite_load: Measure although others use the device.

    Raises:
        DeviceBusyError: Others use most of the device.
        CalibrationTimeError: Not even one network was measured within the minute.
        WorkerError: A measuring process ended.
        CalibrationError: A figure came out that cannot be.
    """
    with _Calibrator(device, listener) as calibrator:
        if not despite_load:
            calibrator.refuse_busy()
        calibrator.import_framework()
        figures = calibrator.measure_rates()
        measured = _measure_anchors(calibrator, anchor_networks(device))
        anchors = tuple(anchor for anchor, _ in measured)
        together = calibrator.measure_pairs(anchors)
    # A process' CPU time is no time of a GPU, and no quota that a wait would leave unused holds one up.
    head_start = NO_HEAD_START if isinstance(device, NvidiaDevice) else together.head_start(anchors)
    beyond_bytes = max((beyond for _, beyond in measured), default=0) - int(figures["context_bytes"])
    return DeviceCalibration(
        device=device_name(device),
        measured_at_ms=now_ms,
        context_bytes=int(figures["context_bytes"]),
        workspace_bytes=max(int(figures["workspace_bytes"]), beyond_bytes),
        rates={precision: PrecisionRates(**rates) for precision, rates in figures["rates"].items()},
        copy_bytes_per_s=figures["copy_bytes_per_s"],
        launch_ms=figures["launch_ms"],
        host_steps_per_s=figures["host_steps_per_s"],
        anchors=tuple(together.with_windows_alone(anchor, WINDOWS * WINDOW_MS, head_start) for anchor in anchors),
        driver=device.driver,
        framework=f"torch-{torch.__version__.partition('+')[0]}",
        foreign_load=calibrator.foreign_load,
        pairs=tuple(together.pairs),
        head_start_ms=head_start.device_ms,
        speed_wander_ratio=together.speed_wander_ratio,
        sharing=_way_of_sharing(device),
    ).checked(now_ms)


def _measure_anchors(calibrator: _Calibrator, networks: Sequence[AnchorNetwork]) -> list[tuple[Anchor, int]]:
    """As many as the minute and the memory of the device allow."""
    measured: list[tuple[Anchor, int]] = []
    for network in networks:
        try:
            measured.append(calibrator.measure_anchor(network))
        except OutOfMemoryError:
            continue
        except CalibrationTimeError:
            if not measured:
                raise
            break
    return measured


def _anchor(network: AnchorNetwork, windows: Sequence[dict[str, Any]], memory_peak_bytes: int) -> Anchor:
    steps_ms = sorted(window["step_ms_mean"] for window in windows)
    middle_ms = statistics.median(steps_ms)
    return Anchor(
        network=network.network,
        graph_sha256=network.graph_sha256,
        batch_size=network.batch_size,
        optimizer=network.optimizer,
        step_ms=middle_ms,
        step_spread_ratio=(steps_ms[-1] - steps_ms[0]) / middle_ms,
        memory_peak_bytes=memory_peak_bytes,
        utilization_ratio=statistics.median(window["utilization_ratio"] for window in windows),
    )


def anchor_networks(device: MeasuredDevice) -> tuple[AnchorNetwork, ...]:
    """Return the networks that suit a device."""
    return GPU_ANCHORS if isinstance(device, NvidiaDevice) else STANDIN_ANCHORS


def _way_of_sharing(device: MeasuredDevice) -> DeviceSharing:
    """How pairs share it: measuring processes are clients of MPS wherever jobs would be."""
    is_served = isinstance(device, NvidiaDevice) and uses_mps(os.environ)
    return DeviceSharing.MPS if is_served else DeviceSharing.TIME_SLICING


def left_out(calibration: DeviceCalibration) -> tuple[str, ...]:
    """Return the parts of a whole calibration that a record lacks, networks by name; empty = it is whole."""
    networks = STANDIN_ANCHORS if calibration.device == STANDIN_DEVICE else GPU_ANCHORS
    measured = {anchor.network for anchor in calibration.anchors}
    missing = [network.network for network in networks if network.network not in measured]
    return (*missing, *(() if calibration.pairs else ("pairs of networks",)))


def device_name(device: MeasuredDevice) -> str:
    """Return the device type by name, as an agent offers it."""
    return device.name if isinstance(device, NvidiaDevice) else STANDIN_DEVICE
