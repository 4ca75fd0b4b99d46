"""From the points that a job reports to a curve that can be fitted: one value per epoch, no outliers, between 0 and 1.

Source: Optimus, section 3.1 (data preprocessing) and section 7 (learning rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.errors import invalid_field

FloatArray = npt.NDArray[np.float64]

POINTS_MAX: Final = 100_000
EPOCHS_MAX: Final = 500
"""Longer curves are averaged into so many points."""
PROGRESS_EPOCHS_MAX: Final = 1e9
_WINDOW: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossSeries:
    """A curve ready to be fitted.

    Attributes:
        epochs: Progress since the start of the job, ascending, shape (points,).
        losses: Divided by the largest loss of the whole job, shape (points,).
        restarted_at: Epoch of the last drop of the learning rate; what is fitted began there.
        measured_until: Epoch of the job's own last point; what lies beyond comes from an earlier job.
        largest: The loss that became 1.
        outliers: Points that were replaced by the mean of the adjacent ones.
    """

    epochs: FloatArray
    losses: FloatArray
    restarted_at: float
    measured_until: float
    largest: float
    outliers: int

    @property
    def own_points(self) -> int:
        """How many of the points are the job's own."""
        return int(np.searchsorted(self.epochs, self.measured_until, side="right"))


def prepare_losses(
    progress: npt.ArrayLike,
    losses: npt.ArrayLike,
    epoch_length: float = 1.0,
    rate_drops: Sequence[float] = (),
    prior: tuple[npt.ArrayLike, npt.ArrayLike] = ((), ()),
) -> LossSeries:
    """Prepares what a job reported.

    Args:
        progress: Steps or epochs done at each point, ascending, from 0.
        losses: Loss at each point, 0 or more. For an accuracy, hand in 1 - accuracy.
        epoch_length: Progress that makes one epoch (steps per epoch, when progress counts steps).
        rate_drops: Progress at which the learning rate was lowered. Only points after the last one are kept: training
            goes on like a new job, but the losses stay measured against the largest one of all.
        prior: Progress and losses of an earlier job of the same kind; they stand in for what this one has not trained
            yet.

    Raises:
        InvalidRequestError: A value is not finite, negative, or out of order.
    """
    own, values = np.asarray(progress, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    earlier, earlier_values = (np.asarray(part, dtype=np.float64) for part in prior)
    for field, at, what in (("points", own, values), ("prior_points", earlier, earlier_values)):
        _check_points(field, at, what)
    until = float(own[-1]) if len(own) else 0.0
    _check_epochs(epoch_length, rate_drops, max(until, float(earlier[-1]) if len(earlier) else 0.0))
    largest = float(values.max(initial=0.0)) or float(earlier_values.max(initial=0.0)) or 1.0
    beyond = earlier > until
    times, values = np.concatenate([own, earlier[beyond]]), np.concatenate([values, earlier_values[beyond]])
    restarted_at = max((drop for drop in rate_drops if drop <= until), default=0.0)
    kept = times >= restarted_at
    epochs, means = average_per_epoch(times[kept] / epoch_length, values[kept] / largest)
    cleaned, outliers = replace_outliers(means)
    return LossSeries(
        epochs=epochs,
        losses=cleaned,
        restarted_at=restarted_at / epoch_length,
        measured_until=until / epoch_length,
        largest=largest,
        outliers=outliers,
    )


def average_per_epoch(epochs: FloatArray, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Averages the points of one epoch (or of several, beyond `EPOCHS_MAX`) into one at its mean progress."""
    if not len(epochs):
        return epochs, losses
    width = max(1.0, (epochs[-1] - epochs[0]) / EPOCHS_MAX)
    _, member, counts = np.unique(np.ceil(epochs / width), return_inverse=True, return_counts=True)
    return np.bincount(member, epochs) / counts, np.bincount(member, losses) / counts


def replace_outliers(losses: FloatArray) -> tuple[FloatArray, int]:
    """Replaces points outside [least of the next 5, largest of the previous 5] by the mean of the adjacent ones.

    Returns:
        The losses, and how many were replaced.
    """
    cleaned, outliers = losses.copy(), 0
    for index in range(1, len(losses) - 1):
        before = losses[max(0, index - _WINDOW) : index]
        after = losses[index + 1 : index + 1 + _WINDOW]
        if not after.min() <= losses[index] <= before.max():
            cleaned[index] = (losses[index - 1] + losses[index + 1]) / 2
            outliers += 1
    return cleaned, outliers


def _check_points(field: str, times: FloatArray, values: FloatArray) -> None:
    if len(times) > POINTS_MAX:
        raise invalid_field(field, f"{len(times)} points", f"send at most {POINTS_MAX}, e.g. the mean of every epoch")
    if not (np.isfinite(times).all() and np.isfinite(values).all()):
        raise invalid_field(field, "a point is not finite", "leave such points out")
    if (np.diff(times, prepend=0.0) < 0).any():
        raise invalid_field(field, "progress falls or is negative", "send points in the order of training, from 0")
    if (values < 0).any():
        raise invalid_field(field, "a loss is negative", "send a loss of 0 or more, or an accuracy within 0 to 1")


def _check_epochs(epoch_length: float, rate_drops: Sequence[float], until: float) -> None:
    if not (np.isfinite(epoch_length) and epoch_length > 0):
        raise invalid_field(
            "epoch_length", f"epoch_length is {epoch_length:g}", "use the progress that makes one epoch"
        )
    if until > PROGRESS_EPOCHS_MAX * epoch_length:
        raise invalid_field(
            "epoch_length", f"the curve has more than {PROGRESS_EPOCHS_MAX:g} epochs", "use longer epochs"
        )
    drops = np.asarray(rate_drops, dtype=np.float64)
    if not (np.isfinite(drops) & (drops >= 0)).all():
        raise invalid_field(
            "rate_drops", "one is negative or not finite", "send the progress where the rate was lowered"
        )
