"""Whether a network is of a kind that was measured, by which operators it is made of.

Families differ in what they are made of more than in how large they are: how large a share of the operators are
convolutions, depthwise ones, products, normalisations and so on. The distance of two networks is that of these shares
(Hellinger's without its constant); a network is familiar where the nearest measured one is no farther than measured
networks of known families are from the nearest other one (`benchmarks/served_memory.py` judges it on timm's networks).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.features.graphs.operator_families import OperatorFamily
from predictor_service.features.job_features import FEATURE_INDEX
from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.folds import IndexArray

BoolArray = npt.NDArray[np.bool_]

RELATED_MIN: Final = 30
"""Fewer networks of families with another network say nothing of how far apart such networks are."""
NETWORKS_MAX: Final = 2_048
_NEAR_RATIO: Final = 0.9
"""Share of networks of known families that are not strange at all."""
FALSE_ALARM_RATIO: Final = 0.05
"""Share of networks of known families that count as novel; about as many more are flagged by `domain`."""
OPERATORS: Final = tuple(family.value for family in OperatorFamily)
_COUNTS: Final = [FEATURE_INDEX[f"log_{name}_nodes"] for name in OPERATORS]
_IDENTITY: Final = [FEATURE_INDEX[name] for name in ("log_parameters", "log_flops_per_sample", "log_depth")] + _COUNTS
_DECIMALS: Final = 2
_STORED_DECIMALS: Final = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorMix:
    """What measured networks are made of.

    Attributes:
        networks: Square roots of the shares of operators in the order of `OPERATORS`, shape (networks, operators).
        distance_max: To the nearest of them, of a familiar network.
        near: Up to this distance a network is not strange at all; as most networks of known families are.
        far: From this distance on it is wholly strange; as far as networks of other families usually are. At least
            `near`; both may be `distance_max`, so that there is nothing between.
    """

    networks: FloatArray
    distance_max: float
    near: float
    far: float

    def is_familiar(self, features: FloatArray) -> BoolArray:
        """Whether the nearest measured network is near, shape (rows,).

        Args:
            features: Whole vectors, shape (rows, len(FEATURES)).
        """
        mixes, places = np.unique(_mix_of(features), axis=0, return_inverse=True)  # batches of one job have one
        near = self._distances(mixes).min(axis=1) <= self.distance_max + _ROUNDING
        return np.asarray(near[places.reshape(-1)])

    def novelty(self, features: FloatArray) -> FloatArray:
        """From 0, of a network like measured ones, to 1, as unlike them as families are to each other, shape (rows,).

        Args:
            features: Whole vectors, shape (rows, len(FEATURES)).
        """
        mixes, places = np.unique(_mix_of(features), axis=0, return_inverse=True)
        return self._grade(self._distances(mixes).min(axis=1))[places.reshape(-1)]

    def novelty_among(self, features: FloatArray) -> FloatArray:
        """The same of measured networks, each as if it had not been measured itself, shape (rows,)."""
        numbers = number_networks(features)
        firsts = np.unique(numbers, return_index=True)[1]
        mixes = _mix_of(features[firsts])
        others = replace(self, networks=mixes)
        return self._grade(np.array([_nearest_other(others, place) for place in range(len(mixes))]))[numbers]

    def _grade(self, distances: FloatArray) -> FloatArray:
        beyond = distances - self.near - _ROUNDING
        return np.asarray(np.clip(beyond / max(self.far - self.near, _ROUNDING), 0.0, 1.0))

    def differences(self, features: FloatArray) -> list[tuple[str, float, float]]:
        """In which operators one job differs from the nearest measured network.

        Args:
            features: Whole vector, shape (len(FEATURES),).

        Returns:
            Name of the operators, their share here and there, largest difference first.
        """
        mix = _mix_of(features[None, :])
        nearest = self.networks[int(self._distances(mix).argmin())]
        order = np.argsort(-np.abs(mix[0] - nearest), kind="stable").tolist()
        return [(OPERATORS[place], float(mix[0, place] ** 2), float(nearest[place] ** 2)) for place in order]

    def _distances(self, mixes: FloatArray) -> FloatArray:
        squares = mixes @ self._minus_twice + self._squares + (mixes * mixes).sum(axis=1)[:, None]
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)))

    @cached_property
    def _minus_twice(self) -> FloatArray:
        return np.ascontiguousarray(-2.0 * self.networks.T)

    @cached_property
    def _squares(self) -> FloatArray:
        return np.asarray((self.networks**2).sum(axis=1))


_ROUNDING: Final = 1e-4


def number_networks(features: FloatArray) -> IndexArray:
    """Numbers the network of each job, whatever its settings and its name, shape (rows,).

    Args:
        features: Whole vectors, shape (rows, len(FEATURES)).
    """
    rounded = np.round(features[:, _IDENTITY], _DECIMALS)
    return np.unique(rounded, axis=0, return_inverse=True)[1].reshape(-1)


def learn_operator_mix(features: FloatArray, groups: Sequence[frozenset[str]]) -> OperatorMix | None:
    """Learns what measured networks are made of and how far apart those of known families are.

    Args:
        features: Whole vectors, shape (rows, len(FEATURES)).
        groups: Families of each row.

    Returns:
        None where too few networks have another one of their family.
    """
    firsts = np.unique(number_networks(features), return_index=True)[1]
    families = [groups[place] for place in firsts.tolist()]
    sizes = Counter(name for members in families for name in members)
    related = [place for place, members in enumerate(families) if any(sizes[name] > 1 for name in members)]
    if len(related) < RELATED_MIN:
        return None
    mix = OperatorMix(networks=_mix_of(features[firsts]), distance_max=0.0, near=0.0, far=0.0)
    nearest = np.sort([_nearest_other(mix, place) for place in related])
    reached = min(math.ceil((len(nearest) + 1) * (1 - FALSE_ALARM_RATIO)), len(nearest)) - 1
    near = float(np.quantile(nearest, _NEAR_RATIO))
    far = max(float(np.median(_to_other_families(mix, families))), near)
    step = max(1, -(-len(firsts) // NETWORKS_MAX))
    kept = np.unique(np.round(mix.networks, _STORED_DECIMALS), axis=0)[::step]
    return OperatorMix(
        networks=kept,
        distance_max=round(float(nearest[reached]), _STORED_DECIMALS),
        near=round(near, _STORED_DECIMALS),
        far=round(far, _STORED_DECIMALS),
    )


def _nearest_other(mix: OperatorMix, place: int) -> float:
    distances = mix._distances(mix.networks[place : place + 1])[0]
    distances[place] = np.inf
    return float(distances.min())


def _to_other_families(mix: OperatorMix, families: Sequence[frozenset[str]]) -> list[float]:
    """Distance of each network to the nearest one that shares no family with it, where there is one."""
    found = []
    for place, members in enumerate(families):
        others = [other for other, each in enumerate(families) if members.isdisjoint(each)]
        if others:
            found.append(float(mix._distances(mix.networks[place : place + 1])[0, others].min()))
    return found or [0.0]


def _mix_of(features: FloatArray) -> FloatArray:
    counts = np.expm1(features[:, _COUNTS])
    return np.asarray(np.sqrt(counts / np.maximum(counts.sum(axis=1), 1.0)[:, None]), dtype=np.float64)
