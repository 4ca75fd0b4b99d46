"""What schedulers assume of jobs with parameter servers: how many steps are left, and how fast they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from benchmarks.papers.parameter_servers import NodeTasks, ServerTraining
from benchmarks.papers.server_jobs import ServerJob, plan
from predictor_service.convergence.training_speed import Resources, SpeedSample, Synchrony, fit_speed
from scheduler_service.policies.elasticity.optimus_allocation import Floats

Counts = tuple[int, int]
"""Workers and servers; a container each."""
PRERUNS = 5
"""Section 6.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """How the scheduler's assumptions differ from the true values.

    Attributes:
        fits_speeds: Speeds are known from five short runs and whatever is measured later, fitted to Eq. 3 or 4;
            otherwise they are what they are with every task on a node of its own.
        steps_error_ratio: Assumed steps are the true ones times 1 + or - this, by job.
        speed_error_ratio: Assumed speeds are the true ones times 1 + or - this.
        errs_by_pair: Errors of speed are drawn for every pair of numbers anew; otherwise once for a job.
    """

    fits_speeds: bool = False
    steps_error_ratio: float = 0.0
    speed_error_ratio: float = 0.0
    errs_by_pair: bool = False

    def steps_ratio(self, job: ServerJob, seed: int) -> float:
        """Return the assumed steps over the true ones."""
        return 1.0 + Random(f"{seed}/steps/{job.name}").choice((-1.0, 1.0)) * self.steps_error_ratio

    def step_s(self, job: ServerJob, seed: int) -> Floats:
        """Return the assumed time of a step by workers and servers; infinite for none of either."""
        table = (
            fitted_step_s(job.training, self.preruns(job, seed)) if self.fits_speeds else remote_step_s(job.training)
        )
        generator = Random(f"{seed}/speed/{job.name}")
        shape = table.shape if self.errs_by_pair else (1, 1)
        signs = np.array([generator.choice((-1.0, 1.0)) for _ in range(shape[0] * shape[1])]).reshape(shape)
        return np.asarray(table / (1.0 + signs * self.speed_error_ratio))

    def preruns(self, job: ServerJob, seed: int) -> dict[Counts, float]:
        """Return the time of a step by workers and servers as five runs on an empty cluster measure it, in s."""
        if not self.fits_speeds:
            return {}
        chosen = Random(f"{seed}/prerun/{job.name}").sample(_pairs(), PRERUNS)
        return {counts: job.training.step_ms(_alone(*counts)) / 1_000 for counts in chosen}


def remote_step_s(training: ServerTraining) -> Floats:
    """Return the time of a step by workers and servers, every task on a node of its own."""
    return _remote_step_s(training, plan()["tasks_max"])


@cache
def _remote_step_s(training: ServerTraining, tasks_max: int) -> Floats:
    del tasks_max  # What the table's size follows from.
    table = _unknown()
    for workers, servers in _pairs():
        table[workers, servers] = training.remote_step_ms(workers, servers) / 1_000
    return table


def fitted_step_s(training: ServerTraining, measured_s: Mapping[Counts, float]) -> Floats:
    """Return the same as Eq. 3 or 4 give it, fitted to what was measured (sections 3.2 and 6.1).

    Args:
        training: The job.
        measured_s: Time of a step by workers and servers.
    """
    synchrony = Synchrony.SYNCHRONOUS if training.is_synchronous else Synchrony.ASYNCHRONOUS
    samples = [
        SpeedSample(
            resources=Resources(workers=workers, servers=servers, batch=training.batch),
            steps_per_s=1 / step_s,
        )
        for (workers, servers), step_s in measured_s.items()
    ]
    model = fit_speed(samples, synchrony)
    table = _unknown()
    for workers, servers in _pairs():
        resources = Resources(workers=workers, servers=servers, batch=training.batch)
        table[workers, servers] = 1.0 / model.steps_per_s(resources)
    return table


def _unknown() -> Floats:
    most = plan()["tasks_max"]
    return np.full((most + 1, most + 1), np.inf)


def _pairs() -> list[Counts]:
    most = plan()["tasks_max"]
    return [(workers, servers) for workers in range(1, most + 1) for servers in range(1, most + 1)]


def _alone(workers: int, servers: int) -> list[NodeTasks]:
    """Return equal parts on the fewest of the largest nodes."""
    nodes = -(-(workers + servers) // max(plan()["nodes"]["containers"]))
    return [
        NodeTasks(
            workers=workers // nodes + (node < workers % nodes),
            servers=servers // nodes + (node >= nodes - servers % nodes),
        )
        for node in range(nodes)
    ]
