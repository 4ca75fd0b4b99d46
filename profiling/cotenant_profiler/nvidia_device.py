"""One NVIDIA GPU as a device: utilization from the driver's sample buffer, activity by GPM where the GPU has it.

What the driver calls "not supported" is None here. Nothing of the card's state is ever changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import pynvml

from cotenant.device_sharing import is_mps_server
from cotenant_profiler import system_clock
from cotenant_profiler.errors import ProfilerError
from cotenant_profiler.measured_device import DeviceWindow, EndOfWatch, WorkerPlace
from cotenant_profiler.mps import MpsDaemon

Value = TypeVar("Value")

# What lowers the clocks because something is wrong, and not because a job draws much power.
_SLOWED = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)
_GPM_SM = pynvml.NVML_GPM_METRIC_SM_UTIL
_GPM_TENSOR = pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
_GPM_DRAM = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL


class NvidiaDevice:
    """One GPU of this machine, by index or UUID."""

    def __init__(self, gpu: str) -> None:
        with _driver_errors("start NVML; is a driver installed?"):
            pynvml.nvmlInit()
        with _driver_errors(f"find GPU {gpu}"):
            by_uuid = gpu.startswith(("GPU-", "MIG-"))
            self._handle = (
                pynvml.nvmlDeviceGetHandleByUUID(gpu) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
            )
            self._uuid = _text(pynvml.nvmlDeviceGetUUID(self._handle))
            self.name = _text(pynvml.nvmlDeviceGetName(self._handle))
        self._daemon: MpsDaemon | None = None
        self.has_gpm = bool(_ask(lambda: pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice))

    @property
    def driver(self) -> str:
        """See `MeasuredDevice.driver`."""
        return _text(_ask(pynvml.nvmlSystemGetDriverVersion) or "unknown")

    @property
    def place(self) -> WorkerPlace:
        """See `MeasuredDevice.place`; by UUID, because indices depend on the enumerating library."""
        shared = {} if self._daemon is None else self._daemon.environment
        return WorkerPlace(arguments=("--cuda",), environment={"CUDA_VISIBLE_DEVICES": self._uuid, **shared})

    def share_by(self, daemon: MpsDaemon) -> None:
        """Let all workers from now on be clients of an open multi-process service."""
        self._daemon = daemon

    def watch(self, pids: Sequence[int]) -> EndOfWatch:
        """See `MeasuredDevice.watch`."""
        begin_ns = system_clock.now_ns()
        newest_us = max((stamp for stamp, _ in self._samples(0)), default=0)
        energy_mj = _ask(lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)))
        first = self._gpm_sample()

        def end() -> DeviceWindow:
            activity = self._activity(first)
            return DeviceWindow(
                foreign_ratio=self._foreign_ratio(pids),
                utilization_ratio=_mean([percent / 100 for _, percent in self._samples(newest_us)]),
                sm_activity_ratio=activity.get(_GPM_SM),
                tensor_activity_ratio=activity.get(_GPM_TENSOR),
                dram_activity_ratio=activity.get(_GPM_DRAM),
                power_watts=self._power_watts(energy_mj, begin_ns),
                clock_mhz=_ask(lambda: float(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM))),
                flags=("clocks_slowed",) if self._is_slowed() else (),
            )

        return end

    def memory_bytes(self, pid: int) -> int | None:
        """See `MeasuredDevice.memory_bytes`; a container may hide the ids, then a lone process must be ours."""
        processes = self._processes()
        own = [item for item in processes if item.pid == pid] or (processes if len(processes) == 1 else [])
        return int(own[0].usedGpuMemory) if own and own[0].usedGpuMemory is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _samples(self, since_us: int) -> list[tuple[int, int]]:
        """Time stamp and utilization in percent of what the driver sampled after an instant."""
        answer = _ask(
            lambda: pynvml.nvmlDeviceGetSamples(self._handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)[1]
        )
        samples = [(int(item.timeStamp), int(item.sampleValue.uiVal)) for item in answer or []]
        return [item for item in samples if item[0] > since_us]

    def _processes(self) -> list[Any]:
        """Who computes here; servers of MPS do so for clients, which the driver lists as well."""
        listed = _ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)) or []
        return [item for item in listed if not is_mps_server(item.pid)]

    def _foreign_ratio(self, pids: Sequence[int]) -> float:
        """1 when a foreign process has a context on the GPU: what it did there is not known well enough to subtract."""
        servers = frozenset() if self._daemon is None else self._daemon.server_pids()
        present = {int(item.pid) for item in self._processes()} - servers
        hidden = present and not present & set(pids)
        foreign = len(present) > len(pids) if hidden else bool(present - set(pids))
        return 1.0 if foreign else 0.0

    def _gpm_sample(self) -> Any | None:  # noqa: ANN401 (an opaque pointer of the library)
        if not self.has_gpm:
            return None
        sample = _ask(pynvml.nvmlGpmSampleAlloc)
        if sample is not None:
            _ask(lambda: pynvml.nvmlGpmSampleGet(self._handle, sample))
        return sample

    def _activity(self, first: Any | None) -> dict[int, float]:  # noqa: ANN401
        """Exact means since the first sample, 0 to 1, by metric."""
        second = self._gpm_sample() if first is not None else None
        if second is None:
            return {}
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        query.sample1, query.sample2 = first, second
        wanted = (_GPM_SM, _GPM_TENSOR, _GPM_DRAM)
        query.numMetrics = len(wanted)
        for index, metric in enumerate(wanted):
            query.metrics[index].metricId = metric
        is_reported = _ask(lambda: pynvml.nvmlGpmMetricsGet(query)) is not None
        values = {
            metric: min(1.0, float(query.metrics[index].value) / 100)
            for index, metric in enumerate(wanted)
            if is_reported and query.metrics[index].nvmlReturn == pynvml.NVML_SUCCESS
        }
        for sample in (first, second):
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        return values

    def _power_watts(self, energy_mj: int | None, begin_ns: int) -> float | None:
        """Mean power by the driver's energy counter, else its momentary power."""
        now_mj = _ask(lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)))
        elapsed_ms = (system_clock.now_ns() - begin_ns) / 1e6
        if now_mj is not None and energy_mj is not None and elapsed_ms > 0:
            return (now_mj - energy_mj) / elapsed_ms
        milliwatts = _ask(lambda: int(pynvml.nvmlDeviceGetPowerUsage(self._handle)))
        return None if milliwatts is None else milliwatts / 1000

    def _is_slowed(self) -> bool:
        reasons = _ask(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)))
        return bool((reasons or 0) & _SLOWED)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _ask(question: Callable[[], Value]) -> Value | None:
    """The answer, or None when the driver has none."""
    try:
        return question()
    except (pynvml.NVMLError, AttributeError):
        return None


@contextlib.contextmanager
def _driver_errors(purpose: str) -> Iterator[None]:
    try:
        yield
    except (pynvml.NVMLError, ValueError) as error:
        raise ProfilerError(f"cannot {purpose} ({error})") from error
