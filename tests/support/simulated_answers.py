"""What the predictor of a simulated cluster answers when it is asked for curves, or about pairs once more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler_service.core import commands, events, fit_events

if TYPE_CHECKING:
    from tests.support.simulated_cluster import SimulatedCluster


def fit_speed(cluster: SimulatedCluster, question: commands.RequestSpeedFit | commands.RequestTaskSpeedFit) -> None:
    """Say that every number of GPUs, or of workers and servers, takes as long as the slowest that was measured."""
    if isinstance(question, commands.RequestTaskSpeedFit):
        _fit_task_speed(cluster, question)
        return
    slowest_ms = max(step_ms for _, step_ms in question.samples)
    is_down = cluster.strikes(cluster.faults.predictor_down)
    cluster.tell(
        fit_events.SpeedFitted,
        key=question.key,
        device=question.device,
        step_ms={} if is_down else dict.fromkeys(question.counts, slowest_ms),
        code="UNAVAILABLE" if is_down else "",
    )


def _fit_task_speed(cluster: SimulatedCluster, question: commands.RequestTaskSpeedFit) -> None:
    slowest_ms = max(step_ms for _, _, step_ms in question.samples)
    is_down = cluster.strikes(cluster.faults.predictor_down)
    cluster.tell(
        fit_events.TaskSpeedFitted,
        key=question.key,
        device=question.device,
        step_ms={} if is_down else dict.fromkeys(question.asked, slowest_ms),
        code="UNAVAILABLE" if is_down else "",
    )


def refresh_pairs(cluster: SimulatedCluster, question: commands.RefreshPairs) -> None:
    """Say of every pair that it was measured once more and harms a little more than it did."""
    if cluster.strikes(cluster.faults.predictor_down):
        cluster.tell(events.PairsRefreshed, device=question.device, code="UNAVAILABLE")
        return
    pairs = tuple(
        replace(known, slowdown_ratio=known.slowdown_ratio + 0.05, times_measured=known.times_measured + 1)
        for known in question.known
    )
    cluster.tell(events.PairsRefreshed, device=question.device, pairs=pairs)
