"""A node: its machine, and the agent's real program on it, put together as the product does it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant_agent.errors import DeviceError, OperatorError
from cotenant_agent.records import (
    AttemptKey,
    DeviceBinding,
    GpuDescription,
    GpuReading,
    InventoryReading,
    JobProcesses,
    JobUsage,
)
from cotenant_agent.settings import AgentSettings
from cotenant_agent.storage.state_directory import StateDirectory
from cotenant_agent.wiring import build_agent
from tests.simulation.swarm.machine import Machine, MachineProcess
from tests.simulation.swarm.virtual_time import KilledError, current

if TYPE_CHECKING:
    from tests.simulation.swarm.world import World

GPU_BYTES = 8 << 30
DEVICE = "simulated"
_RESTART_S = 1.0


class SimulatedInventory:
    """Devices that are always well."""

    enforcements = ("watchdog",)

    def __init__(self, machine: str, gpus: int) -> None:
        self._gpu_ids = tuple(f"{machine}.{index}" for index in range(gpus))
        self._gpus = tuple(
            GpuDescription(gpu_id=gpu_id, device=DEVICE, memory_bytes=GPU_BYTES, index=index)
            for index, gpu_id in enumerate(self._gpu_ids)
        )
        self._readings = tuple(GpuReading(gpu_id=gpu_id) for gpu_id in self._gpu_ids)

    def describe(self) -> tuple[GpuDescription, ...]:
        """See `GpuInventory.describe`."""
        return self._gpus

    def bind(self, gpu_ids: Sequence[str]) -> DeviceBinding:
        """See `GpuInventory.bind`."""
        if not set(gpu_ids) <= set(self._gpu_ids):
            raise DeviceError(f"no such device: {gpu_ids}")
        return DeviceBinding(environment={})

    def observe(self, jobs: Mapping[AttemptKey, JobProcesses]) -> InventoryReading:
        """See `GpuInventory.observe`."""
        return InventoryReading(gpus=self._readings, jobs=dict.fromkeys(jobs, JobUsage()))

    def peak_bytes(self, max_resident_bytes: int, interpreter: str = "") -> int:
        """See `GpuInventory.peak_bytes`."""
        return 0

    def close(self) -> None:
        """There is no driver."""


class LentStateDirectory(StateDirectory):
    """Its lock ends with the process that holds it, as locks of files do."""

    def __init__(self, root: Path, checkpoint_root: Path | None = None) -> None:
        super().__init__(root, checkpoint_root)
        self._is_open = True
        current().at_death.append(self.close)

    def close(self) -> None:
        """Unlock, once."""
        if self._is_open:
            self._is_open = False
            super().close()


class AgentHost:
    """A node of the cluster; `node_id` is its name, whichever machine it runs on."""

    def __init__(self, world: World, machine: Machine, node_id: str, gpus: int) -> None:
        self.world = world
        self.machine = machine
        self.node_id = node_id
        self.gpus = gpus
        self.state_dir = machine.root / "state"
        self.process: MachineProcess | None = None
        self._is_retired = False

    def start(self) -> None:
        """Start the agent, where its machine is on and it does not run."""
        is_running = self.process is not None and not self.process.is_dead
        if self.machine.is_on and not is_running and not self._is_retired:
            self.process = MachineProcess(f"agent {self.node_id}", self.machine)
            self.world.agent_folders[self.process] = self.state_dir
            self.process.spawn(self._run(self.process))

    def kill(self) -> None:
        """Kill -9; jobs run on."""
        if self.process is not None:
            self.process.kill()

    def retire(self) -> None:
        """Kill it for good."""
        self._is_retired = True
        self.kill()

    async def _run(self, process: MachineProcess) -> None:
        settings = AgentSettings(
            scheduler="scheduler.simulated:7071",
            insecure=True,
            node_id=self.node_id,
            state_dir=str(self.state_dir),
            checkpoint_dir=str(self.world.checkpoints_of(self.machine)),
            shared_checkpoints=self.world.has_gangs_across and self.world.has_shared_storage,
            transfer_limit_bytes=0 if self.world.has_shared_storage else 1 << 20,
            rendezvous_host=f"10.0.0.{1 + int(self.node_id[1:])}",
            nvml=True,
            allow_any_command=True,
            cgroups=False,
            calibrate=False,
            collect_profiles=False,
            sample_ms=1_000_000,
            checkpoint_interval_ms=0,
            seed=1 + self.world.generator.randrange(1 << 30),
        )
        try:
            with build_agent(settings) as agent:
                await agent.run(asyncio.Event())
        except (OperatorError, OSError) as error:
            self.world.trace("agent_failed", self.node_id, type(error).__name__)
            process.kill()
            # As its supervisor on the machine would.
            self.world.later(_RESTART_S, self.start)
        except KilledError:
            raise
