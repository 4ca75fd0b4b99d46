"""How much each candidate counts, judged by errors on held-out rows, and their combined answer.

The best of several candidates on a handful of held-out groups is mostly best by chance. All of them count therefore,
less the larger their errors, and more sharply the more groups were held out: an error that is one standard error of the
comparison above the least, 1 / sqrt(groups) of it, makes a weight of 1/e. Untuned trees on the published columns get a
lead of as much, because they need no tuning: others must beat them by more than chance.

Of a row's answers the middle half of the weight is used: a candidate that is far off in one row may have had small
errors elsewhere, and a mean would follow it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor_service.learning.learning_task import FloatArray

_ERROR_MIN = 1e-9
_OUTER_SHARE = 0.25
"""Of the weight that is left out on either side."""


def weigh_candidates(
    errors: Mapping[str, FloatArray], groups: int, *, leader: str, is_like_unseen: bool
) -> dict[str, float]:
    """Weighs candidates.

    Args:
        errors: By name, of every held-out row, in the learned scale, all of one length above 0.
        groups: How many groups the rows were held out by, at least 1.
        leader: The candidate with the lead.
        is_like_unseen: Whether rows were held out as those to come will be unseen. If not, their errors do not show
            which errs least there, and all candidates but the leader count alike.

    Returns:
        By name; their sum is 1.
    """
    relative_error = 1.0 / np.sqrt(groups)
    sizes = {name: max(float(np.abs(rows).mean()), _ERROR_MIN) for name, rows in errors.items()}
    if not is_like_unseen:
        sizes = dict.fromkeys(sizes, 1.0)
    if leader in sizes:
        sizes[leader] *= float(np.exp(-relative_error))
    least = min(sizes.values())
    raw = {name: float(np.exp(-(size / least - 1.0) / relative_error)) for name, size in sizes.items()}
    total = sum(raw.values())
    return {name: weight / total for name, weight in raw.items()}


def mix_answers(answers: Mapping[str, FloatArray], weights: Mapping[str, float]) -> FloatArray:
    """The combined answer of the candidates: the weighted mean of each row's middle half.

    Args:
        answers: By candidate, of every row; those without a weight are left out.
        weights: By candidate; their sum is 1.

    Returns:
        A value per row, between the least and the largest answer.
    """
    table = np.array([answers[name] for name in weights])
    order = np.argsort(table, axis=0, kind="stable")
    shares = np.array(list(weights.values()))[order]
    ends = np.cumsum(shares, axis=0)
    inside = np.minimum(ends, 1.0 - _OUTER_SHARE) - np.maximum(ends - shares, _OUTER_SHARE)
    inner = np.maximum(inside, 0.0)
    return np.asarray((inner * np.take_along_axis(table, order, axis=0)).sum(axis=0) / inner.sum(axis=0))
