"""The regressors that compete, in one table by what is known of the rows.

`CANDIDATES` learn what a service stores, every target alike: the first four are the ones that AIP compares, the others
are ours. Parameters are modest because a new cluster has tens of rows, not thousands. `TABLE_CANDIDATES` correct
physics of jobs alone where a public table publishes columns of its own, hundreds at times; `PAIR_TABLE_CANDIDATES`
learn the columns of such a table's pairs, as do the processes of `table_methods.slowdown_candidates`.

Source: OJPP paper, section 4.5 (AIP: linear regression, SVR, decision tree, k-nearest neighbours).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sklearn.dummy import DummyRegressor
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LinearRegression, Ridge, RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from predictor_service.regressors.boosted_trees import BoostedTrees
from predictor_service.regressors.gaussian_process import GaussianProcess
from predictor_service.regressors.interface import Regressor
from predictor_service.regressors.scikit import ScikitRegressor

SUPPORT_ROWS_MAX: Final = 4_000
"""Support vectors of ten thousand rows take twenty seconds a fold, of four thousand five."""
CandidateBuilder = Callable[[int], Regressor]
"""From a seed to an unfitted regressor."""


def _constant(seed: int) -> Regressor:
    """The mean of the target: the analytical estimate alone, rescaled. One that loses to it has learned nothing."""
    return ScikitRegressor(Ridge(alpha=1e9))


def _linear(seed: int) -> Regressor:
    return ScikitRegressor(LinearRegression())


def _support_vectors(seed: int) -> Regressor:
    return ScikitRegressor(SVR(C=3.0, epsilon=0.02), rows_max=SUPPORT_ROWS_MAX, seed=seed)


def _decision_tree(seed: int) -> Regressor:
    return ScikitRegressor(DecisionTreeRegressor(min_samples_leaf=3, random_state=seed))


def _nearest_neighbours(seed: int) -> Regressor:
    return ScikitRegressor(KNeighborsRegressor(n_neighbors=3))


def _ridge(seed: int) -> Regressor:
    return ScikitRegressor(Ridge(alpha=10.0))


def _smooth_process(seed: int) -> Regressor:
    return GaussianProcess(seed=seed)


def _forest(trees: int, *, standardizes: bool = True) -> CandidateBuilder:
    def build(seed: int) -> Regressor:
        return ScikitRegressor(
            ExtraTreesRegressor(n_estimators=trees, min_samples_leaf=2, max_features=0.5, random_state=seed, n_jobs=1),
            standardizes=standardizes,
        )

    return build


def _boosted_trees(seed: int) -> Regressor:
    return BoostedTrees(
        seed=seed, n_estimators=80, max_depth=3, learning_rate=0.1, subsample=0.9, colsample_bytree=0.8,
        min_child_weight=2, tree_method="exact",
    )  # fmt: skip


CANDIDATES: Final[Mapping[str, CandidateBuilder]] = {
    "linear_regression": _linear,
    "support_vector_regression": _support_vectors,
    "decision_tree": _decision_tree,
    "nearest_neighbours": _nearest_neighbours,
    "constant_correction": _constant,
    "ridge": _ridge,
    "smooth_process": _smooth_process,
    "extra_trees": _forest(60),
    "boosted_trees": _boosted_trees,
}
"""In order of preference among equals; simpler first within each family."""
STEADIER_ONCE_CHOSEN: Final[Mapping[str, CandidateBuilder]] = {"extra_trees": _forest(240)}
"""They are served where shares of time are learned from at most so many rows as below, once the smaller forest has won:
on our own set utilization errs .01088, .01101 and .01095 by three seeds of sixty trees, .01086, .01082 and .01088 of
240. A fold's forest stays small: there are a hundred for each one that is served."""
STEADIER_ROWS_MAX: Final = 1_000
"""A forest over more rows is steadier of itself, and four times as large a file."""
FASTER_FOR_PAIRS: Final[Mapping[str, CandidateBuilder]] = {"extra_trees": _forest(20, standardizes=False)}
"""They stand in where slowdowns are learned: a question may ask for forty thousand pairs, which sixty trees answer in
0.26 s and twenty in 0.09 s (boosted ones in 0.05 s). Twenty err no more: MAE on families not seen 0.096, not 0.097."""


def _deep_boosted_trees(seed: int) -> BoostedTrees:
    return BoostedTrees(
        seed=seed, n_estimators=300, max_depth=4, learning_rate=0.06, subsample=0.8, colsample_bytree=0.7,
        min_child_weight=2,
    )  # fmt: skip


SMALL_CANDIDATES: Final[Mapping[str, CandidateBuilder]] = {
    **{name: builder for name, builder in CANDIDATES.items() if name != "extra_trees"},
    "deep_boosted_trees": _deep_boosted_trees,
}
"""For models that come with the program: a forest over thousands of rows takes megabytes, boosted trees a tenth."""

SMALL_MEMORY_CANDIDATES: Final[Mapping[str, CandidateBuilder]] = {**CANDIDATES, "extra_trees": _forest(40)}
"""Memory decides what fits, and one public model of it speaks for many device types: it may be a small forest."""

BOUND_PARTNERS: Final[Mapping[str, CandidateBuilder]] = {
    "extra_trees": _forest(60),
    "deep_boosted_trees": _deep_boosted_trees,
}
"""May be joined with the chosen candidate for the 99 % bound of familiar networks."""

UNCORRECTED: Final = "uncorrected"
"""The analytical estimate as it is."""


def uncorrected(seed: int) -> Regressor:
    """A model that answers 0 in the learned scale; it competes where the analytical estimate was learned itself."""
    return ScikitRegressor(Ridge(alpha=1e12, fit_intercept=False))


CONSTANT: Final = "constant"
"""Physics times one factor."""
PUBLISHED: Final = "published_columns"
"""Sees the published columns alone."""
_USUAL_ERROR: Final = 0.05
"""In the learned scale; of larger errors steady trees follow the middle, not the mean, so that the few rows that are
far off do not pull predictions near them. Where larger errors are usual they hardly learn, and others answer."""

TableBuilder = Callable[[int], Any]
"""From a seed to something with `fit` and `predict` that is never stored."""


def untuned_trees(seed: int) -> BoostedTrees:
    """The usual first attempt: the library's own defaults; the baseline of every evaluation too."""
    return BoostedTrees(seed=seed, n_estimators=150)


def _median(seed: int) -> Any:  # noqa: ANN401 (the library has no types)
    return DummyRegressor(strategy="median")


def _tuned_ridge(seed: int) -> Any:  # noqa: ANN401 (as above)
    return make_pipeline(StandardScaler(), RidgeCV(alphas=(1.0, 10.0, 100.0, 1000.0)))


def _deep_extra_trees(seed: int) -> Any:  # noqa: ANN401 (as above)
    return ExtraTreesRegressor(n_estimators=80, max_features=0.5, random_state=seed, n_jobs=1)


def _many_boosted_trees(seed: int, **loss: Any) -> BoostedTrees:  # noqa: ANN401 (the library's own)
    return BoostedTrees(
        seed=seed, n_estimators=600, max_depth=5, learning_rate=0.04, subsample=0.7, colsample_bytree=0.4,
        min_child_weight=2, **loss,
    )  # fmt: skip


def _steady_trees(seed: int) -> BoostedTrees:
    return _many_boosted_trees(seed, objective="reg:pseudohubererror", huber_slope=_USUAL_ERROR)


TABLE_CANDIDATES: Final[Mapping[str, TableBuilder]] = {
    CONSTANT: _median,
    "ridge": _tuned_ridge,
    "extra_trees": _deep_extra_trees,
    "boosted_trees": _many_boosted_trees,
    "steady_trees": _steady_trees,
    PUBLISHED: untuned_trees,
}
"""Trees of both kinds come first in most sets; the ridge wins where rows are few, the constant where there is nothing
to learn, and trees on nothing but what the set publishes where so few architectures were measured that figures of
their graphs only name them."""


def _pair_extra_trees(seed: int) -> Any:  # noqa: ANN401 (as above)
    return ExtraTreesRegressor(n_estimators=100, min_samples_leaf=2, random_state=seed, n_jobs=1)


def _pair_interactions(seed: int) -> Any:  # noqa: ANN401 (as above)
    return make_pipeline(
        StandardScaler(), PolynomialFeatures(2, include_bias=False), StandardScaler(), RidgeCV((1.0, 10.0, 100.0, 1e3))
    )


def _pair_neighbours(seed: int) -> Any:  # noqa: ANN401 (as above)
    return make_pipeline(StandardScaler(), KNeighborsRegressor(n_neighbors=4, weights="distance"))


PAIR_TABLE_CANDIDATES: Final[Mapping[str, TableBuilder]] = {
    "ridge_with_interactions": _pair_interactions,
    "nearest_neighbours": _pair_neighbours,
    "extra_trees": _pair_extra_trees,
    "boosted_trees": _deep_boosted_trees,
}
