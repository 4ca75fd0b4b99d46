"""What the predictor's answers do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler_service.core import events, fit_events
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.lifecycle.training_ends import loss_fitted, reissue_loss_fits
from scheduler_service.core.predictions.pair_refreshes import pairs_refreshed, reissue_refreshes
from scheduler_service.core.predictions.prediction_requests import ask_about_pairs, refresh_hold, reissue_questions
from scheduler_service.core.predictions.speed_fits import reissue_speed_fits, speed_fitted, task_speed_fitted
from scheduler_service.core.state import ClusterState


def prediction_arrived(state: ClusterState, event: events.PredictionArrived, step: EventEffects) -> None:
    """Take a prediction in, and show the jobs that waited for it."""
    prediction = event.prediction
    if not state.predictions.knows(prediction.key):
        return
    state.predictions.put_job(prediction)
    state.touch_running(prediction.key)
    ask_about_pairs(state, prediction.key, prediction.device, step)
    _show_jobs_of(state, prediction.key, step)


def prediction_failed(state: ClusterState, event: events.PredictionFailed, step: EventEffects) -> None:
    """Note that nothing is predicted of a key on a device, and show the jobs that waited."""
    if not state.predictions.knows(event.key):
        return
    state.predictions.put_failure(event.key, event.device, event.code)
    _show_jobs_of(state, event.key, step)


def _show_jobs_of(state: ClusterState, key: str, step: EventEffects) -> None:
    for job_id in state.waiting.with_key(key):
        step.is_decision_due |= refresh_hold(state, job_id)


def pairs_arrived(state: ClusterState, event: events.PairPredictionsArrived, step: EventEffects) -> None:
    """Take answers about pairs in, and show the jobs that waited for them."""
    for pair in event.pairs:
        state.predictions.put_pair(pair)
        state.predictions.answer_pairs(pair.victim_key, pair.device, pair.sharing)
    for key in dict.fromkeys(pair.victim_key for pair in event.pairs):
        _show_jobs_of(state, key, step)
    step.is_decision_due = True


def pairs_failed(state: ClusterState, event: events.PairPredictionsFailed, step: EventEffects) -> None:
    """Note that nothing is predicted of pairs, and show the jobs that waited."""
    for key in event.keys:
        state.predictions.answer_pairs(key, event.device, event.sharing)
        _show_jobs_of(state, key, step)


def reissue(state: ClusterState, step: EventEffects) -> None:
    """Ask again whatever was unanswered when the scheduler went down."""
    reissue_questions(state, step)
    reissue_refreshes(state, step)
    reissue_speed_fits(state, step)
    reissue_loss_fits(state, step)


HANDLERS: Mapping[type[events.Event], Callable[[ClusterState, Any, EventEffects], None]] = {
    events.PredictionArrived: prediction_arrived,
    events.PredictionFailed: prediction_failed,
    events.PairPredictionsArrived: pairs_arrived,
    events.PairPredictionsFailed: pairs_failed,
    events.PairsRefreshed: pairs_refreshed,
    fit_events.SpeedFitted: speed_fitted,
    fit_events.TaskSpeedFitted: task_speed_fitted,
    fit_events.LossFitted: loss_fitted,
}
"""What handles each of the predictor's answers."""
