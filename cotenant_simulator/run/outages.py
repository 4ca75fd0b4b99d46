"""Machines that fail and come back, drawn from the run's seed: what runs there is lost since its newest checkpoint."""

from __future__ import annotations

from random import Random

from cotenant_simulator.run.attempts import Attempt
from cotenant_simulator.run.event_queue import EventPriority
from cotenant_simulator.run.machines import Machines
from cotenant_simulator.run.simulation_state import SimulationState
from scheduler_service.core import events
from scheduler_service.core.records import Node


class Outages:
    """Lets machines fail.

    Args:
        simulation: The run.
        machines: What runs on them.
    """

    def __init__(self, simulation: SimulationState, machines: Machines) -> None:
        self._simulation, self._machines = simulation, machines
        self._luck = Random(f"{simulation.settings.seed}/failures")

    def join(self, node: Node) -> None:
        """A machine is there, and will fail some day."""
        simulation = self._simulation
        simulation.occupancy.dead_gpu_ids.difference_update(gpu.gpu_id for gpu in node.gpus)
        simulation.tell(events.NodeJoined(at_ms=simulation.now_ms, node=node))
        mean_ms = simulation.settings.failures.mean_up_ms
        if mean_ms:
            delay_ms = 1 + int(self._luck.expovariate(1.0 / mean_ms))
            simulation.event_queue.add(simulation.now_ms + delay_ms, EventPriority.FAILURE, self._fail, node)

    def _fail(self, node: Node) -> None:
        """A machine fails; gangs with a part there end everywhere."""
        simulation = self._simulation
        gpu_ids = {gpu.gpu_id for gpu in node.gpus}
        lost: dict[str, Attempt] = {}
        for gpu in node.gpus:
            lost.update((attempt.job_id, attempt) for attempt in simulation.occupancy.on_gpu(gpu.gpu_id))
        simulation.occupancy.dead_gpu_ids |= gpu_ids
        for attempt in lost.values():
            self._machines.leave(attempt)
        simulation.event_queue.add(
            simulation.now_ms + simulation.settings.failures.repair_ms, EventPriority.NODE, self.join, node
        )
        for attempt in lost.values():
            self._tell_checkpoint(attempt)
        simulation.tell(events.NodeLost(at_ms=simulation.now_ms, node_id=node.node_id))
        for attempt in lost.values():
            if not gpu_ids.issuperset(attempt.gpu_ids):
                self._machines.tell_stopped(attempt, exit_class="lost")
            simulation.note_requeue(attempt.job_id)

    def _tell_checkpoint(self, attempt: Attempt) -> None:
        """The newest checkpoint was reported while the machine lived."""
        step = attempt.steps_at(attempt.checkpoint_left_ms)
        if attempt.trained_ms and not attempt.is_stopping:
            self._simulation.tell(
                events.JobProgressed(
                    at_ms=self._simulation.now_ms,
                    job_id=attempt.job_id,
                    attempt=attempt.attempt,
                    fence=attempt.fence,
                    steps_done=step,
                    checkpoint_step=step,
                )
            )
