"""95 % intervals by resampling whole groups: rows of one model err alike, so rows are no independent witnesses.

A row of several groups (both jobs of a pair) counts as often as the product of how often its groups were drawn.

Source: Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007) for rows of two crossed groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray
from predictor_service.learning.metrics import RowErrors

DRAWS: Final = 1_000
_CHUNK_CELLS: Final = 4_000_000
Interval = tuple[float, float]


def bootstrap(errors: RowErrors, groups: Sequence[frozenset[str]], seed: int) -> dict[str, Interval | None]:
    """Returns the central 95 % of every metric over resampled groups; None where it is undefined."""
    summaries = np.concatenate([errors.summarize(weights) for weights in _draw(groups, seed)])
    return _by_name(errors.names, summaries)


def bootstrap_ratios(
    ours: RowErrors, theirs: RowErrors, groups: Sequence[frozenset[str]], seed: int
) -> dict[str, Interval | None]:
    """Returns the central 95 % of ours / theirs for the metrics of theirs, both on the same draws.

    Args:
        ours: Errors of all rows.
        theirs: Errors of the same rows.
        groups: Of each row.
        seed: Of the draws.
    """
    places = [ours.names.index(name) for name in theirs.names]
    parts = []
    for weights in _draw(groups, seed):
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(ours.summarize(weights)[:, places] / theirs.summarize(weights))
    return _by_name(theirs.names, np.concatenate(parts))


def _draw(groups: Sequence[frozenset[str]], seed: int) -> Iterator[FloatArray]:
    """Yields weights of the rows, shape (some draws, rows)."""
    names = sorted(frozenset[str]().union(*groups))
    place = {name: index for index, name in enumerate(names)}
    widest = max(len(members) for members in groups)
    # Rows of fewer groups are filled up with a group that is always drawn once.
    member = np.full((len(groups), widest), len(names), dtype=np.intp)
    for row, members in enumerate(groups):
        member[row, : len(members)] = [place[name] for name in sorted(members)]
    random = np.random.default_rng(seed)
    chunk = max(1, min(DRAWS, _CHUNK_CELLS // max(1, len(groups))))
    for start in range(0, DRAWS, chunk):
        count = min(chunk, DRAWS - start)
        drawn = random.multinomial(len(names), np.full(len(names), 1.0 / len(names)), size=count)
        filled = np.concatenate([drawn, np.ones((count, 1), dtype=drawn.dtype)], axis=1)
        weights = filled[:, member[:, 0]].astype(np.float64)
        for column in range(1, widest):
            weights *= filled[:, member[:, column]]
        yield weights


def _by_name(names: Sequence[str], summaries: FloatArray) -> dict[str, Interval | None]:
    intervals: dict[str, Interval | None] = {}
    for place, name in enumerate(names):
        finite = summaries[np.isfinite(summaries[:, place]), place]
        ends = np.quantile(finite, (0.025, 0.975)) if len(finite) >= 20 else None
        intervals[name] = None if ends is None else (float(ends[0]), float(ends[1]))
    return intervals


def divide_metrics(ours: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns ours / theirs by name, None where either is missing or theirs is 0."""
    ratios: dict[str, float | None] = {}
    for name, value in theirs.items():
        mine = ours.get(name)
        ratios[name] = mine / value if mine is not None and value else None
    return ratios
