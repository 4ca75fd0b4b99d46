"""Asks the predictor for curves over numbers of workers and parameter servers, as `speed_fits` does over GPUs.

Source:
    Optimus, section 3.2, Eq. 4: the speed function of a job is fitted again as its steps are measured.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.commands import RequestTaskSpeedFit
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.fit_events import TaskSpeedFitted
from scheduler_service.core.records import JobRequest
from scheduler_service.core.replica_groups import server_counts
from scheduler_service.core.speed_fits import COUNTS_ASKED_MAX, is_possible
from scheduler_service.core.state import ClusterState
from scheduler_service.core.task_speeds import TaskSpeedFit, needs_task_fit, tasks_to_fit


def ask_about_task_speed(state: ClusterState, request: JobRequest, device: str, step: EventEffects) -> None:
    """Ask for the curve of a job's key on a device type at the numbers that it may have, where that is worth it."""
    key, speeds = request.key, state.predictions.speeds
    if not speeds.is_used:
        return
    measured, before = speeds.sound_task_step_ms(key, device), speeds.task_fit(key, device)
    asked = tasks_to_fit(measured, request.allowed_gpus, server_counts(request))[:COUNTS_ASKED_MAX]
    if not needs_task_fit(before, measured, asked):
        return
    samples = tuple((*tasks, step_ms) for tasks, step_ms in sorted(measured.items()))
    fit = replace(
        before or TaskSpeedFit(samples=(), asked=(), global_batch_size=1),
        samples=samples,
        asked=asked,
        global_batch_size=request.global_batch_size,
        is_asked=True,
    )
    speeds.put_task_fit(key, device, fit)
    step.commands.append(_question(key, device, fit))


def reissue_task_speed_fits(state: ClusterState, step: EventEffects) -> None:
    """Ask again what was unanswered when the scheduler went down."""
    step.commands += [_question(key, device, fit) for key, device, fit in state.predictions.speeds.asked_of_tasks()]


def task_speed_fitted(state: ClusterState, event: TaskSpeedFitted, step: EventEffects) -> None:
    """Take a curve in; where there is none, what is known stays and is asked about again when it has moved."""
    fit = state.predictions.speeds.task_fit(event.key, event.device)
    if fit is None or not fit.is_asked:
        return
    answered = replace(fit, is_asked=False)
    if not event.code and is_possible(event.step_ms, fit.asked, [step_ms for _, _, step_ms in fit.samples]):
        answered = replace(
            answered, step_ms=dict(event.step_ms), fitted_samples=len(fit.samples), error_ratio=event.error_ratio
        )
        step.is_decision_due = True
    state.predictions.put_task_speed_fit(event.key, event.device, answered)
    state.touch_jobs_of(event.key)


def _question(key: str, device: str, fit: TaskSpeedFit) -> RequestTaskSpeedFit:
    return RequestTaskSpeedFit(
        key=key, device=device, global_batch_size=fit.global_batch_size, samples=fit.samples, asked=fit.asked
    )
