"""Intervals that are wide where a model errs much and narrow where it does not.

One quantile of residuals for all covers on average and betrays the large jobs, whose errors are not those of the
small ones. Residuals are therefore divided by a spread that is learned from held-out residuals, again on held-out
groups, and the conformal quantile is taken of what remains.

Source: Lei, G'Sell, Rinaldo, Tibshirani, Wasserman, "Distribution-free predictive inference for regression", Journal
of the American Statistical Association 113 (2018), section 5.2 (locally weighted conformal inference).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.conformal import ConformalBounds, calibrate, calibrate_groups
from predictor_service.selection.folds import IndexArray, grouped_folds

_ROWS_MIN: Final = 60
_LEAF_ROWS: Final = (4, 16)
"""Sizes of the leaves that compete."""
_TREES: Final = 60
_FOLDS_MAX: Final = 4
_OUTLIER_QUANTILE: Final = 0.98
_SPREAD_MIN_RATIO: Final = 0.35
"""No spread is below this share of the median residual: a few lucky rows do not make a promise."""
_SPREAD_MAX_QUANTILES: Final = (0.9, 0.95, 0.98, 1.0)
"""No spread is above one of these quantiles of the learned ones: in logarithms a wide one times a high quantile
explodes. The quantile that costs least competes for it."""
_CHOSEN_FOR: Final = 0.99
_EXPONENT_MAX: Final = 50.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalBounds:
    """Learned spread and the residuals in units of it.

    Attributes:
        plain: The residuals as they are. Where groups are too few for a quantile, the largest times the safety factor
            bounds every row: in units of the spread it would explode.
        scores: Residuals divided by their spread.
        spread: Predicts the size of residuals from the columns; None = the same everywhere.
        lowest: Smallest spread, above 0.
        highest: Largest spread, at least `lowest`.
    """

    plain: ConformalBounds
    scores: ConformalBounds
    spread: Any  # an estimator of scikit-learn, which has no types, or None
    lowest: float
    highest: float

    def interval(self, table: FloatArray, confidence: float) -> FloatArray:
        """Half the width of the central interval of every row, shape (rows,), in the residuals' scale."""
        local = self._spread(table) * self.scores.half_width(confidence)
        return local if self.scores.is_supported(confidence) else np.minimum(local, self.plain.half_width(confidence))

    def upper(self, table: FloatArray, confidence: float) -> FloatArray:
        """What is added to a prediction so that this share of measured values stays below, shape (rows,)."""
        local = self._spread(table) * self.scores.upper_offset(confidence)
        return local if self.scores.is_supported(confidence) else np.minimum(local, self.plain.upper_offset(confidence))

    def _spread(self, table: FloatArray) -> FloatArray:
        return np.minimum(_predict_spread(self.spread, table, self.lowest), self.highest)


def learn_bounds(
    table: FloatArray,
    residuals: FloatArray,
    groups: Sequence[frozenset[str]],
    seed: int,
    *,
    one_vote_per_group: bool = False,
) -> LocalBounds:
    """Learns spread and quantiles from residuals of held-out rows.

    Leaves and cap of the spread are those with which the upper bound costs least on these residuals. They are never
    chosen on rows that judge the bound.

    Args:
        table: Columns of the rows, shape (rows, columns), finite.
        residuals: Measured minus predicted by models that had not seen the row's group, shape (rows,), at least one.
        groups: Of each row.
        seed: Of the trees.
        one_vote_per_group: Quantiles are those of groups, not of rows.
    """
    count = len(frozenset[str]().union(*groups))

    def vote(each: FloatArray) -> ConformalBounds:
        return calibrate_groups(each, groups) if one_vote_per_group else calibrate(each, count)

    plain = vote(residuals)
    size = np.abs(residuals)
    folds = grouped_folds(groups, folds_max=_FOLDS_MAX)
    if len(residuals) < _ROWS_MIN or not folds or not size.any():
        return LocalBounds(plain=plain, scores=plain, spread=None, lowest=1.0, highest=1.0)
    capped = np.minimum(size, np.quantile(size, _OUTLIER_QUANTILE))
    lowest = max(_SPREAD_MIN_RATIO * float(np.median(capped)), 1e-12)
    chosen: _Scaled | None = None
    for leaf_rows in _LEAF_ROWS:
        held_out = np.zeros(len(residuals))
        for fold in folds:
            spread = _fit_spread(table, capped, fold.train, leaf_rows, seed)
            held_out[fold.test] = _predict_spread(spread, table[fold.test], lowest)
        for quantile in _SPREAD_MAX_QUANTILES:
            scaled = _scale(residuals, held_out, vote, leaf_rows, max(lowest, float(np.quantile(held_out, quantile))))
            chosen = scaled if chosen is None or scaled.cost < chosen.cost else chosen
    assert chosen is not None  # there is at least one of each
    return LocalBounds(
        plain=plain,
        scores=chosen.scores,
        spread=_fit_spread(table, capped, np.arange(len(size)), chosen.leaf_rows, seed),
        lowest=lowest,
        highest=chosen.highest,
    )


@dataclass(frozen=True, slots=True)
class _Scaled:
    """One way to scale residuals: its quantiles, and what its upper bound costs."""

    scores: ConformalBounds
    leaf_rows: int
    highest: float
    cost: float


def _scale(
    residuals: FloatArray,
    spread: FloatArray,
    vote: Callable[[FloatArray], ConformalBounds],
    leaf_rows: int,
    highest: float,
) -> _Scaled:
    """The cost is the mean of the bound over the measured value when residuals are logarithms, else nearly so."""
    capped = np.minimum(spread, highest)
    scores = vote(residuals / capped)
    beyond = np.clip(capped * scores.upper_offset(_CHOSEN_FOR) - residuals, -_EXPONENT_MAX, _EXPONENT_MAX)
    return _Scaled(scores, leaf_rows, highest, float(np.exp(beyond).mean()))


def _fit_spread(table: FloatArray, size: FloatArray, rows: IndexArray, leaf_rows: int, seed: int) -> Any:  # noqa: ANN401 (no types)
    trees = ExtraTreesRegressor(
        n_estimators=_TREES, min_samples_leaf=leaf_rows, max_features=0.4, random_state=seed, n_jobs=1
    )
    return trees.fit(table[rows], size[rows])


def _predict_spread(spread: Any, table: FloatArray, lowest: float) -> FloatArray:  # noqa: ANN401 (as above)
    if spread is None:
        return np.full(len(table), lowest)
    return np.maximum(np.asarray(spread.predict(table), dtype=np.float64), lowest)
