"""Remembers what a constructor of scikit-learn takes: a forest reads that from its signature anew for every tree.

Of a fit on few rows, as most of ours are, that is a third of the time; it depends on nothing but the class.
"""

from __future__ import annotations

import functools
import sys

_ASKED = "_get_param_names"


def remember_parameter_names() -> None:
    """Let scikit-learn read each signature once from now on, where a module has imported it."""
    base = sys.modules.get("sklearn.base")
    asked = vars(base.BaseEstimator).get(_ASKED) if base is not None else None
    # Nothing that scikit-learn promises: a version without it is only slower.
    if base is not None and isinstance(asked, classmethod):
        names = functools.cache(asked.__func__)
        setattr(base.BaseEstimator, _ASKED, classmethod(lambda kind: list(names(kind))))
