"""Copies that are alive at once with their originals: of a node's agent, and of the scheduler."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.swarm.agent_host import AgentHost
from tests.simulation.swarm.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.swarm.scheduler_host import SchedulerHost
    from tests.simulation.swarm.world import World

_BEGINS_WITHIN_S = 10.0
_BREAKS_WITHIN_S = 20.0
_LIVES_S = (5.0, 60.0)


class SecondInstances:
    """Makes copies, and stops them as an operator does."""

    def __init__(self, world: World, break_stream: Callable[[AgentHost], None]) -> None:
        self._world = world
        self._generator = world.generator
        self._break_stream = break_stream
        self._clones: list[AgentHost] = []
        self._schedulers = 0

    def clone(self, node: AgentHost) -> None:
        """Start an agent on a copy of a node's state folder; the first one may be gone meanwhile."""
        if not node.state_dir.is_dir():
            return
        clone = AgentHost(self._world, self._machine_of_copy(node), node.node_id, node.gpus)
        clone.state_dir = clone.machine.root / f"copy-{len(self._clones)}"
        shutil.copytree(node.state_dir, clone.state_dir)
        self._clones.append(clone)
        if self._generator.random() < 0.7:
            node.kill()
            self._soon(40.0, node.start)
        self._soon(_BEGINS_WITHIN_S, clone.start)
        self._soon(self._generator.choice(_LIVES_S), clone.retire)

    def _machine_of_copy(self, node: AgentHost) -> Machine:
        """The same machine, another one, or one that runs an image of the first."""
        place = self._generator.choice(("folder", "machine", "image"))
        if place == "folder":
            return node.machine
        machine_id = node.machine.machine_id if place == "image" else ""
        return Machine(self._world, f"{node.machine.name}c{len(self._clones)}", machine_id=machine_id)

    def copy_scheduler(self, host: SchedulerHost) -> None:
        """Start a second scheduler on a copy of the state; agents that dial anew reach either."""
        if len(self._world.schedulers) > 1 or host.loop is None:
            return
        self._schedulers += 1
        copy = host.copied(f"{host.name}{self._schedulers}")
        self._world.schedulers.append(copy)
        self._soon(_BEGINS_WITHIN_S, copy.start)
        for node in self._world.nodes:
            if self._generator.random() < 0.5:
                self._world.later(self._generator.uniform(0.0, _BREAKS_WITHIN_S), lambda node=node: self._reset(node))  # type: ignore[misc]
        self._soon(self._generator.choice(_LIVES_S), self.stop_schedulers)

    def _reset(self, node: AgentHost) -> None:
        if not self._world.are_faults_over:
            self._break_stream(node)

    def stop_schedulers(self) -> None:
        """Stop every scheduler but the first."""
        while len(self._world.schedulers) > 1:
            self._world.schedulers.pop().retire(self._generator)

    def stop_all(self) -> None:
        """Stop every copy for good; jobs of a stopped agent run on until their leases end."""
        self.stop_schedulers()
        for clone in self._clones:
            clone.retire()

    def mend_standstill(self, host: SchedulerHost) -> None:
        """Do what the scheduler's own message asks for where its state is behind: back up, restore, start."""
        if not host.is_behind or len(self._world.schedulers) > 1:
            return
        self._world.trace("mended", host.name)
        host.kill(self._generator, is_torn=False)
        host.back_up()
        host.restore(host.backups[-1])
        self._soon(5.0, host.start)

    def _soon(self, longest_s: float, action: Callable[[], object]) -> None:
        self._world.later(self._generator.uniform(0.2, longest_s), action)
