"""Which reports of simulated attempts would tell the engine what it knows.

The speed of an attempt alone does not vary in simulated time. The first report of an attempt counts as its warm-up, a
second one says how fast its kind of job is on such GPUs: half of all facts of a long run say that over and over. A
policy that heeds no report has no use for the first one either.
"""

from __future__ import annotations

from typing import Final

from cotenant_simulator.run.attempts import Attempt, GpuOccupancy
from cotenant_simulator.run.simulation_state import SimulationState
from scheduler_service.core.event_handling.next_looks import heeds_some_report
from scheduler_service.core.predictions.measured_speeds import agrees
from scheduler_service.core.state import ClusterState

_STEPS_KNOWN_MIN: Final = 1_000
"""One more window moves a mean over as many by next to nothing."""


def tells_something(attempt: Attempt, simulation: SimulationState, *, is_first: bool) -> bool:
    """Say whether a report tells the engine something that anything follows from.

    The first one since a change of pace says where the attempt stands: that matters to a policy that heeds a report,
    and where nodes fail. All say how fast it is, unless that is known.

    Args:
        attempt: One that trains.
        simulation: Its run.
        is_first: No report was told since its pace changed.
    """
    is_standing_heeded = is_first and (
        simulation.settings.failures.mean_up_ms > 0 or heeds_some_report(simulation.engine.policy)
    )
    return is_standing_heeded or not is_speed_known(attempt, simulation.occupancy, simulation.known)


def is_speed_known(attempt: Attempt, occupancy: GpuOccupancy, state: ClusterState) -> bool:
    """Say whether so many steps of such a job were measured alone, and soundly, that another window tells nothing.

    Args:
        attempt: One that trains.
        occupancy: Where it does; with other jobs on its GPUs every window tells something.
        state: The engine's.
    """
    record = state.jobs.get(attempt.job_id)
    if record is None or record.trial is not None or occupancy.neighbours(attempt):
        return False
    shape = len(attempt.gpu_ids), record.shape.micro_batch_size
    known = state.predictions.speeds.solo(attempt.key, attempt.device, shape, record.request.replicas.servers)
    if known is None or known.is_doubtful or known.steps < _STEPS_KNOWN_MIN:
        return False
    # Where GPUs lie apart the same shape is slower.
    return agrees(known.step_ms, attempt.step_ms)
