"""What is displaced by evidence only: where few groups were measured, which of two errs less on them is chance.

The rule of one standard error: the simpler of two answers stays unless the other one errs less by more than the
standard error of the difference. Rows of one group err alike, so the error is that of groups that are resampled whole.

Source: Breiman, Friedman, Olshen, Stone, "Classification and Regression Trees", 1984, section 3.4.3 (for the size of
trees); groups in place of rows are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor_service.regressors.interface import FloatArray

Groups = Sequence[frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Incumbent:
    """A candidate that stays unless another one is better beyond chance.

    Attributes:
        name: Of the candidate.
        groups: Of each row, as the folds were made from them.
    """

    name: str
    groups: Groups


def is_beyond_chance(gains: FloatArray, groups: Groups) -> bool:
    """Whether the mean gain is larger than its standard error with groups resampled.

    Args:
        gains: By how much a challenger errs less than the incumbent, shape (rows,).
        groups: Of each row.

    Returns:
        False where there is a single group: nothing tells how much the next one would differ.
    """
    names = [tuple(sorted(group)) for group in groups]
    sums: dict[tuple[str, ...], float] = dict.fromkeys(names, 0.0)
    mean = float(np.mean(gains)) if len(gains) else 0.0
    for name, gain in zip(names, gains.tolist(), strict=True):
        sums[name] += gain - mean
    if mean <= 0 or len(sums) < 2:
        return False
    inflation = len(sums) / (len(sums) - 1)
    return mean > math.sqrt(inflation * sum(each**2 for each in sums.values())) / len(names)
