"""Asks the predictor for curves through measured step times: one question at a time of a key and device type.

A curve is over numbers of GPUs, or for jobs with parameter servers over numbers of workers and servers. A question is
worth its answer when enough of these were measured, and again when one of them has moved or a job may have another
number. Until an answer comes, and where none does, what was foreseen goes on.

Source:
    Optimus, section 3.2, with Eq. 4 for servers: the speed function of a job is fitted again as its steps are measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, Final, TypeVar

from scheduler_service.core.cluster_view.replica_groups import server_counts
from scheduler_service.core.commands import RequestSpeedFit, RequestTaskSpeedFit
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.fit_events import SpeedFitted, TaskSpeedFitted
from scheduler_service.core.predictions.measured_speeds import SpeedFit, needs_fit, samples_to_fit
from scheduler_service.core.predictions.task_speeds import TaskSpeedFit, needs_task_fit, tasks_to_fit
from scheduler_service.core.records import JobRequest
from scheduler_service.core.state import ClusterState

Fit = TypeVar("Fit", SpeedFit, TaskSpeedFit)
FAR_RATIO: Final = 1_000.0
"""A fitted step time that lies so many times outside the measured ones is none."""
COUNTS_ASKED_MAX: Final = 256
"""Numbers that one question is about, the smallest first; the answer is a fact of the log."""


def ask_about_speed(state: ClusterState, key: str, device: str, step: EventEffects) -> None:
    """Ask for the curve of a key on a device type where that is worth it."""
    use, speeds = state.living_keys.get(key), state.predictions.speeds
    if use is None or not speeds.is_used:
        return
    samples = samples_to_fit(speeds.foreseen(key, device), speeds.sound_step_ms(key, device))
    counts = tuple(sorted({*use.gpus, *(gpus for gpus, _ in samples)}))[:COUNTS_ASKED_MAX]
    before = speeds.fit(key, device)
    if not needs_fit(before, samples, counts):
        return
    asked = replace(
        before or SpeedFit(samples=(), counts=(), global_batch_size=1),
        samples=samples,
        counts=counts,
        global_batch_size=use.global_batch_size,
        is_asked=True,
    )
    speeds.put_fit(key, device, asked)
    step.commands.append(_question(key, device, asked))


def ask_about_task_speed(state: ClusterState, request: JobRequest, device: str, step: EventEffects) -> None:
    """Ask for the curve of a job's key on a device type at the numbers that it may have, where that is worth it."""
    key, speeds = request.key, state.predictions.speeds
    if not speeds.is_used:
        return
    measured, before = speeds.sound_task_step_ms(key, device), speeds.task_fit(key, device)
    asked = tasks_to_fit(measured, request.allowed_gpus, server_counts(request))[:COUNTS_ASKED_MAX]
    if not needs_task_fit(before, measured, asked):
        return
    fit = replace(
        before or TaskSpeedFit(samples=(), asked=(), global_batch_size=1),
        samples=tuple((*tasks, step_ms) for tasks, step_ms in sorted(measured.items())),
        asked=asked,
        global_batch_size=request.global_batch_size,
        is_asked=True,
    )
    speeds.put_task_fit(key, device, fit)
    step.commands.append(_task_question(key, device, fit))


def reissue_speed_fits(state: ClusterState, step: EventEffects) -> None:
    """Ask again what was unanswered when the scheduler went down."""
    speeds = state.predictions.speeds
    step.commands += [_question(key, device, fit) for key, device, fit in speeds.asked()]
    step.commands += [_task_question(key, device, fit) for key, device, fit in speeds.asked_of_tasks()]


def speed_fitted(state: ClusterState, event: SpeedFitted, step: EventEffects) -> None:
    """Take a curve in; where there is none, what is known stays and is asked about again when it has moved."""
    fit = state.predictions.speeds.fit(event.key, event.device)
    if fit is not None and fit.is_asked:
        state.predictions.put_speed_fit(event.key, event.device, _answered(fit, fit.counts, event, step))
        state.touch_jobs_of(event.key)


def task_speed_fitted(state: ClusterState, event: TaskSpeedFitted, step: EventEffects) -> None:
    """Take in a curve over workers and servers, as `speed_fitted` does."""
    fit = state.predictions.speeds.task_fit(event.key, event.device)
    if fit is not None and fit.is_asked:
        state.predictions.put_task_speed_fit(event.key, event.device, _answered(fit, fit.asked, event, step))
        state.touch_jobs_of(event.key)


def _answered(fit: Fit, asked: Collection[Any], event: SpeedFitted | TaskSpeedFitted, step: EventEffects) -> Fit:
    """Return a fit whose question is answered, with the curve if there is one, which then is news for the policy."""
    answered = replace(fit, is_asked=False)
    if event.code or not is_possible(event.step_ms, asked, [sample[-1] for sample in fit.samples]):
        return answered
    step.is_decision_due = True
    curve: Any = dict(event.step_ms)
    return replace(answered, step_ms=curve, fitted_samples=len(fit.samples), error_ratio=event.error_ratio)


def is_possible(curve_ms: Mapping[Any, float], asked: Collection[Any], measured_ms: Collection[float]) -> bool:
    """Say whether a curve is about what was asked, and not absurdly far from what it was fitted to."""
    least_ms, most_ms = min(measured_ms) / FAR_RATIO, max(measured_ms) * FAR_RATIO
    return curve_ms.keys() <= set(asked) and all(
        isfinite(time_ms) and least_ms <= time_ms <= most_ms for time_ms in curve_ms.values()
    )


def _question(key: str, device: str, fit: SpeedFit) -> RequestSpeedFit:
    return RequestSpeedFit(
        key=key, device=device, global_batch_size=fit.global_batch_size, samples=fit.samples, counts=fit.counts
    )


def _task_question(key: str, device: str, fit: TaskSpeedFit) -> RequestTaskSpeedFit:
    return RequestTaskSpeedFit(
        key=key, device=device, global_batch_size=fit.global_batch_size, samples=fit.samples, asked=fit.asked
    )
