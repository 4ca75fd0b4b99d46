"""The part of Pollux that goes with each job: it learns the job's goodput and tunes the job's batch.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/simulator.py: a job starts at its smallest
    batch, learns from every configuration it runs, and chooses its batch anew after every segment; ncf keeps one batch.
"""

from __future__ import annotations

import numpy as np

from cotenant_simulator.pollux_rules.batch_plan import BatchPlan, clip_to_largest, split_batch
from cotenant_simulator.pollux_rules.goodput import Floats, Goodput, Observation, StepModel, fit_step_model
from cotenant_simulator.pollux_rules.training_job import TrainingJob

_FIXED_BATCHES = {"ncf": 32_768}

Rates = tuple[Floats, Floats]
"""Goodput by GPU count from 0, on one node and across nodes."""


class Agent:
    """What one job has learned so far; the engine reports every segment to it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], Observation] = {}
        self._model: StepModel | None = None
        self._gradient = (0.0, 0.0)
        self._goodput: Goodput | None = None
        self._rates: Rates | None = None

    @property
    def gpus_seen_max(self) -> int:
        """Most GPUs on which the job has run; 0 = it has not run."""
        return max((gpus for _, gpus, _ in self._seen), default=0)

    def learn(self, job: TrainingJob) -> None:
        """Take in the step time and the gradient of the segment that was just run."""
        application, plan = job.application, job.plan
        gpus_by_node = tuple(gpus for _, gpus in job.allocation)
        key = (len(gpus_by_node), plan.gpus, plan.local_samples)
        gradient = application.gradient(plan.batch, job.epochs_done)
        if key not in self._seen:
            step_s, sync_s = application.step_times.at(application.name, gpus_by_node, plan.local_samples)
            self._seen[key] = Observation(*key, step_s, sync_s)
            self._model = fit_step_model(list(self._seen.values()))
        elif gradient == self._gradient:
            return
        assert self._model is not None  # the first segment brings the first observation
        self._gradient = gradient
        self._goodput = Goodput(application, self._model, gradient)
        self._rates = None

    def plan(self, job: TrainingJob) -> BatchPlan:
        """Return the split with the best goodput on what the job holds."""
        application, gpus = job.application, job.gpus_held
        fixed = _FIXED_BATCHES.get(application.name)
        if fixed is not None:
            return split_batch(application, fixed, gpus)
        if self._goodput is None:
            smallest = max(application.initial_batch, application.local_samples_min * gpus)
            return split_batch(application, smallest, gpus)
        return clip_to_largest(application, self._goodput.plan(gpus, is_far=len(job.allocation) > 1))

    def rates(self, gpus_max: int) -> Rates:
        """Return the goodput at every GPU count; in proportion to the GPUs before the first segment.

        Args:
            gpus_max: The largest count; the same in every call.
        """
        if self._goodput is None:
            proportional = np.arange(gpus_max + 1, dtype=float)
            return proportional, proportional
        if self._rates is None:
            counts = np.arange(1.0, gpus_max + 1)
            is_far = np.arange(2 * gpus_max) >= gpus_max
            found = self._goodput.best(np.concatenate((counts, counts)), is_far)[0]
            near, far = np.split(found, 2)
            self._rates = np.concatenate(([0.0], near)), np.concatenate(([0.0], far))
        return self._rates
