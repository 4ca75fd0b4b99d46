"""Asks the predictor for curves through measured step times: one question at a time of a key and device type.

A question is worth its answer when three numbers of GPUs were measured, and again when one of them has moved or a job
may have another number. Until an answer comes, and where none does, what was foreseen goes on.

Source:
    Optimus, section 3.2: the speed function of a job is fitted again as its steps are measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from scheduler_service.core.commands import RequestSpeedFit
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.fit_events import SpeedFitted
from scheduler_service.core.measured_speeds import SpeedFit, needs_fit, samples_to_fit
from scheduler_service.core.state import ClusterState

FAR_RATIO: Final = 1_000.0
"""A fitted step time that lies so many times outside the measured ones is none."""
COUNTS_ASKED_MAX: Final = 256
"""Numbers of GPUs that one question is about, the smallest first; the answer is a fact of the log."""


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
    asked = SpeedFit(samples=samples, counts=counts, global_batch_size=use.global_batch_size, is_asked=True)
    if before is not None:
        asked = replace(
            asked, step_ms=before.step_ms, fitted_samples=before.fitted_samples, error_ratio=before.error_ratio
        )
    speeds.put_fit(key, device, asked)
    step.commands.append(_question(key, device, asked))


def reissue_speed_fits(state: ClusterState, step: EventEffects) -> None:
    """Ask again what was unanswered when the scheduler went down."""
    step.commands += [_question(key, device, fit) for key, device, fit in state.predictions.speeds.asked()]


def speed_fitted(state: ClusterState, event: SpeedFitted, step: EventEffects) -> None:
    """Take a curve in; where there is none, what is known stays and is asked about again when it has moved."""
    fit = state.predictions.speeds.fit(event.key, event.device)
    if fit is None or not fit.is_asked:
        return
    answered = replace(fit, is_asked=False)
    if not event.code and is_possible(event.step_ms, fit.counts, [step_ms for _, step_ms in fit.samples]):
        answered = replace(
            answered,
            step_ms=dict(event.step_ms),
            fitted_samples=len(fit.samples),
            error_ratio=event.error_ratio,
        )
        step.is_decision_due = True
    state.predictions.put_speed_fit(event.key, event.device, answered)
    state.touch_jobs_of(event.key)


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
