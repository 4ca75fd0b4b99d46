"""FitLossCurve and FitSpeedModel: from message to message, around pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.convergence.curve_forms import POINTS_MIN
from predictor_service.convergence.loss_series import POINTS_MAX, LossSeries, prepare_losses
from predictor_service.convergence.training_end import FormPrediction, Goal, TrainingEnd, predict_end
from predictor_service.convergence.training_speed import (
    SAMPLES_MAX,
    Resources,
    SpeedModel,
    SpeedSample,
    Synchrony,
    check_resources,
    fit_speed,
    remaining_ms,
)
from predictor_service.errors import invalid_field
from predictor_service.inference.records import DEFAULT_CONFIDENCE

PATIENCE_DEFAULT: Final = 3
PATIENCE_MAX: Final = 1_000
RATE_DROPS_MAX: Final = 1_000
_SYNCHRONIES: Final = {1: Synchrony.ASYNCHRONOUS, 2: Synchrony.SYNCHRONOUS, 3: Synchrony.ALL_REDUCE}
_REMAINING_STEPS_MAX: Final = 1e15


def fit_loss_curve(request: prediction_pb2.FitLossCurveRequest) -> prediction_pb2.FitLossCurveResponse:
    """Answers when training ends.

    Raises:
        InvalidRequestError: A field is outside its range.
    """
    confidence = request.confidence or DEFAULT_CONFIDENCE
    if not 0.5 <= confidence <= 0.999:
        raise invalid_field("confidence", f"{confidence:g} is outside 0.5 to 0.999", "leave it out for 0.9")
    for field, count_max in (("points", POINTS_MAX), ("prior_points", POINTS_MAX), ("rate_drops", RATE_DROPS_MAX)):
        _check_count(field, len(getattr(request, field)), count_max)
    if request.metric not in (0, 1, 2):
        raise invalid_field("metric", f"unknown value {request.metric}", "use a newer server")
    series = _series(request)
    end = predict_end(series, _goal(request, series), confidence)
    return prediction_pb2.FitLossCurveResponse(
        epochs_total=end.epochs_total,
        lower=end.lower,
        upper=end.upper,
        confidence=confidence,
        planned_remaining_epochs=end.planned_remaining,
        reached=end.reached,
        loose_epochs_total=end.loose_epochs_total,
        reliable=end.reliable,
        curves=[_curve(item) for item in end.forms],
        outliers=series.outliers,
        warnings=_warnings(end, series),
    )


def fit_speed_model(request: prediction_pb2.FitSpeedModelRequest) -> prediction_pb2.FitSpeedModelResponse:
    """Answers how fast a job steps on what is asked for.

    Raises:
        InvalidRequestError: A field is outside its range.
    """
    if request.synchrony not in _SYNCHRONIES:
        raise invalid_field("synchrony", "it is not set", "send ASYNCHRONOUS, SYNCHRONOUS or ALL_REDUCE")
    _check_count("asked", len(request.asked), SAMPLES_MAX)
    _check_count("samples", len(request.samples), SAMPLES_MAX)
    steps = request.steps_remaining
    if not 0 <= steps <= _REMAINING_STEPS_MAX:
        raise invalid_field(
            "steps_remaining", f"{steps:g} is outside 0 to {_REMAINING_STEPS_MAX:g}", "send what remains"
        )
    asked = [_resources(item) for item in request.asked]
    for resources in asked:
        check_resources(resources, "asked")
    model = fit_speed(
        [SpeedSample(resources=_resources(item.resources), steps_per_s=item.steps_per_s) for item in request.samples],
        _SYNCHRONIES[request.synchrony],
    )
    return prediction_pb2.FitSpeedModelResponse(
        coefficients=model.coefficients,
        error_ratio=model.error_ratio,
        left_out_error_ratio=model.left_out_error_ratio,
        predictions=[
            _speed(model, item, resources, steps) for item, resources in zip(request.asked, asked, strict=True)
        ],
    )


def _series(request: prediction_pb2.FitLossCurveRequest) -> LossSeries:
    return prepare_losses(
        [point.progress for point in request.points],
        _losses(request.points, request.metric),
        request.epoch_length or 1.0,
        request.rate_drops,
        prior=([point.progress for point in request.prior_points], _losses(request.prior_points, request.metric)),
    )


def _losses(points: Sequence[prediction_pb2.CurvePoint], metric: int) -> list[float]:
    values = [point.value for point in points]
    return [1.0 - value for value in values] if metric == prediction_pb2.CURVE_METRIC_ACCURACY else values


def _goal(request: prediction_pb2.FitLossCurveRequest, series: LossSeries) -> Goal:
    patience = request.patience or PATIENCE_DEFAULT
    if not 1 <= patience <= PATIENCE_MAX:
        raise invalid_field("patience", f"{patience} epochs", f"use 1 to {PATIENCE_MAX}, 0 for {PATIENCE_DEFAULT}")
    if request.WhichOneof("goal") == "target_value":
        target = request.target_value
        loss = 1.0 - target if request.metric == prediction_pb2.CURVE_METRIC_ACCURACY else target
        if not (math.isfinite(loss) and loss >= 0):
            raise invalid_field(
                "target_value", f"{target:g} cannot be reached", "use a loss of 0 or more, an accuracy to 1"
            )
        return Goal(loss=loss / series.largest)
    threshold = request.convergence_threshold
    if not 0 < threshold < 1:
        raise invalid_field(
            "convergence_threshold", f"it is {threshold:g}", "use a share above 0 and below 1, e.g. 0.01"
        )
    return Goal(threshold=threshold, patience=patience)


def _curve(item: FormPrediction) -> prediction_pb2.FittedCurve:
    return prediction_pb2.FittedCurve(
        name=item.form.name,
        parameters=dict(item.form.parameters),
        error_ratio=item.form.error,
        epochs_total=item.epochs_total,
    )


def _warnings(end: TrainingEnd, series: LossSeries) -> list[resources_pb2.Warning]:
    if end.reached:
        return []
    if not end.forms:
        message = f"{len(series.epochs)} epochs since the last drop of the learning rate; {POINTS_MIN} are needed"
        return [resources_pb2.Warning(code="TOO_FEW_POINTS", message=message)]
    if end.epochs_total is None:
        return [resources_pb2.Warning(code="GOAL_NOT_FORESEEABLE", message="most shapes never reach the goal")]
    if not end.reliable:
        return [resources_pb2.Warning(code="SHAPES_DISAGREE", message="plan with something else than this estimate")]
    return []


def _resources(message: prediction_pb2.TrainingResources) -> Resources:
    return Resources(workers=message.workers, servers=message.servers or 1, batch=message.global_batch_size or 1)


def _speed(
    model: SpeedModel, asked: prediction_pb2.TrainingResources, resources: Resources, steps: float
) -> prediction_pb2.SpeedPrediction:
    steps_per_s = model.steps_per_s(resources)
    return prediction_pb2.SpeedPrediction(
        resources=asked,
        steps_per_s=steps_per_s,
        remaining_ms=remaining_ms(steps, steps_per_s) if steps else None,
    )


def _check_count(field: str, count: int, count_max: int) -> None:
    """Refuses long lists before a line of Python runs for each of their entries."""
    if count > count_max:
        raise invalid_field(field, f"{count} entries", f"send at most {count_max}")
