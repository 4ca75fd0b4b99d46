"""What physics misses of a kind of network, whatever the device: a smooth function of what the network is.

A kernel ridge with few centres, shrunk: far from every network that was measured it is 0, and physics alone answers.
What a network is does not depend on its batch: sizes are what a further sample adds. So the correction is one factor
at all batches of a job, and a larger batch takes as much longer as physics says. It is the same in 16 and in 32 bits:
those who ran a network in half precision mostly ran it in no other, and what is peculiar to their cards, tables and
networks would be taken for what half precision costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.cross_device.step_physics import StepKind, number_format
from predictor_service.cross_device.step_work import StepWork
from predictor_service.features.graphs.affine import FloatArray

TRAITS: Final = (
    "log_intensity", "log_nodes", "log_traffic_per_node", "log_parameters", "log_convolution_per_product",
    "log_depthwise_per_convolution", "log_waiting_steps", "is_training", "is_double",
)  # fmt: skip
_SIZES: Final = 7
_LEAST_FLOPS: Final = 1e6
_LEAST_BYTES: Final = 4.0
_REACH: Final = 2.0
"""Squared distance, in standard deviations, at which two networks have little to do with each other."""
_CHOICE_WEIGHT: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCorrection:
    """The function.

    Attributes:
        means: Of the traits that are sizes, shape (sizes,).
        deviations: Of the same, all above 0.
        centres: Standardised traits of measured networks, shape (centres, traits).
        weights: Shape (centres,).
    """

    means: FloatArray
    deviations: FloatArray
    centres: FloatArray
    weights: FloatArray

    def log_ratio(self, traits: FloatArray) -> FloatArray:
        """Logarithm of the time over physics, shape (rows,); a row is the same among any others, to the last bit."""
        rows = self.standardise(traits)
        return np.array([float((kernel(row[None], self.centres)[0] * self.weights).sum()) for row in rows])

    def standardise(self, traits: FloatArray) -> FloatArray:
        """Traits in the units of `centres`."""
        sizes = (traits[:, :_SIZES] - self.means) / self.deviations
        return np.concatenate([sizes, _CHOICE_WEIGHT * traits[:, _SIZES:]], axis=1)

    def to_json(self) -> dict[str, object]:
        """As stored."""
        return {
            "traits": list(TRAITS),
            "means": _rounded(self.means),
            "deviations": _rounded(self.deviations),
            "centres": [_rounded(row) for row in self.centres],
            "weights": _rounded(self.weights),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Sequence[float]]) -> StepCorrection:
        """Reads what `to_json` wrote."""
        arrays = {
            name: np.array(stored[name], dtype=np.float64) for name in ("means", "deviations", "centres", "weights")
        }
        return cls(**arrays)


def kernel(left: FloatArray, right: FloatArray) -> FloatArray:
    """How much two networks have to do with each other by their standardised traits, 0 to 1, shape (left, right)."""
    squares = ((left[:, None] - right) ** 2).sum(axis=2)
    return np.asarray(np.exp(-squares / (2 * _REACH)), dtype=np.float64)


def traits_of(work: StepWork, kinds: Sequence[StepKind]) -> FloatArray:
    """What a network is, shape (rows, traits).

    Args:
        work: Of the rows.
        kinds: One for each row, or a single one for all.
    """
    convolutions, depthwise = work.convolution_flops_per_sample, work.depthwise_flops_per_sample
    products, traffic = work.product_flops_per_sample, np.maximum(work.traffic_bytes_per_sample, _LEAST_BYTES)
    nodes = np.maximum(work.nodes, 1.0)

    def log_of(flops: FloatArray) -> FloatArray:
        return np.log(np.maximum(flops, 0.0) + _LEAST_FLOPS)

    choices = np.array([_choices(kind) for kind in kinds], dtype=np.float64)
    return np.column_stack(
        [
            np.log(np.maximum(convolutions + depthwise + products, 1.0)) - np.log(traffic),
            np.log(nodes),
            np.log(traffic / nodes),
            np.log(np.maximum(work.parameters, 1.0)),
            log_of(convolutions + depthwise) - log_of(products),
            log_of(depthwise) - log_of(convolutions),
            np.log1p(work.waiting_steps),
            np.broadcast_to(choices, (len(work), choices.shape[1])),
        ]
    )


def _choices(kind: StepKind) -> tuple[float, float]:
    is_double = number_format(kind.device, kind.precision) in {"fp64", "fp64_full"}
    return float(kind.is_training), float(is_double)


def _rounded(values: FloatArray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
