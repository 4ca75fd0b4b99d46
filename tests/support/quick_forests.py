"""Remembers what a constructor of scikit-learn takes: a forest reads that from its signature anew for every tree.

Of a fit on few rows, as most of ours are, that is a third of the time; it depends on nothing but the class.
"""

from __future__ import annotations

import sys
from typing import Any

_ASKED = "_get_param_names"


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
