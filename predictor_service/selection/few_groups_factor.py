"""How much wider an interval has to be because few groups taught it.

Rows of one group err alike, so k groups say of one more what k measurements say of one more measurement: Student's t
with k - 1 degrees of freedom instead of the normal distribution, and the uncertainty of their own mean. A quantile of
rows knows nothing of that; with four families it holds on 80 % of the rows of a fifth where 90 % was promised.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from scipy.stats import norm, t

_GROUPS_MIN: Final = 2
"""One group says nothing of another; it is taken for two."""


@lru_cache(maxsize=1_024)
def few_groups_factor(groups: int, confidence: float) -> float:
    """Factor for half the width of a central interval.

    Args:
        groups: How many were held out one after the other, above 0.
        confidence: Nominal coverage, above 0 and below 1.

    Returns:
        Above 1, and near 1 for many groups.
    """
    known = max(groups, _GROUPS_MIN)
    tail = (1.0 + confidence) / 2.0
    return float(t.ppf(tail, known - 1) / norm.ppf(tail)) * math.sqrt(1.0 + 1.0 / known)
