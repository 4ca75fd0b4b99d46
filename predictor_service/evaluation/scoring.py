"""Held-out predictions of a method and of the baselines, round by round, on the same rows."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import numpy as np

from cotenant.system_clock import steady_ms
from predictor_service.errors import PredictorError, TrainingDataError
from predictor_service.evaluation.baselines import BASELINES
from predictor_service.evaluation.leakage import drop_duplicate_architectures
from predictor_service.evaluation.splits import hold_out
from predictor_service.learning.learning_task import (
    BoolArray,
    FittedMethod,
    FloatArray,
    Forecast,
    IndexArray,
    LearningTask,
    Method,
)

Tell = Callable[[str], None]
_ROWS_OF_MINUTES: Final = 2_000
_SHOWN_AS_SECONDS: Final = 120
_SOONER: Final = "--rows-max 1000, --folds 3 or --time-limit-s 600"
"""Flags that bound an evaluation."""


@runtime_checkable
class PredictsEachCandidate(Protocol):
    """A fitted method that also returns what its candidates would have answered."""

    def predict_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """Predictions of every row by candidate."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One training and one test of it.

    Attributes:
        train: None where a stored model is scored and the baselines have nothing to learn from.
        test: Rows that `train` has no group of.
        rows: Place of each test row among all scored rows.
    """

    train: LearningTask | None
    test: LearningTask
    rows: IndexArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """A line of the scored table; `outer_mae` is None where the method does not report it.

    Attributes:
        rows_left_out: Training rows of a round that were too many for the candidate, at most.
    """

    name: str
    inner_mae: float
    outer_mae: float | None
    rows_left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOutPredictions:
    """Predictions for rows that were not trained on; a pair is predicted once for each of its held-out groups.

    Attributes:
        rows: Place of each prediction's row, shape (predictions,).
        forecast: Of the method.
        baselines: Predictions by name; None where a baseline does not apply.
        selected: The candidate that most rounds chose.
        candidates: Scored table, best inner error first.
    """

    rows: IndexArray
    forecast: Forecast
    baselines: Mapping[str, FloatArray | None]
    selected: str
    candidates: Sequence[ScoredCandidate]


def plan_rounds(learning_task: LearningTask, level: str, folds: int, seed: int) -> list[Round]:
    """Holds every group out once; the graph of what is held out is not learned from under another name.

    Raises:
        TrainingDataError: The rows cannot be split so.
    """
    splits = drop_duplicate_architectures(learning_task, hold_out(learning_task.groups(level), folds, seed), level)
    usable = [split for split in splits if len(split.train)]
    if not usable:
        raise TrainingDataError(
            f"every {level} has one and the same graph", remedy="choose --fold job, or give rows of other models"
        )
    return [Round(learning_task.subset(split.train), learning_task.subset(split.test), split.test) for split in usable]


def predict_rounds(  # noqa: PLR0917 (the last two report progress and end early)
    rounds: Sequence[Round],
    method: Method,
    level: str,
    seed: int,
    tell: Tell,
    is_over: Callable[[], bool] = lambda: False,
) -> HeldOutPredictions:
    """Fits and predicts every round.

    Args:
        rounds: At least one.
        method: What is judged; it never sees what was measured of a test row.
        level: What is unseen, one of `learning_task.LEVELS`.
        seed: Of the method and the baselines.
        tell: Receives the progress.
        is_over: Whether no further round may begin; the first one always does.

    Returns:
        Predictions for the rows of the rounds that were begun.

    Raises:
        TrainingDataError: The method or a baseline cannot learn from these rows.
    """
    collected = _Collected()
    finished: list[Round] = []
    begun_ms = steady_ms()
    tell(f"{len(rounds)} splits, each learned anew on one core; how long they take is known after the first")
    for number, part in enumerate(rounds, start=1):
        if finished and is_over():
            tell(f"out of time after {len(finished)} of {len(rounds)} rounds: the report is of their rows alone")
            break
        train_rows = len(part.train) if part.train else 0
        tell(f"{number} of {len(rounds)}: {train_rows} rows to learn from, {len(part.test)} to predict")
        if number == 1 and train_rows > _ROWS_OF_MINUTES:
            tell(f"so many rows may take minutes a split; for a first look: {_SOONER}")
        hidden = dataclasses.replace(part.test, measured=np.full(len(part.test), np.nan))
        fitted = _fit(method, part, seed)
        collected.forecasts.append(_checked(_predict(fitted, hidden, method), len(part.test), method))
        collected.note(fitted, hidden, part.test.measured)
        for name, baseline in BASELINES.items():
            values = None if part.train is None else baseline(part.train, hidden, level, seed)
            collected.baselines[name].append(values)
        finished.append(part)
        if number < len(rounds):
            tell(_time_left((steady_ms() - begun_ms) / 1_000, number, len(rounds) - number))
    return HeldOutPredictions(
        rows=np.concatenate([part.rows for part in finished]),
        forecast=_join(collected.forecasts),
        baselines={name: _concatenate(parts) for name, parts in collected.baselines.items()},
        selected=collected.selected.most_common(1)[0][0],
        candidates=collected.table(),
    )


def _time_left(taken_s: float, finished: int, left: int) -> str:
    expected_s = taken_s / finished * left
    is_short = expected_s < _SHOWN_AS_SECONDS
    shown = f"{expected_s:.0f} s to go" if is_short else f"{expected_s / 60:.0f} minutes to go (sooner: {_SOONER})"
    return f"{finished} of {finished + left} done after {taken_s:.0f} s; about {shown}"


@dataclass(slots=True)
class _Collected:
    forecasts: list[Forecast] = field(default_factory=list)
    baselines: dict[str, list[FloatArray | None]] = field(default_factory=lambda: defaultdict(list))
    selected: Counter[str] = field(default_factory=Counter)
    inner: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    outer: dict[str, list[FloatArray]] = field(default_factory=lambda: defaultdict(list))
    left_out: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def note(self, fitted: FittedMethod, hidden: LearningTask, measured: FloatArray) -> None:
        self.selected[fitted.selected] += 1
        for candidate in fitted.candidates:
            self.inner[candidate.name].append(candidate.inner_mae)
            self.left_out[candidate.name] = max(self.left_out[candidate.name], candidate.rows_left_out)
        if isinstance(fitted, PredictsEachCandidate):
            for name, values in fitted.predict_each(hidden).items():
                self.outer[name].append(np.abs(values - measured))

    def table(self) -> tuple[ScoredCandidate, ...]:
        lines = [
            ScoredCandidate(
                name=name,
                inner_mae=float(np.mean(errors)),
                outer_mae=float(np.concatenate(self.outer[name]).mean()) if name in self.outer else None,
                rows_left_out=self.left_out[name],
            )
            for name, errors in self.inner.items()
        ]
        return tuple(sorted(lines, key=lambda line: line.inner_mae))


def _fit(method: Method, part: Round, seed: int) -> FittedMethod:
    try:
        return method.fit(part.train or part.test.subset([]), seed)
    except PredictorError:
        raise
    except Exception as error:  # whatever a numeric library raises on unforeseen data
        raise TrainingDataError(
            f"{method.name} cannot learn from {len(part.train or ())} rows ({type(error).__name__}: {error})",
            remedy="give more rows, or hold out less with another --fold",
        ) from error


def _predict(fitted: FittedMethod, hidden: LearningTask, method: Method) -> Forecast:
    try:
        return fitted.predict(hidden)
    except PredictorError:
        raise
    except Exception as error:  # as above
        raise TrainingDataError(
            f"{method.name} cannot predict these {len(hidden)} rows ({type(error).__name__}: {error})",
            remedy="compare the columns of the rows it learned from with those of the rows to predict",
        ) from error


def _checked(forecast: Forecast, rows: int, method: Method) -> Forecast:
    for name in ("value", "lower_90", "upper_90", "upper_99"):
        values = np.asarray(getattr(forecast, name))
        if values.shape != (rows,) or not np.all(np.isfinite(values)):
            raise TrainingDataError(
                f"{method.name} answered {name} that is not a finite number for each of {rows} rows",
                remedy="a method must answer every row; correct the method",
            )
    return forecast


def _join(forecasts: Sequence[Forecast]) -> Forecast:
    in_domain: BoolArray = np.concatenate([part.in_domain for part in forecasts])
    names = ("value", "lower_90", "upper_90", "upper_99")
    return Forecast(
        **{name: np.concatenate([getattr(part, name) for part in forecasts]) for name in names}, in_domain=in_domain
    )


def _concatenate(parts: Sequence[FloatArray | None]) -> FloatArray | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None
