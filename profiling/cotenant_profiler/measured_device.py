"""What the bench needs of a device, so that one method measures a CPU core and a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """How a measuring process gets onto the device.

    Attributes:
        arguments: Added to its command line.
        environment: Added to its environment.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """What the device reports about one measurement window; None = not reported.

    Attributes:
        foreign_ratio: Share of the device that others took, 0 to 1.
        elsewhere_ratio: How busy the other cores of the machine were, 0 to 1.
        utilization_ratio: Share of the time in which any kernel ran, 0 to 1.
        sm_activity_ratio: Share of SM time with a warp resident, 0 to 1.
        dram_activity_ratio: Share of peak memory traffic, 0 to 1.
        tensor_activity_ratio: Share of the time in which tensor cores worked, 0 to 1.
        power_watts: Mean power.
        clock_mhz: Clock of the SMs at the end.
        flags: Reasons for doubt, e.g. clocks_slowed.
    """

    foreign_ratio: float
    elsewhere_ratio: float = 0.0
    utilization_ratio: float | None = None
    sm_activity_ratio: float | None = None
    dram_activity_ratio: float | None = None
    tensor_activity_ratio: float | None = None
    power_watts: float | None = None
    clock_mhz: float | None = None
    flags: tuple[str, ...] = ()

    def figures(self) -> dict[str, float]:
        """Return what was reported about load, by name."""
        reported = {
            "utilization_ratio": self.utilization_ratio,
            "sm_activity_ratio": self.sm_activity_ratio,
            "dram_activity_ratio": self.dram_activity_ratio,
            "tensor_activity_ratio": self.tensor_activity_ratio,
            "power_watts": self.power_watts,
            "clock_mhz": self.clock_mhz,
        }
        return {name: value for name, value in reported.items() if value is not None}


EndOfWatch = Callable[[], DeviceWindow]
"""Ends a measurement window and returns what was seen in it."""


class MeasuredDevice(Protocol):
    """A device on which jobs are measured."""

    @property
    def driver(self) -> str:
        """Version of the driver; none where there is none."""
        ...

    @property
    def place(self) -> WorkerPlace:
        """How workers get onto it."""
        ...

    def watch(self, pids: Sequence[int]) -> EndOfWatch:
        """Begin a measurement window in which the processes `pids` are ours."""
        ...

    def memory_bytes(self, pid: int) -> int | None:
        """Return the memory of a process as the driver reports it; None where it does not."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
