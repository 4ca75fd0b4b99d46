"""How near a job is to what was measured, by what its graph does; what it is called does not count.

A kind of job is what one sample costs in which mode, precision and optimizer; its settings are batch and waiting. A
job is as novel as the nearest measured one makes it: 0 where that one is of the same kind, at settings no farther off
than measured settings of one kind are from each other; 1 where it is as far off as kinds of different families are, or
at settings twice as far off. Novelty is continuous between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.folds import IndexArray

KIND_COLUMNS: Final = (
    "log_parameters", "log_flops_per_sample", "log_depth", "log_recurrent_steps", "is_training", "optimizer_slots",
    *(feature.name for feature in FEATURES if feature.name.endswith("_nodes")),
    *(feature.name for feature in FEATURES if feature.name.startswith("precision_is_")),
)  # fmt: skip
SETTING_COLUMNS: Final = ("log_batch", "input_wait_ratio")
MEASURED_MAX: Final = 1_024
"""Measured jobs that are kept, evenly spaced; jobs that were left out count as slightly farther than they are."""
QUERIES_MAX: Final = 2_048
_DECIMALS: Final = 2
"""Kinds that are equal to so many are one: a graph whose operations do not quite grow with the batch, or was exported
anew, is still itself."""
_STORED_DECIMALS: Final = 6
_SETTINGS_QUANTILE: Final = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearness:
    """Measured jobs, and what counts as near to them.

    Attributes:
        kind_columns: Features that distinguish kinds, by name.
        setting_columns: Features that distinguish settings of a kind, by name.
        scale: Of each of these columns, kinds' first: divided by it, kinds of different families are at least 1 apart,
            and nearly all measured settings of a kind at most 1.
        jobs: Measured ones divided by `scale`, shape (jobs, columns).
    """

    kind_columns: tuple[str, ...]
    setting_columns: tuple[str, ...]
    scale: FloatArray
    jobs: FloatArray

    def novelty(self, columns: FloatArray) -> FloatArray:
        """Returns for every job, from 0 to 1, how far it is from all measured ones.

        Args:
            columns: `kind_columns`, then `setting_columns`, shape (rows, columns).
        """
        queries, kinds = columns / self.scale, len(self.kind_columns)
        measured_kinds, measured_settings = self._measured
        by_kind = measured_kinds.distances(queries[:, :kinds])
        by_setting = measured_settings.distances(queries[:, kinds:])
        by_setting -= 1.0
        least: FloatArray = np.maximum(by_kind, by_setting, out=by_kind).min(axis=1)
        np.maximum(least, 0.0, out=least)
        return np.minimum(least, 1.0, out=least)

    def is_unlike_all(self, columns: FloatArray) -> bool:
        """Whether every job's kind is so far from all measured kinds that its novelty is 1, whatever its settings.

        Args:
            columns: As for `novelty`.
        """
        kinds = len(self.kind_columns)
        queries = columns[:, :kinds] / self.scale[:kinds]
        return bool((self._measured[0].distances(queries) >= 1.0).all())

    @cached_property
    def content_sha256(self) -> str:
        """Equal where distances are: targets measured on the same jobs then share one answer."""
        columns = "\n".join((*self.kind_columns, "", *self.setting_columns)).encode()
        parts = (columns, self.scale.tobytes(), repr(self.jobs.shape).encode(), self.jobs.tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()

    @cached_property
    def _measured(self) -> tuple[_Points, _Points]:
        kinds = len(self.kind_columns)
        return _Points(self.jobs[:, :kinds]), _Points(self.jobs[:, kinds:])


class _Points:
    """Points with what every question about distances to them needs again."""

    def __init__(self, points: FloatArray) -> None:
        self._minus_twice = np.ascontiguousarray(-2.0 * points.T)
        self._squares = (points**2).sum(axis=1)

    def distances(self, rows: FloatArray) -> FloatArray:
        """Euclidean distance of each row to each point, shape (rows, points)."""
        squares = rows @ self._minus_twice
        squares += self._squares
        squares += (rows * rows).sum(axis=1)[:, None]
        np.maximum(squares, 0.0, out=squares)
        return np.asarray(np.sqrt(squares, out=squares))


def name_kinds(features: FloatArray) -> tuple[IndexArray, IndexArray]:
    """Numbers the kind of each job and its kind with its settings, each of shape (rows,).

    Args:
        features: Whole vectors, shape (rows, len(FEATURES)).
    """
    rounded = np.round(_columns(features), _DECIMALS)
    kinds = np.unique(rounded[:, : len(KIND_COLUMNS)], axis=0, return_inverse=True)[1].reshape(-1)
    return kinds, np.unique(rounded, axis=0, return_inverse=True)[1].reshape(-1)


def learn_nearness(features: FloatArray, groups: Sequence[frozenset[str]]) -> Nearness | None:
    """Learns how far apart measured jobs are.

    Args:
        features: Whole vectors, shape (rows, len(FEATURES)).
        groups: Families of each row.

    Returns:
        None where no kind was measured at two settings, or all kinds are of one family.
    """
    columns, kinds_count = _columns(features), len(KIND_COLUMNS)
    deviation = columns.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, 1.0)
    kinds, settings = name_kinds(features)
    kind_reach = _least_between_families(columns[:, :kinds_count] / scale[:kinds_count], kinds, groups)
    setting_reach = _usual_between_settings(columns[:, kinds_count:] / scale[kinds_count:], kinds)
    if not kind_reach or not setting_reach:
        return None
    scale[:kinds_count] *= kind_reach
    scale[kinds_count:] *= setting_reach
    jobs = columns[np.unique(settings, return_index=True)[1]] / scale
    return Nearness(
        kind_columns=KIND_COLUMNS,
        setting_columns=SETTING_COLUMNS,
        scale=scale,
        jobs=np.round(jobs[:: max(1, -(-len(jobs) // MEASURED_MAX))], _STORED_DECIMALS),
    )


def _columns(features: FloatArray) -> FloatArray:
    return np.asarray(
        features[:, [FEATURE_INDEX[name] for name in (*KIND_COLUMNS, *SETTING_COLUMNS)]], dtype=np.float64
    )


def _least_between_families(columns: FloatArray, kinds: IndexArray, groups: Sequence[frozenset[str]]) -> float:
    """Smallest distance between two kinds that share no family; 0 where there are none."""
    firsts = np.unique(kinds, return_index=True)[1]
    members: list[set[str]] = [set() for _ in firsts]
    for kind, families in zip(kinds.tolist(), groups, strict=True):
        members[kind] |= families
    least = np.inf
    for place in range(0, len(firsts), -(-len(firsts) // QUERIES_MAX)):
        unrelated = [other for other, each in enumerate(members) if members[place].isdisjoint(each)]
        if unrelated:
            distances = _Points(columns[firsts[unrelated]]).distances(columns[firsts[place : place + 1]])
            least = min(least, float(distances.min()))
    return least if np.isfinite(least) else 0.0


def _usual_between_settings(columns: FloatArray, kinds: IndexArray) -> float:
    """Distance within which nearly all settings of a kind have another one; 0 where no kind has two."""
    nearest: list[float] = []
    for kind in np.unique(kinds):
        settings = np.unique(np.round(columns[kinds == kind], _DECIMALS), axis=0)
        if len(settings) > 1:
            apart = _Points(settings).distances(settings)
            np.fill_diagonal(apart, np.inf)
            nearest += apart.min(axis=1).tolist()
    return float(np.quantile(nearest, _SETTINGS_QUANTILE)) if nearest else 0.0
