"""On which kinds of GPU a job fits alone, and how fast it is there, kept for all that are like it."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service.core.cluster_view.inventory import Inventory, Kind
from scheduler_service.core.cluster_view.step_times import step_ms_of
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.placement.free_gpus import fits_alone

SHAPES_MAX = 100_000
"""Beyond them all are forgotten."""


class ShapeSpeeds:
    """What was found of shapes of jobs while nodes and predictions were as they are.

    A job that waits for GPUs which others leave is looked at in every round until they have left.

    Args:
        inventory: What the cluster has.
        changes: How often the predictions had changed.
    """

    def __init__(self, inventory: Inventory, changes: int) -> None:
        self._inventory, self._changes = inventory, changes
        self._known: dict[object, Sequence[tuple[float | None, Kind]]] = {}

    def is_of(self, view: SchedulingView) -> bool:
        """Say whether it is still true, and small enough."""
        is_same = self._inventory is view.index.inventory and self._changes == view.index.prediction_changes.count
        return is_same and len(self._known) < SHAPES_MAX

    def find(self, view: SchedulingView, request: JobRequest, shape: object) -> Sequence[tuple[float | None, Kind]]:
        """Return every kind of GPU that a job fits alone, and the ms of a step there (None = unknown) before it.

        Args:
            view: The cluster.
            request: The job.
            shape: Its shape.
        """
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = [
                (step_ms_of(request, view.predictions.job(request.key, kind[0]), gpus=request.gpus), kind)
                for kind, gpu in self._inventory.gpus.items()
                if fits_alone(view, request, gpu)
            ]
        return known


def shape_speeds(view: SchedulingView) -> ShapeSpeeds:
    """Return what was found so far, for all rounds on the same nodes and predictions."""
    kept = view.index.kept_answers.get(ShapeSpeeds)
    if not isinstance(kept, ShapeSpeeds) or not kept.is_of(view):
        kept = ShapeSpeeds(view.index.inventory, view.index.prediction_changes.count)
        view.index.kept_answers[ShapeSpeeds] = kept
    return kept
