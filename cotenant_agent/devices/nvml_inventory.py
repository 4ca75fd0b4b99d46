"""NVIDIA GPUs through the driver's own library (nvidia-ml-py, ctypes).

What the driver calls "not available" or "not supported" is None here. A device whose handle fails stays in the list as
unhealthy with the driver's words. Utilization comes from the driver's ring buffer of samples (each reading asks for
what is newer than the last), memory per process from the list of compute processes; pids are those of the host.

A GPU in MIG mode is offered as the slices that it has, each a device with its own memory; slices are found and never
made. Drivers say of a slice which processes hold how much of it, and nothing of its utilization and power.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pynvml

from cotenant.device_facts import DeviceFacts
from cotenant.device_sharing import is_mps_server
from cotenant_agent.errors import DeviceError, DriverMissingError
from cotenant_agent.records import (
    AttemptKey,
    DeviceBinding,
    GpuDescription,
    GpuReading,
    InventoryReading,
    JobProcesses,
    JobUsage,
)

Value = TypeVar("Value")
_SLICE_PREFIX = "MIG-"
_MODE_CHANGED = (
    "it is in MIG mode and its slices are not offered: make slices (nvidia-smi mig -cgi PROFILES -C) or leave the mode "
    "(nvidia-smi -mig 0), then start the agent again"
)
_GONE = (
    "the driver has it no longer: its slices were changed, or the GPU was taken out or swapped; start the agent again "
    "to offer what is there now"
)
_DRIVER_CHANGED = "the driver was updated while its modules stayed loaded: restart the machine, or load them anew"


@dataclass(slots=True)
class _Device:
    """One GPU: what was learnt of it at the start, and the time stamps (us) up to which its samples were read."""

    gpu_id: str
    name: str
    memory_bytes: int
    index: int
    fault: str = ""
    facts: DeviceFacts | None = None
    samples_until_us: int = 0
    process_samples_until_us: int = 0
    newest_processes: dict[int, float] | None = None


class NvmlInventory:
    """The NVIDIA GPUs of this machine.

    Args:
        visible: Those alone, in the form of CUDA_VISIBLE_DEVICES: an engine that runs the agent gives it no others.
            None = all.

    Raises:
        DriverMissingError: There is no driver.
        DeviceError: It does not work or count its GPUs, or has one of the visible ones not.
    """

    def __init__(self, *, visible: str | None = None) -> None:
        with _driver_errors("start NVML", DriverMissingError):
            pynvml.nvmlInit()
        with _driver_errors("count the GPUs", DeviceError):
            count = pynvml.nvmlDeviceGetCount()
        devices = [device for index in range(count) for device in _identify(index)]
        self._devices = devices if visible is None else _visible(devices, visible)
        self._driver = str(_ask(pynvml.nvmlSystemGetDriverVersion) or "unknown")

    @property
    def enforcements(self) -> tuple[str, ...]:
        """See `GpuInventory.enforcements`; visibility is a convention of CUDA and therefore not named."""
        return ("watchdog",)

    def describe(self) -> tuple[GpuDescription, ...]:
        """See `GpuInventory.describe`."""
        return tuple(
            GpuDescription(
                gpu_id=device.gpu_id,
                device=device.name,
                memory_bytes=device.memory_bytes,
                index=device.index,
                healthy=not device.fault,
                fault=device.fault,
                driver=self._driver,
                facts=device.facts,
            )
            for device in self._devices
        )

    def bind(self, gpu_ids: Sequence[str]) -> DeviceBinding:
        """See `GpuInventory.bind`; by UUID, because indices depend on the enumerating library."""
        unknown = set(gpu_ids) - {device.gpu_id for device in self._devices}
        if unknown:
            raise DeviceError(f"no such GPU on this node: {', '.join(sorted(unknown))}")
        if len(gpu_ids) > 1 and any(gpu_id.startswith(_SLICE_PREFIX) for gpu_id in gpu_ids):
            raise DeviceError("CUDA gives a process one slice of a GPU at most: a job on several needs whole GPUs")
        return DeviceBinding(environment={"CUDA_VISIBLE_DEVICES": ",".join(gpu_ids)})

    def observe(self, jobs: Mapping[AttemptKey, JobProcesses]) -> InventoryReading:
        """See `GpuInventory.observe`."""
        gpus = []
        memory: dict[str, dict[int, int | None] | None] = {}
        for device in self._devices:
            handle = self._handle(device)
            _read_process_utilization(device, handle)
            own = {pid for job in jobs.values() if device.gpu_id in job.gpu_ids for pid in job.pids}
            listed = None if handle is None else _memory_by_process(handle)
            gpus.append(replace(_read_device(device, handle), foreign_ratio=_foreign_ratio(device, own, listed)))
            memory[device.gpu_id] = listed
        usages = {key: self._usage(job, memory) for key, job in jobs.items()}
        return InventoryReading(gpus=tuple(gpus), jobs=usages)

    def users(self) -> Mapping[str, frozenset[int]]:
        """The processes that compute on each GPU, also those of others; none where the driver does not list them.

        A server of MPS is no job of anybody's, and left out.
        """
        handles = {device.gpu_id: self._handle(device) for device in self._devices}
        listed = {gpu_id: _memory_by_process(handle) if handle else None for gpu_id, handle in handles.items()}
        return {
            gpu_id: frozenset(pid for pid in pids or () if not is_mps_server(pid)) for gpu_id, pids in listed.items()
        }

    def peak_bytes(self, max_resident_bytes: int, interpreter: str = "") -> int:
        """See `GpuInventory.peak_bytes`; host memory is no measure of a GPU's."""
        return 0

    def close(self) -> None:
        """See `GpuInventory.close`."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _handle(self, device: _Device) -> Any | None:  # noqa: ANN401 (an opaque pointer of the library)
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.gpu_id)
            pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            device.fault = _words_of(error)
            return None
        device.fault = _fault_of(device.gpu_id, handle)
        return None if device.fault else handle

    def _usage(self, job: JobProcesses, memory: Mapping[str, Mapping[int, int | None] | None]) -> JobUsage:
        """Memory of the device of which it takes most, mean share of all; one unknown term makes either unknown."""
        used: list[int | None] = []
        ratios: list[float | None] = []
        for device in self._devices:
            if device.gpu_id in job.gpu_ids:
                used.append(_sum_of(memory[device.gpu_id], job.pids))
                ratios.append(_utilization_of(device, job.pids))
        known = [value for value in ratios if value is not None]
        return JobUsage(
            memory_bytes=None if None in used else max((value for value in used if value is not None), default=0),
            utilization_ratio=sum(known) / len(known) if known and len(known) == len(ratios) else None,
        )


def _visible(devices: Sequence[_Device], visible: str) -> list[_Device]:
    """Return the named ones: by index in the driver's order, or by a beginning of the UUID that only one has."""
    found: dict[str, _Device] = {}
    for name in filter(None, (part.strip() for part in visible.split(","))):
        named = [
            one for one in devices if (one.index == int(name) if name.isdecimal() else one.gpu_id.startswith(name))
        ]
        if len(named) != 1:
            known = ", ".join(one.gpu_id for one in devices)
            raise DeviceError(
                f"CUDA_VISIBLE_DEVICES names {name[:80]!r}, which is no one GPU here; the driver has {known}"
            )
        found[named[0].gpu_id] = named[0]
    if not found:
        raise DeviceError(
            "CUDA_VISIBLE_DEVICES is empty: no GPU was given to this agent; unset it to offer all of them"
        )
    return [*found.values()]


def _identify(index: int) -> list[_Device]:
    """One GPU by its place in the driver's order; its slices where it is in MIG mode and has any."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return [_describe(each, index) for each in _slices_of(handle) or [handle]]
    except pynvml.NVMLError as error:
        fault = f"the driver does not describe it ({_words_of(error)})"
        return [_Device(gpu_id=f"unidentified-{index}", name="unknown", memory_bytes=0, index=index, fault=fault)]


def _describe(handle: Any, index: int) -> _Device:  # noqa: ANN401 (an opaque pointer of the library)
    gpu_id = pynvml.nvmlDeviceGetUUID(handle)
    return _Device(
        gpu_id=gpu_id,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        index=index,
        fault=_fault_of(gpu_id, handle),
        facts=_read_facts(handle),
    )


def _words_of(error: pynvml.NVMLError) -> str:
    """What the driver says, with what to do where that is known."""
    name = type(error).__name__.removeprefix("NVMLError_")
    remedies = {"NotFound": _GONE, "LibRmVersionMismatch": _DRIVER_CHANGED}
    return f"{name}: {error}" + (f"; {remedies[name]}" if name in remedies else "")


def _fault_of(gpu_id: str, handle: Any) -> str:  # noqa: ANN401
    """Why a device that answers takes no job all the same; empty where it does."""
    return _MODE_CHANGED if not gpu_id.startswith(_SLICE_PREFIX) and _has_slices(handle) else ""


def _slices_of(handle: Any) -> list[Any]:  # noqa: ANN401
    """The slices of a GPU; none where it has none, is not in MIG mode, or has no such mode."""
    if not _has_slices(handle):
        return []
    most = _ask(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
    found = (_ask(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)) for place in range(most))
    return [each for each in found if each is not None]


def _has_slices(handle: Any) -> bool:  # noqa: ANN401
    """Whether a GPU is in MIG mode: CUDA then gives a process one of its slices, and never all of it."""
    modes = _ask(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _read_facts(handle: Any) -> DeviceFacts | None:  # noqa: ANN401 (an opaque pointer of the library)
    """What the driver says of a device; None where it leaves out anything, as older ones do and those of slices."""
    capability = _ask(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    found = (
        _ask(lambda: int(pynvml.nvmlDeviceGetNumGpuCores(handle))),
        _ask(lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))),
        _ask(lambda: int(pynvml.nvmlDeviceGetMemoryBusWidth(handle))),
        _ask(lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM))),
    )
    cores, clock_mhz, bus_bits, memory_clock_mhz = (number or 0 for number in found)
    facts = DeviceFacts(
        cores=cores,
        clock_mhz=clock_mhz,
        memory_bus_bits=bus_bits,
        memory_clock_mhz=memory_clock_mhz,
        compute_capability=10 * capability[0] + capability[1] if capability else 0,
    )
    return facts if facts.is_possible else None


def _read_device(device: _Device, handle: Any | None) -> GpuReading:  # noqa: ANN401
    if handle is None:
        return GpuReading(gpu_id=device.gpu_id, healthy=False, fault=device.fault)
    milliwatts = _ask(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle)))
    return GpuReading(
        gpu_id=device.gpu_id,
        memory_used_bytes=_ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)),
        utilization_ratio=_device_utilization(device, handle),
        power_watts=None if milliwatts is None else milliwatts / 1000,
    )


def _device_utilization(device: _Device, handle: Any) -> float | None:  # noqa: ANN401
    """Mean of the driver's samples since the last reading; the driver's own short average where it has no samples."""
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, device.samples_until_us)
    except pynvml.NVMLError:
        samples = []
    newer = [sample for sample in samples if sample.timeStamp > device.samples_until_us]
    if newer:
        device.samples_until_us = max(sample.timeStamp for sample in newer)
        return float(sum(sample.sampleValue.uiVal for sample in newer)) / len(newer) / 100
    percent = _ask(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
    return None if percent is None else percent / 100


def _memory_by_process(handle: Any) -> dict[int, int | None] | None:  # noqa: ANN401
    """Bytes per pid, None where the driver reports none; None altogether when it does not even list processes."""
    processes = _ask(lambda: list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    if processes is None:
        return None
    return {int(item.pid): None if item.usedGpuMemory is None else int(item.usedGpuMemory) for item in processes}


def _sum_of(by_process: Mapping[int, int | None] | None, pids: Sequence[int]) -> int | None:
    terms = [None] if by_process is None else [by_process[pid] for pid in pids if pid in by_process]
    return None if None in terms else sum(term for term in terms if term is not None)


def _read_process_utilization(device: _Device, handle: Any | None) -> None:  # noqa: ANN401
    """Keep the mean share of each process since the last reading; no new sample means that no process worked."""
    device.newest_processes = None
    if handle is None:
        return
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, device.process_samples_until_us)
    except pynvml.NVMLError_NotFound:
        samples = []
    except pynvml.NVMLError:
        return
    by_process: dict[int, list[int]] = {}
    for sample in samples:
        if sample.timeStamp > device.process_samples_until_us:
            by_process.setdefault(int(sample.pid), []).append(int(sample.smUtil))
    device.process_samples_until_us = max(
        (int(sample.timeStamp) for sample in samples), default=device.process_samples_until_us
    )
    device.newest_processes = {pid: sum(values) / len(values) / 100 for pid, values in by_process.items()}


def _utilization_of(device: _Device, pids: Sequence[int]) -> float | None:
    known = device.newest_processes
    return None if known is None else min(1.0, sum(known.get(pid, 0.0) for pid in pids))


def _foreign_ratio(device: _Device, own: Collection[int], listed: Collection[int] | None) -> float | None:
    """Share of foreign processes; the work of an MPS server counts as ours where it has no foreign clients."""
    known = device.newest_processes
    if known is None:
        return None
    foreign = [pid for pid in known if pid not in own]
    if listed is not None and all(pid in own or is_mps_server(pid) for pid in {*listed, *foreign}):
        return 0.0
    return min(1.0, sum(known[pid] for pid in foreign))


def _ask(question: Callable[[], Value]) -> Value | None:
    """The answer, or None when the driver has none."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def _driver_errors(purpose: str, error_class: type[DeviceError]) -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError_LibRmVersionMismatch as error:
        # It is here: who looks for a missing one is told to install it.
        raise DeviceError(f"cannot {purpose}: {error}; {_DRIVER_CHANGED}") from error
    except pynvml.NVMLError as error:
        raise error_class(f"cannot {purpose}: {error}") from error
