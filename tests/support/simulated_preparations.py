"""How a simulated agent starts attempts early: late, sometimes in vain, and sometimes without a word."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from scheduler_service.core import commands, events
from scheduler_service.core.lifecycle.preparation import NOT_PREPARABLE

if TYPE_CHECKING:
    from tests.support.simulated_cluster import SimulatedCluster

PREPARATION_MS = 3_000


def prepare(world: SimulatedCluster, order: commands.PrepareJob) -> None:
    """Start an attempt early; nothing of it counts before its launch."""
    launch = order.launch
    machine = world.machines[launch.node_id]
    if not machine.is_connected:
        return
    name = {"job_id": launch.job_id, "attempt": launch.attempt, "fence": launch.fence}
    if world.strikes(world.faults.refuse_launch):
        world.report(machine, events.PreparationEnded, code=NOT_PREPARABLE, **name)
    elif not world.strikes(world.faults.refuse_pause):
        is_lost = world.strikes(world.faults.fail_attempt)
        world.preparations += not is_lost
        said = {"code": "PREPARATION_LOST"} if is_lost else {}
        event = events.PreparationEnded if is_lost else events.AttemptPrepared
        world.at(world.generator.randrange(1, PREPARATION_MS), partial(world.report, machine, event, **name, **said))
