"""How a simulated agent pauses: late, for so long at most, and sometimes not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler_service.core import commands, events
from scheduler_service.core.records import PREPARED_STARTS
from tests.support.scheduling import GIB

if TYPE_CHECKING:
    from tests.support.simulated_cluster import Machine, SimulatedCluster

HOST: dict[str, Any] = {"host_memory_bytes": 64 * GIB, "enforcements": ("stop_signal", PREPARED_STARTS)}
"""What a simulated node has beside its devices: it can pause, and start attempts early."""
Order = commands.PauseJob | commands.ResumeJob


def carry_out(world: SimulatedCluster, order: Order) -> None:
    """Pause an attempt or let it go on, and say so; where nothing is to be done, what is the case is said again."""
    machine, key = world.machines[order.node_id], (order.job_id, order.attempt, order.fence)
    attempt = machine.attempts.get(key)
    if not machine.is_connected or attempt is None or attempt.is_stopping:
        return
    if isinstance(order, commands.ResumeJob):
        attempt.is_paused = False
        _report(world, machine, key, events.AttemptResumed)
    elif world.strikes(world.faults.refuse_pause):
        world.report(machine, events.PauseRefused, code="NOT_PAUSABLE", **_identity(key))
    else:
        attempt.is_paused = True
        world.pauses += 1
        _report(world, machine, key, events.AttemptPaused)
        world.at(order.paused_ms_max, lambda: _go_on_by_itself(world, machine, key))


def _go_on_by_itself(world: SimulatedCluster, machine: Machine, key: tuple[str, int, int]) -> None:
    attempt = machine.attempts.get(key)
    if attempt is not None and attempt.is_paused:
        attempt.is_paused = False
        _report(world, machine, key, events.AttemptResumed)


def _report(
    world: SimulatedCluster, machine: Machine, key: tuple[str, int, int], kind: type[events.AttemptReport]
) -> None:
    world.report(machine, kind, **_identity(key))


def _identity(key: tuple[str, int, int]) -> dict[str, object]:
    return {"job_id": key[0], "attempt": key[1], "fence": key[2]}
