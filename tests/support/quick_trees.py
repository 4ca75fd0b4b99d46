"""Spares trees what their libraries do anew for each one; of a fit on few rows, as most of ours are, a third.

scikit-learn reads from its signature what a constructor takes, which depends on nothing but the class. xgboost asks for
names of features, which stay those of the matrix, and looks at scores although no rows are held back for them.
"""

from __future__ import annotations

import sys
from typing import Any

_ASKED = "_get_param_names"
_NAMED, _SCORED = "_assign_dmatrix_features", "after_iteration"
_MATRIX = "matrix_of_named_features"


def remember_parameter_names() -> None:
    """Let scikit-learn read each signature once from now on, where a module has imported it."""
    base = sys.modules.get("sklearn.base")
    asked = vars(base.BaseEstimator).get(_ASKED) if base is not None else None
    # Nothing that scikit-learn promises: a version without it is only slower.
    if base is None or not isinstance(asked, classmethod):
        return
    read, names = asked.__func__, dict[type[Any], list[str]]()

    def read_once(kind: type[Any], /) -> list[str]:
        if kind not in names:
            names[kind] = read(kind)
        return list(names[kind])

    setattr(base.BaseEstimator, _ASKED, classmethod(read_once))


def ask_once_per_boosting() -> None:
    """Let xgboost look at names of features once per matrix, and at scores where rows are held back for them."""
    core, callback = sys.modules.get("xgboost.core"), sys.modules.get("xgboost.callback")
    named = vars(core.Booster).get(_NAMED) if core is not None else None
    scored = vars(callback.CallbackContainer).get(_SCORED) if callback is not None else None
    # Nothing that xgboost promises either.
    if core is None or callback is None or named is None or scored is None or named.__module__ == __name__:
        return

    def name_once(booster: Any, matrix: Any) -> None:
        if vars(booster).get(_MATRIX) != id(matrix):
            named(booster, matrix)
            vars(booster)[_MATRIX] = id(matrix)

    def score(container: Any, model: Any, epoch: int, matrix: Any, held_back: Any) -> bool:
        is_watched = held_back or any(not isinstance(one, callback.EvaluationMonitor) for one in container.callbacks)
        return bool(is_watched) and scored(container, model, epoch, matrix, held_back)

    setattr(core.Booster, _NAMED, name_once)
    setattr(callback.CallbackContainer, _SCORED, score)
