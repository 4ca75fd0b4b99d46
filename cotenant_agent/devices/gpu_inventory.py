"""The port behind which devices sit; every implementation passes tests/contracts/test_every_inventory.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cotenant_agent.errors import DeviceError
from cotenant_agent.records import (
    AttemptKey,
    DeviceBinding,
    GpuDescription,
    InventoryReading,
    JobProcesses,
)


class GpuInventory(Protocol):
    """The devices of one node.

    A device keeps its gpu_id for ever; one that fails stays in the list, unhealthy and with the reason. What the driver
    cannot say is None, never 0. Calls may take milliseconds and are made one at a time.
    """

    @property
    def enforcements(self) -> tuple[str, ...]:
        """What is enforced on these devices, in the words of the Hello."""

    def describe(self) -> tuple[GpuDescription, ...]:
        """All devices with their present health."""

    def bind(self, gpu_ids: Sequence[str]) -> DeviceBinding:
        """How a process gets these devices and no other. Raises DeviceError for an unknown one."""

    def observe(self, jobs: Mapping[AttemptKey, JobProcesses]) -> InventoryReading:
        """Read every device once, and what each attempt used since the previous call."""

    def peak_bytes(self, max_resident_bytes: int, interpreter: str = "") -> int:
        """Peak device memory that the kernel's record of an ended process implies; 0 = it implies nothing.

        Args:
            max_resident_bytes: The most that it held.
            interpreter: As in `JobProcesses`.
        """

    def close(self) -> None:
        """Let go of the driver."""


class SeveralInventories:
    """Several kinds of devices in one node as one inventory."""

    def __init__(self, inventories: Sequence[GpuInventory]) -> None:
        self._inventories = tuple(inventories)

    @property
    def enforcements(self) -> tuple[str, ...]:
        """See `GpuInventory.enforcements`."""
        return tuple(dict.fromkeys(name for inventory in self._inventories for name in inventory.enforcements))

    def describe(self) -> tuple[GpuDescription, ...]:
        """See `GpuInventory.describe`."""
        return tuple(gpu for inventory in self._inventories for gpu in inventory.describe())

    def bind(self, gpu_ids: Sequence[str]) -> DeviceBinding:
        """See `GpuInventory.bind`."""
        environment: dict[str, str] = {}
        cores: tuple[int, ...] | None = None
        unknown = set(gpu_ids) - {gpu.gpu_id for gpu in self.describe()}
        if unknown:
            raise DeviceError(f"no such device on this node: {', '.join(sorted(unknown))}")
        for inventory in self._inventories:
            own = {gpu.gpu_id for gpu in inventory.describe()}
            chosen = [gpu_id for gpu_id in gpu_ids if gpu_id in own]
            binding = inventory.bind(chosen)
            environment |= binding.environment
            cores = binding.cpu_cores if chosen and binding.cpu_cores else cores
        return DeviceBinding(environment=environment, cpu_cores=cores)

    def observe(self, jobs: Mapping[AttemptKey, JobProcesses]) -> InventoryReading:
        """See `GpuInventory.observe`."""
        readings = []
        for inventory in self._inventories:
            own = {gpu.gpu_id for gpu in inventory.describe()}
            readings.append(inventory.observe({key: job for key, job in jobs.items() if own & set(job.gpu_ids)}))
        return InventoryReading(
            gpus=tuple(gpu for reading in readings for gpu in reading.gpus),
            jobs={key: usage for reading in readings for key, usage in reading.jobs.items()},
        )

    def peak_bytes(self, max_resident_bytes: int, interpreter: str = "") -> int:
        """See `GpuInventory.peak_bytes`; certain only when there is one kind of device."""
        alone = self._inventories[0] if len(self._inventories) == 1 else None
        return alone.peak_bytes(max_resident_bytes, interpreter) if alone is not None else 0

    def close(self) -> None:
        """See `GpuInventory.close`."""
        for inventory in self._inventories:
            inventory.close()
