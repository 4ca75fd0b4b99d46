"""How a batch is split over GPUs and passes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from cotenant_simulator.pollux_rules.applications import Application

_FORGIVEN = 1e-8


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A split: every GPU takes `local_samples` in each of `accumulations` + 1 passes.

    Attributes:
        gpus: GPUs that share the batch.
        local_samples: Samples per GPU and pass.
        accumulations: Passes before the one that exchanges gradients.
    """

    gpus: int
    local_samples: int
    accumulations: int

    @property
    def batch(self) -> int:
        """Samples per step that are really trained."""
        return self.gpus * self.local_samples * (self.accumulations + 1)


def split_batch(application: Application, batch: int, gpus: int, *, accumulates_alone: bool = False) -> BatchPlan:
    """Split a batch over GPUs.

    Args:
        application: Application that sets the bounds.
        batch: Wanted samples per step.
        gpus: At least 1.
        accumulates_alone: One GPU always accumulates, also at the initial batch size.
    """
    wanted = ceil(batch / gpus - _FORGIVEN)
    accumulations = ceil(wanted / application.local_samples_max - _FORGIVEN) - 1
    if gpus == 1 and (accumulates_alone or batch > application.initial_batch):
        accumulations = max(accumulations, 1)
    local_samples = ceil(wanted / (accumulations + 1) - _FORGIVEN)
    return clip_to_largest(application, BatchPlan(gpus, local_samples, accumulations))


def clip_to_largest(application: Application, plan: BatchPlan) -> BatchPlan:
    """Return the plan with so few samples per pass that the application's largest batch is not passed."""
    most = application.batch_max // (plan.gpus * (plan.accumulations + 1))
    return BatchPlan(plan.gpus, min(plan.local_samples, most), plan.accumulations)


def iteration_s(application: Application, gpus_by_node: tuple[int, ...], plan: BatchPlan) -> float:
    """Return the time of one step in seconds: the passes before the last exchange nothing.

    Raises:
        ProfileError: The allocation was not measured.
    """
    step, sync = application.step_times.at(application.name, gpus_by_node, plan.local_samples)
    return step + plan.accumulations * (step - sync)
