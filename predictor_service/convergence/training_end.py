"""When a job will have converged, or reached a goal, with how much that can be trusted.

Converged: the drop of the loss from one epoch to the next has stayed below the owner's threshold for several epochs.
The forms of `curve_forms` are asked each for itself, with all points and with the newest tenth and fifth left out; the
median is the answer and their spread its uncertainty. A small threshold is hard to predict, so that three times the
threshold is predicted first and planned with until it is reached.

Source: Optimus, sections 2 (convergence), 3.1 and 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from predictor_service.convergence.curve_forms import POINTS_MIN, FittedForm, fit_forms
from predictor_service.convergence.loss_series import FloatArray, LossSeries

LOOSE_FACTOR: Final = 3.0
"""The threshold that is predicted first, in units of the owner's (3 % for 1 %)."""
OVERESTIMATE: Final = 1.05
"""Remaining epochs are planned this much longer: too short an estimate blocks others, too long only the job itself."""
HORIZON: Final = 1_000.0
"""No curve is followed further than so many times what has been seen."""
RELIABLE_SPREAD: Final = 0.35
"""Standard deviation of the logarithm of the remaining epochs up to which an answer counts as reliable."""
SPREAD_MIN: Final = 0.6
"""Least standard deviation of that logarithm for an interval: forms that agree are often wrong together."""
MISFIT_FACTOR: Final = 2.0
"""Forms that miss the points by so many times what the best one does are shown, but not asked."""
PACE_FACTOR_MAX: Final = 3.0
"""How far the pace of the last epochs may correct a form, either way."""
_LEFT_OUT: Final = (0.0, 0.1, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """When training is over.

    Attributes:
        threshold: Share of the largest loss that an epoch must still bring; None when `loss` is the goal.
        patience: Epochs in a row below the threshold.
        loss: Loss to reach, divided by the largest loss; None when convergence is the goal.
    """

    threshold: float | None = None
    patience: int = 3
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPrediction:
    """What one form predicts.

    Attributes:
        form: The fitted form.
        epochs_total: Epochs since the start of the job; None = the goal is never reached.
    """

    form: FittedForm
    epochs_total: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """When training is over.

    Attributes:
        epochs_total: Epochs since the start of the job at which the goal is reached; None = not within the horizon, or
            too few points to predict.
        lower: Bound at the confidence asked for.
        upper: Bound at the confidence asked for.
        planned_remaining: Epochs to plan with: to the loose threshold while that is not reached, 5 % added.
        reached: Whether the points already reach the goal.
        loose_epochs_total: The same for the loose threshold; None where it is behind or not asked for.
        reliable: Whether the forms agree.
        forms: Every form, fitted to all points.
    """

    epochs_total: float | None
    lower: float | None
    upper: float | None
    planned_remaining: float | None
    reached: bool
    loose_epochs_total: float | None
    reliable: bool
    forms: Sequence[FormPrediction]


def predict_end(series: LossSeries, goal: Goal, confidence: float = 0.9) -> TrainingEnd:
    """Predicts when training is over.

    Args:
        series: Prepared losses.
        goal: What ends it.
        confidence: Coverage that the interval aims at; it widens a spread, it is not calibrated per job.
    """
    now = series.measured_until
    reached_at = find_end(series, goal)
    if reached_at is not None:
        return _reached(reached_at)
    if len(series.epochs) < POINTS_MIN:
        return TrainingEnd(
            epochs_total=None, lower=None, upper=None, planned_remaining=None, reached=False, loose_epochs_total=None,
            reliable=False, forms=(),
        )  # fmt: skip
    fitted = fit_forms(series.epochs - series.restarted_at, series.losses)
    forms = [FormPrediction(form=form, epochs_total=_end_of(form, series, goal, now)) for form in fitted]
    ends = _ends(fitted, series, goal, now) + _ends_without_newest(series, goal, now)
    total, spread = _middle(ends, now)
    # The curve of an earlier job that goes on to the goal is more accurate than any extrapolation.
    total = find_end(series, goal, len(series.epochs)) or total
    loose_total = _loose_end(fitted, series, goal, now)
    if total is None:
        return TrainingEnd(
            epochs_total=None, lower=None, upper=None, planned_remaining=None, reached=False,
            loose_epochs_total=loose_total, reliable=False, forms=forms,
        )  # fmt: skip
    factor = math.exp(NormalDist().inv_cdf(0.5 + confidence / 2) * max(spread, SPREAD_MIN))
    planned_to = loose_total if loose_total is not None else total
    return TrainingEnd(
        epochs_total=total,
        lower=now + (total - now) / factor,
        upper=now + (total - now) * factor,
        planned_remaining=OVERESTIMATE * (planned_to - now),
        reached=False,
        loose_epochs_total=loose_total,
        reliable=spread <= RELIABLE_SPREAD,
        forms=forms,
    )


def find_end(series: LossSeries, goal: Goal, points: int | None = None) -> float | None:
    """The epoch at which the points themselves reach the goal; None = not yet.

    Losses are smoothed over three epochs first: a single outlying epoch is not convergence.

    Args:
        series: Prepared losses.
        goal: What is looked for.
        points: How many are looked at; None = the job's own.
    """
    own = series.losses[: series.own_points if points is None else points]
    if goal.loss is not None:
        below = np.flatnonzero(own <= goal.loss)
        return float(series.epochs[below[0]]) if len(below) else None
    drops = -np.diff(smooth(own)) / np.maximum(np.diff(series.epochs[: len(own)]), 1e-9)
    row = 0
    for index, drop in enumerate(drops):
        row = row + 1 if drop < (goal.threshold or 0.0) else 0
        if row >= goal.patience:
            return float(series.epochs[index + 1])
    return None


def smooth(losses: FloatArray) -> FloatArray:
    """Mean of each point and the two before it: what later points bring changes no earlier value."""
    if len(losses) < 3:
        return losses
    mean = (losses[:-2] + losses[1:-1] + losses[2:]) / 3
    return np.concatenate([losses[:1], (losses[:1] + losses[1:2]) / 2, mean])


def _reached(epoch: float) -> TrainingEnd:
    return TrainingEnd(
        epochs_total=epoch, lower=epoch, upper=epoch, planned_remaining=0.0, reached=True, loose_epochs_total=None,
        reliable=True, forms=(),
    )  # fmt: skip


def _end_of(form: FittedForm, series: LossSeries, goal: Goal, now: float) -> float | None:
    """Where one form reaches the goal, in epochs since the start of the job; never before `now`."""
    begun = now - series.restarted_at
    horizon = begun + HORIZON * max(begun, 1.0)
    if goal.loss is not None:
        target = goal.loss
        end = _first(lambda epochs: form.at(epochs) <= target, begun, horizon)
    else:
        threshold = (goal.threshold or 0.0) / _pace(form, series)
        end = _first(lambda epochs: form.at(max(epochs - 1, 0.0)) - form.at(epochs) < threshold, begun, horizon)
        end = None if end is None else end + goal.patience - 1
    return None if end is None else series.restarted_at + end


def _pace(form: FittedForm, series: LossSeries) -> float:
    """How much faster the loss fell over the newest quarter of the points than the form predicts.

    A form that fits the whole curve is often off in its slope at the end, and the slope is what convergence is about.
    """
    count = series.own_points
    width = min(max(3, count // 4), count - 1)
    if width < 1:
        return 1.0
    ages = (series.epochs - series.restarted_at)[:count]
    smoothed = smooth(series.losses[:count])
    fell = smoothed[-1 - width] - smoothed[-1]
    fitted = form.at(float(ages[-1 - width])) - form.at(float(ages[-1]))
    return float(np.clip(fell / max(fitted, 1e-12), 1 / PACE_FACTOR_MAX, PACE_FACTOR_MAX))


def _first(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """The smallest number at which a condition that stays true holds, to a hundredth; None = not even at `high`."""
    if holds(low):
        return low
    if not holds(high):
        return None
    while high - low > max(0.01, 1e-6 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _ends(forms: Sequence[FittedForm], series: LossSeries, goal: Goal, now: float) -> list[float | None]:
    """Where the forms that fit reach the goal."""
    error_max = MISFIT_FACTOR * max(min(form.error for form in forms), 1e-4)
    return [_end_of(form, series, goal, now) for form in forms if form.error <= error_max]


def _ends_without_newest(series: LossSeries, goal: Goal, now: float) -> list[float | None]:
    """What the forms would have predicted a little earlier: a prediction that moves with every epoch is worth less."""
    ends: list[float | None] = []
    for share in _LEFT_OUT[1:]:
        count = round(len(series.epochs) * (1 - share))
        if count >= POINTS_MIN and count < len(series.epochs):
            forms = fit_forms(series.epochs[:count] - series.restarted_at, series.losses[:count])
            ends += _ends(forms, series, goal, now)
    return ends


def _loose_end(fitted: Sequence[FittedForm], series: LossSeries, goal: Goal, now: float) -> float | None:
    """Where the loose threshold is reached; None when it is behind, or the goal is a loss."""
    if goal.threshold is None:
        return None
    loose = Goal(threshold=LOOSE_FACTOR * goal.threshold, patience=goal.patience)
    if find_end(series, loose) is not None:
        return None
    return _middle(_ends(fitted, series, loose, now), now)[0]


def _middle(ends: Sequence[float | None], now: float) -> tuple[float | None, float]:
    """Median end and the spread of the logarithm of what remains; none when half of the forms never end."""
    known = sorted(end for end in ends if end is not None)
    if len(known) * 2 <= len(ends):
        return None, math.inf
    remaining = np.log(np.maximum(np.array(known) - now, 0.5))
    # Forms that never end count as the longest ones: the median is over all of them.
    return known[len(ends) // 2], float(remaining.std())
