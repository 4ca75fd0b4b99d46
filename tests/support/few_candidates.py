"""Fits that are not about choosing among all candidates try three of them: one of each kind, a third of the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from predictor_service.fitting import competition
from predictor_service.regressors.candidates import CANDIDATES

NAMES: Final = ("constant_correction", "ridge", "extra_trees")


@contextmanager
def few_candidates() -> Iterator[None]:
    """Lets every fit of this process try these only, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(competition, "CANDIDATES", {name: CANDIDATES[name] for name in NAMES})
        yield
