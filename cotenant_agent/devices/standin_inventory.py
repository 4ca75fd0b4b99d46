"""Stand-in devices: CPU cores that play GPUs, so that every machine runs the whole system and jobs really compete.

One device is one core; all processes of a job are pinned to the cores of its devices, and two jobs on one device take
turns on it as two processes take turns on a GPU. Device memory of a job = resident set of its process tree minus the
resident set of an interpreter that has only imported the framework (measured once, kept with the versions): that part
plays the CUDA context. Libraries page in when a process ends, so that of two looks the lower one counts, and the
kernel's record of the ended process knows what came between. Of a gang it is that of the rank which takes most, since
each has a device of its own, also where torchrun has started them. Pages that forked workers share with their parent
count once, and so does the framework where several processes import it: launchers and compilers have no context.
Utilization of a job = CPU time of its tree / wall time of its cores. There is nothing like SM activity here, so it is
absent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.idle_cores import read_idle_times_ns
from cotenant_agent.devices.import_baseline import ImportBaseline
from cotenant_agent.errors import DeviceError
from cotenant_agent.processes import Processes, pinned_processes
from cotenant_agent.records import (
    AttemptKey,
    DeviceBinding,
    GpuDescription,
    GpuReading,
    InventoryReading,
    JobProcesses,
    JobUsage,
)
from cotenant_agent.system_clock import steady_ns

DEVICE_NAME = "cpu-standin"
# More threads than cores spin against each other: one per core of the job.
_THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class _Look:
    """What a job had used and what it held at an instant of the steady clock."""

    cpu_s: float
    resident_bytes: int
    at_ns: int


class StandinInventory:
    """One stand-in device per core.

    Args:
        node_id: Names the devices.
        cores: That play them.
        memory_bytes: Of each.
        baseline: Of the agent's own interpreter.
        processes: Of this machine.
        baseline_of: Of another one, by its path; None = as the agent's own.
    """

    def __init__(
        self,
        *,
        node_id: str,
        cores: Sequence[int],
        memory_bytes: int,
        baseline: ImportBaseline,
        processes: Processes,
        baseline_of: Callable[[str], ImportBaseline | None] = lambda _: None,
    ) -> None:
        self._core_of = {f"standin-{node_id}-{index}": core for index, core in enumerate(cores)}
        self._memory_bytes = memory_bytes
        self._own_baseline, self._other_baseline = baseline, baseline_of
        self._processes = processes
        self._looks: dict[AttemptKey, _Look] = {}
        self._idle_marks: dict[int, tuple[int, int]] = {}

    @property
    def enforcements(self) -> tuple[str, ...]:
        """See `GpuInventory.enforcements`."""
        return ("pinned_cores", "watchdog")

    def describe(self) -> tuple[GpuDescription, ...]:
        """See `GpuInventory.describe`; a core that went offline is an unhealthy device."""
        return tuple(
            GpuDescription(
                gpu_id=gpu_id,
                device=DEVICE_NAME,
                memory_bytes=self._memory_bytes,
                index=index,
                healthy=_is_online(core),
                fault="" if _is_online(core) else f"core {core} is offline",
            )
            for index, (gpu_id, core) in enumerate(self._core_of.items())
        )

    def bind(self, gpu_ids: Sequence[str]) -> DeviceBinding:
        """See `GpuInventory.bind`."""
        unknown = set(gpu_ids) - set(self._core_of)
        if unknown:
            raise DeviceError(
                f"no such device on this node: {', '.join(sorted(unknown))}; there are {[*self._core_of]}"
            )
        if not gpu_ids:
            return DeviceBinding(environment={})
        cores = tuple(self._core_of[gpu_id] for gpu_id in gpu_ids)
        threads = dict.fromkeys(_THREAD_COUNTS, str(len(cores)))
        # A GPU of this machine is not what the job was given.
        return DeviceBinding(environment={**threads, "CUDA_VISIBLE_DEVICES": ""}, cpu_cores=cores)

    def observe(self, jobs: Mapping[AttemptKey, JobProcesses]) -> InventoryReading:
        """See `GpuInventory.observe`."""
        usages = {key: self._observe_job(key, job) for key, job in jobs.items()}
        self._looks = {key: look for key, look in self._looks.items() if key in jobs}
        gpus = []
        for gpu in self.describe():
            here = [usages[key] for key, job in jobs.items() if gpu.gpu_id in job.gpu_ids]
            busy_ratio = self._core_busy_ratio(self._core_of[gpu.gpu_id])
            gpus.append(
                GpuReading(
                    gpu_id=gpu.gpu_id,
                    healthy=gpu.healthy,
                    fault=gpu.fault,
                    memory_used_bytes=sum(usage.memory_bytes or 0 for usage in here),
                    utilization_ratio=busy_ratio,
                    foreign_ratio=_foreign_ratio(busy_ratio, here),
                )
            )
        return InventoryReading(gpus=tuple(gpus), jobs=usages)

    def users(self) -> Mapping[str, frozenset[int]]:
        """The processes that may run on a device's core and on no other, by device: also those of others."""
        return pinned_processes(self._core_of, own_pid=os.getpid())

    def peak_bytes(self, max_resident_bytes: int, interpreter: str = "") -> int:
        """See `GpuInventory.peak_bytes`; a process that ends may hold more than it ever did to work."""
        return _beyond(self._baseline_of(interpreter).ended_bytes, max_resident_bytes)

    def close(self) -> None:
        """See `GpuInventory.close`; there is no driver."""

    def _baseline_of(self, interpreter: str) -> ImportBaseline:
        return self._other_baseline(interpreter) or self._own_baseline

    def _observe_job(self, key: AttemptKey, job: JobProcesses) -> JobUsage:
        common_bytes = self._baseline_of(job.interpreter).resident_bytes
        usage = self._processes.usage(job.pids, common_bytes=common_bytes)
        of_ranks = [self._processes.usage(pids, common_bytes=common_bytes) for pids in self._rank_pids(job)]
        # Each rank of a gang has a device of its own, every other job all of its processes on all of its devices.
        now = _Look(usage.cpu_s, max(each.resident_bytes for each in of_ranks or [usage]), steady_ns())
        before = self._looks.get(key, now)
        self._looks[key] = now
        ratio = None
        if now.at_ns > before.at_ns:
            available_s = (now.at_ns - before.at_ns) / 1e9 * max(1, len(job.gpu_ids))
            ratio = min(1.0, max(0.0, now.cpu_s - before.cpu_s) / available_s)
        resident_bytes = min(before.resident_bytes, now.resident_bytes)
        return JobUsage(memory_bytes=_beyond(common_bytes, resident_bytes), utilization_ratio=ratio)

    def _rank_pids(self, job: JobProcesses) -> Sequence[Sequence[int]]:
        """Returns the processes of each rank that has a device to itself, whoever has started them."""
        if job.rank_pids or len(job.gpu_ids) < 2:
            return job.rank_pids
        launched = self._processes.local_ranks(job.pids)
        return launched if len(launched) == len(job.gpu_ids) else ()

    def _core_busy_ratio(self, core: int) -> float | None:
        idle_ns = read_idle_times_ns().get(core)
        if idle_ns is None:
            return None
        now, before = (idle_ns, steady_ns()), self._idle_marks.get(core)
        self._idle_marks[core] = now
        if before is None or now[1] <= before[1]:
            return None
        return min(1.0, max(0.0, 1.0 - (now[0] - before[0]) / (now[1] - before[1])))


def _beyond(baseline_bytes: int, resident_bytes: int) -> int:
    """What lies above the baseline; a living job below it holds a byte, because 0 means unknown."""
    return max(resident_bytes - baseline_bytes, 1 if resident_bytes > 0 else 0)


def _foreign_ratio(busy_ratio: float | None, usages: Sequence[JobUsage]) -> float | None:
    """What a core did beyond its jobs."""
    own = [usage.utilization_ratio for usage in usages if usage.utilization_ratio is not None]
    return None if busy_ratio is None or len(own) < len(usages) else max(0.0, busy_ratio - sum(own))


def _is_online(core: int) -> bool:
    return Path(f"/sys/devices/system/cpu/cpu{core}").exists() and core in read_idle_times_ns()
