"""Intervals that are wide where a model errs much and narrow where it does not.

One quantile of residuals for all covers on average but not the large jobs, whose errors are not those of the
small ones. Residuals are therefore divided by a spread that is learned from held-out residuals, again on held-out
groups, and the conformal quantile is taken of what remains.

Source: Lei, G'Sell, Rinaldo, Tibshirani, Wasserman, "Distribution-free predictive inference for regression", Journal
of the American Statistical Association 113 (2018), section 5.2 (locally weighted conformal inference).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.conformal import ConformalBounds, calibrate, calibrate_groups
from predictor_service.selection.folds import grouped_folds

_ROWS_MIN: Final = 60
_OUTLIER_QUANTILE: Final = 0.98
_SPREAD_MAX_QUANTILES: Final = (0.9, 0.95, 0.98, 1.0)
"""No spread is above one of these quantiles of the learned ones: in logarithms a wide one times a high quantile
explodes. The quantile that costs least competes for it."""
_CHOSEN_FOR: Final = 0.99
_EXPONENT_MAX: Final = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadSearch:
    """What competes to scale residuals: the combination whose upper bound costs least on held-out rows wins.

    Attributes:
        leaf_rows: Sizes of the trees' leaves.
        exponents: Powers of the learned spread: below 1 it is trusted less, above 1 more.
        folds_max: Folds that the spread is held out by, at least 2.
        lowest_ratio: No spread is below this share of the median residual: rows that fit by chance narrow no bound.
        trees: Of every spread.
    """

    leaf_rows: tuple[int, ...] = (4, 16)
    exponents: tuple[float, ...] = (1.0,)
    folds_max: int = 4
    lowest_ratio: float = 0.35
    trees: int = 60


BRIEF: Final = SpreadSearch()
"""For spreads that are stored and served, which have no exponent."""
COMPACT: Final = SpreadSearch(leaf_rows=(16,), trees=30)
"""For spreads that come with the program: a tenth of the size."""
THOROUGH: Final = SpreadSearch(leaf_rows=(2, 4), exponents=(0.8, 1.0, 1.2), folds_max=6, lowest_ratio=1.0)
THOROUGH_SMALL: Final = replace(THOROUGH, trees=20)
"""The same for what comes with the program."""


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
        exponent: Power of the spread that residuals were divided by.
        cost: Mean of e to the upper bound minus the residual, over the residuals that taught it: how many times the
            measured value a bound is when residuals are logarithms, and nearly so else.
    """

    plain: ConformalBounds
    scores: ConformalBounds
    spread: Any  # an estimator of scikit-learn, which has no types, or None
    lowest: float
    highest: float
    exponent: float
    cost: float

    def interval(self, table: FloatArray, confidence: float) -> FloatArray:
        """Half the width of the central interval of every row, shape (rows,), in the residuals' scale."""
        local = self._spread(table) * self.scores.half_width(confidence)
        return local if self.scores.is_supported(confidence) else np.minimum(local, self.plain.half_width(confidence))

    def upper(self, table: FloatArray, confidence: float) -> FloatArray:
        """What is added to a prediction so that this share of measured values stays below, shape (rows,)."""
        local = self._spread(table) * self.scores.upper_offset(confidence)
        return local if self.scores.is_supported(confidence) else np.minimum(local, self.plain.upper_offset(confidence))

    def _spread(self, table: FloatArray) -> FloatArray:
        spread = np.minimum(_predict_spread(self.spread, table, self.lowest), self.highest)
        return np.asarray(spread**self.exponent)


def learn_bounds(
    table: FloatArray,
    residuals: FloatArray,
    groups: Sequence[frozenset[str]],
    seed: int,
    *,
    one_vote_per_group: bool = False,
    margins: FloatArray | None = None,
    search: SpreadSearch = BRIEF,
) -> LocalBounds:
    """Learns spread and quantiles from residuals of held-out rows.

    Leaves, power and cap of the spread are those with which the upper bound costs least on these residuals. They are
    never chosen on rows that judge the bound.

    Args:
        table: Columns of the rows, shape (rows, columns), finite.
        residuals: Measured minus predicted by models that had not seen the row's group, shape (rows,), at least one.
        groups: Of each row.
        seed: Of the trees.
        one_vote_per_group: Quantiles are those of groups, not of rows.
        margins: What the upper bound of each row has beyond its part of the spread, shape (rows,); None = nothing.
        search: What competes.
    """
    votes = _Votes(groups, one_vote_per_group)
    plain = votes.of_groups(residuals)
    beyond = np.zeros(len(residuals)) if margins is None else margins
    size = np.abs(residuals)
    folds = grouped_folds(groups, folds_max=search.folds_max)
    if len(residuals) < _ROWS_MIN or not folds or not size.any():
        cost = _cost(residuals, plain.upper_offset(_CHOSEN_FOR))
        return LocalBounds(plain=plain, scores=plain, spread=None, lowest=1.0, highest=1.0, exponent=1.0, cost=cost)
    capped = np.minimum(size, np.quantile(size, _OUTLIER_QUANTILE))
    lowest = max(search.lowest_ratio * float(np.median(capped)), 1e-12)
    ways: list[_Scaled] = []
    for leaf_rows in search.leaf_rows:
        held_out = np.zeros(len(residuals))
        for fold in folds:
            spread = _fit_spread(table[fold.train], capped[fold.train], leaf_rows, search.trees, seed)
            held_out[fold.test] = _predict_spread(spread, table[fold.test], lowest)
        ways += _scale_each(residuals, held_out, beyond, votes, leaf_rows=leaf_rows, exponents=search.exponents)
    chosen = min(ways, key=lambda way: way.cost)
    return LocalBounds(
        plain=plain,
        scores=chosen.scores,
        spread=_fit_spread(table, capped, chosen.leaf_rows, search.trees, seed),
        lowest=lowest,
        highest=chosen.highest,
        exponent=chosen.exponent,
        cost=chosen.cost,
    )


@dataclass(frozen=True, slots=True)
class _Votes:
    """Who is counted in quantiles; see `learn_bounds`."""

    groups: Sequence[frozenset[str]]
    one_vote_per_group: bool

    def of_groups(self, residuals: FloatArray) -> ConformalBounds:
        """The quantiles of groups that were held out."""
        if self.one_vote_per_group:
            return calibrate_groups(residuals, self.groups)
        return calibrate(residuals, len(frozenset[str]().union(*self.groups)))


@dataclass(frozen=True, slots=True)
class _Scaled:
    """One way to scale residuals: its quantiles, and what its upper bound costs."""

    scores: ConformalBounds
    leaf_rows: int
    highest: float
    exponent: float
    cost: float


def _scale_each(
    residuals: FloatArray,
    spread: FloatArray,
    margins: FloatArray,
    votes: _Votes,
    *,
    leaf_rows: int,
    exponents: Sequence[float],
) -> list[_Scaled]:
    ways = []
    for quantile, exponent in itertools.product(_SPREAD_MAX_QUANTILES, exponents):
        highest = float(np.quantile(spread, quantile))
        unit = np.minimum(spread, highest) ** exponent
        scores = votes.of_groups((residuals - margins) / unit)
        cost = _cost(residuals, margins + unit * scores.upper_offset(_CHOSEN_FOR))
        ways.append(_Scaled(scores, leaf_rows, highest, exponent, cost))
    return ways


def _cost(residuals: FloatArray, upper: FloatArray | float) -> float:
    return float(np.exp(np.clip(upper - residuals, -_EXPONENT_MAX, _EXPONENT_MAX)).mean())


def _fit_spread(table: FloatArray, size: FloatArray, leaf_rows: int, count: int, seed: int) -> Any:  # noqa: ANN401 (no types)
    trees = ExtraTreesRegressor(
        n_estimators=count, min_samples_leaf=leaf_rows, max_features=0.4, random_state=seed, n_jobs=1
    )
    return trees.fit(table, size)


def _predict_spread(spread: Any, table: FloatArray, lowest: float) -> FloatArray:  # noqa: ANN401 (as above)
    if spread is None:
        return np.full(len(table), lowest)
    return np.maximum(np.asarray(spread.predict(table), dtype=np.float64), lowest)
