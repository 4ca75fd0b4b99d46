"""Fits that are not about choosing among all candidates, or about how well many trees do, take a part of the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from sklearn.ensemble import ExtraTreesRegressor

from predictor_service.fitting import competition
from predictor_service.regressors import candidates
from predictor_service.regressors.boosted_trees import BoostedTrees

NAMES: Final = ("constant_correction", "ridge", "extra_trees")
"""One of each kind."""
_TREES_LESS: Final = 5
_LEARNING_RATE_MAX: Final = 0.3
"""The library's own."""


class FewBoostedTrees(BoostedTrees):
    """A fifth of the trees, each of which corrects as much as five."""

    def __init__(
        self, *, seed: int, n_estimators: int, learning_rate: float = _LEARNING_RATE_MAX, **parameters: Any
    ) -> None:
        rate = min(_TREES_LESS * learning_rate, _LEARNING_RATE_MAX)
        super().__init__(seed=seed, n_estimators=n_estimators // _TREES_LESS, learning_rate=rate, **parameters)


def few_extra_trees(*, n_estimators: int, **parameters: Any) -> Any:
    """A fifth of the trees."""
    return ExtraTreesRegressor(n_estimators=n_estimators // _TREES_LESS, **parameters)


@contextmanager
def few_trees() -> Iterator[None]:
    """Lets every forest of this process be a small one, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "BoostedTrees", FewBoostedTrees)
        patch.setattr(candidates, "ExtraTreesRegressor", few_extra_trees)
        yield


@contextmanager
def few_candidates() -> Iterator[None]:
    """Lets every fit of this process try these only, and small forests, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch, few_trees():
        patch.setattr(competition, "CANDIDATES", {name: candidates.CANDIDATES[name] for name in NAMES})
        yield
