"""What a driver says of a GPU that no table knows: enough to tell its peaks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

_LARGEST: Final = {
    "cores": 10_000_000,
    "clock_mhz": 100_000,
    "memory_bus_bits": 1_000_000,
    "memory_clock_mhz": 1_000_000,
    "compute_capability": 10_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """All of it, or none: a driver that leaves one out is not asked for peaks.

    Attributes:
        cores: Units for 32-bit arithmetic, of all multiprocessors together.
        clock_mhz: The highest clock of the multiprocessors, in MHz.
        memory_bus_bits: Width of the interface to the device memory.
        memory_clock_mhz: Highest clock of that memory, in MHz; it transfers twice in each period.
        compute_capability: Ten times the major number and the minor one: 90 = 9.0.
    """

    cores: int
    clock_mhz: int
    memory_bus_bits: int
    memory_clock_mhz: int
    compute_capability: int

    @property
    def is_possible(self) -> bool:
        """Whether every number is above 0 and one that a device can have."""
        return all(0 < getattr(self, one.name) <= _LARGEST[one.name] for one in fields(self))

    @property
    def fp32_flops(self) -> float:
        """A multiplication and an addition per core and clock, per second."""
        return 2e6 * self.cores * self.clock_mhz

    @property
    def memory_bytes_per_s(self) -> float:
        """Bandwidth of the device memory."""
        return 2e6 * self.memory_clock_mhz * self.memory_bus_bits / 8
