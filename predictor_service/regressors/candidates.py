"""The regressors that compete for every target.

The first four are the ones that AIP compares; the others are ours. Parameters are modest because a new cluster has
tens of rows, not thousands.

Source: OJPP paper, section 4.5 (AIP: linear regression, SVR, decision tree, k-nearest neighbours).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from predictor_service.regressors.boosted_trees import BoostedTrees
from predictor_service.regressors.gaussian_process import GaussianProcess
from predictor_service.regressors.interface import Regressor
from predictor_service.regressors.quadratic_ridge import QuadraticRidge
from predictor_service.regressors.scikit import ScikitRegressor

CandidateBuilder = Callable[[int], Regressor]
"""From a seed to an unfitted regressor."""


def _constant(seed: int) -> Regressor:
    """The mean of the target: what the physics alone says, rescaled. Whoever loses against it has learned nothing."""
    return ScikitRegressor(Ridge(alpha=1e9))


def _linear(seed: int) -> Regressor:
    return ScikitRegressor(LinearRegression())


def _support_vectors(seed: int) -> Regressor:
    return ScikitRegressor(SVR(C=3.0, epsilon=0.02))


def _decision_tree(seed: int) -> Regressor:
    return ScikitRegressor(DecisionTreeRegressor(min_samples_leaf=3, random_state=seed))


def _nearest_neighbours(seed: int) -> Regressor:
    return ScikitRegressor(KNeighborsRegressor(n_neighbors=3))


def _ridge(seed: int) -> Regressor:
    return ScikitRegressor(Ridge(alpha=10.0))


def _ridge_with_interactions(seed: int) -> Regressor:
    return QuadraticRidge(alpha=30.0)


def _smooth_process(seed: int) -> Regressor:
    return GaussianProcess(seed=seed)


def _random_forest(seed: int) -> Regressor:
    return ScikitRegressor(
        RandomForestRegressor(n_estimators=60, max_depth=8, min_samples_leaf=2, random_state=seed, n_jobs=1)
    )


def _extra_trees(seed: int) -> Regressor:
    return ScikitRegressor(
        ExtraTreesRegressor(n_estimators=60, min_samples_leaf=2, max_features=0.5, random_state=seed, n_jobs=1)
    )


def _boosted_trees(seed: int) -> Regressor:
    return BoostedTrees(seed=seed)


CANDIDATES: Final[Mapping[str, CandidateBuilder]] = {
    "linear_regression": _linear,
    "support_vector_regression": _support_vectors,
    "decision_tree": _decision_tree,
    "nearest_neighbours": _nearest_neighbours,
    "constant_correction": _constant,
    "ridge": _ridge,
    "ridge_with_interactions": _ridge_with_interactions,
    "smooth_process": _smooth_process,
    "random_forest": _random_forest,
    "extra_trees": _extra_trees,
    "boosted_trees": _boosted_trees,
}
"""In order of preference among equals; simpler first within each family."""
