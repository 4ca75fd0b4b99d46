"""Machines that die and come back, drawn from the run's seed: what runs there is lost since its newest checkpoint."""

from __future__ import annotations

from random import Random

from cotenant_simulator.run.agenda import Rank
from cotenant_simulator.run.attempts import Attempt
from cotenant_simulator.run.machines import Machines
from cotenant_simulator.run.world import World
from scheduler_service.core import events
from scheduler_service.core.records import Node


class Outages:
    """Lets machines fail.

    Args:
        world: The run.
        machines: What runs on them.
    """

    def __init__(self, world: World, machines: Machines) -> None:
        self._world, self._machines = world, machines
        self._luck = Random(f"{world.settings.seed}/failures")

    def join(self, node: Node) -> None:
        """A machine is there, and will fail some day."""
        world = self._world
        world.floor.dead_gpu_ids.difference_update(gpu.gpu_id for gpu in node.gpus)
        world.tell(events.NodeJoined(at_ms=world.now_ms, node=node))
        mean_ms = world.settings.failures.mean_up_ms
        if mean_ms:
            delay_ms = 1 + int(self._luck.expovariate(1.0 / mean_ms))
            world.agenda.add(world.now_ms + delay_ms, Rank.FAILURE, self._fail, node)

    def _fail(self, node: Node) -> None:
        """A machine dies; gangs with a part there end everywhere."""
        world = self._world
        gpu_ids = {gpu.gpu_id for gpu in node.gpus}
        lost: dict[str, Attempt] = {}
        for gpu in node.gpus:
            lost.update((attempt.job_id, attempt) for attempt in world.floor.on_gpu(gpu.gpu_id))
        world.floor.dead_gpu_ids |= gpu_ids
        for attempt in lost.values():
            self._machines.leave(attempt)
        world.agenda.add(world.now_ms + world.settings.failures.repair_ms, Rank.NODE, self.join, node)
        for attempt in lost.values():
            self._tell_checkpoint(attempt)
        world.tell(events.NodeLost(at_ms=world.now_ms, node_id=node.node_id))
        for attempt in lost.values():
            if not gpu_ids.issuperset(attempt.gpu_ids):
                self._machines.tell_stopped(attempt, exit_class="lost")
            world.note_requeue(attempt.job_id)

    def _tell_checkpoint(self, attempt: Attempt) -> None:
        """The newest checkpoint was reported while the machine lived."""
        step = attempt.steps_at(attempt.checkpoint_left_ms)
        if attempt.trained_ms and not attempt.is_stopping:
            self._world.tell(
                events.JobProgressed(
                    at_ms=self._world.now_ms,
                    job_id=attempt.job_id,
                    attempt=attempt.attempt,
                    fence=attempt.fence,
                    steps_done=step,
                    checkpoint_step=step,
                )
            )
