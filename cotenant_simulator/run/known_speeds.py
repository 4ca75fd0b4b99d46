"""Which reports of simulated attempts would tell the engine what it knows.

The speed of an attempt alone does not vary in simulated time. The first report of an attempt counts as its warm-up, a
second one says how fast its kind of job is on such GPUs: half of all facts of a long run say that over and over.
"""

from __future__ import annotations

from typing import Final

from cotenant_simulator.run.attempts import Attempt, GpuOccupancy
from scheduler_service.core.predictions.measured_speeds import agrees
from scheduler_service.core.state import ClusterState

_STEPS_KNOWN_MIN: Final = 1_000
"""One more window moves a mean over as many by next to nothing."""


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
