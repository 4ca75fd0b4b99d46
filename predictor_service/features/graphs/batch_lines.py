"""From measurements at single batches to lines over all batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.graphs.affine import Affine, AffineArray, FloatArray, line_through
from predictor_service.features.graphs.graph_measurement import Measurement
from predictor_service.features.graphs.operator_costs import OperatorCost
from predictor_service.features.graphs.operator_families import OperatorFamily

_OPERATOR_COUNTS: Final[Mapping[str, Callable[[OperatorCost], int]]] = {
    "operator_flops": lambda cost: cost.flops,
    "operator_traffic_bytes": lambda cost: cost.traffic_bytes,
    "operator_output_bytes": lambda cost: cost.output_bytes,
}
# These do not grow with the batch of a graph whose batch is fixed.
_INDEPENDENT_OF_BATCH = frozenset({"recurrent_steps", "lstm_steps"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLines:
    """All counts of a graph as lines over the batch.

    Attributes:
        families: Family of each device operator.
        scalars: Totals by name.
        arrays: Counts per operator by name.
    """

    families: tuple[OperatorFamily, ...]
    scalars: Mapping[str, Affine]
    arrays: Mapping[str, AffineArray]


def fit_lines(first: tuple[int, Measurement], second: tuple[int, Measurement]) -> BatchLines:
    """The lines through two measurements.

    Args:
        first: Batch and measurement.
        second: The same at the next batch, so that integers stay exact.
    """
    (first_batch, at_first), (second_batch, at_second) = first, second
    arrays = {}
    for name in _OPERATOR_COUNTS:
        start, end = _column(at_first, name), _column(at_second, name)
        per_sample = (end - start) / (second_batch - first_batch)
        arrays[name] = AffineArray(start - per_sample * first_batch, per_sample)
    scalars = {
        name: line_through(first_batch, value, second_batch, at_second.totals[name])
        for name, value in at_first.totals.items()
    }
    return BatchLines(families=at_second.families, scalars=scalars, arrays=arrays)


def scale_lines(batch: int, measurement: Measurement) -> BatchLines:
    """Lines from one measurement: reading weights stays, everything else is proportional to the batch.

    Args:
        batch: The only batch at which the graph can be measured.
        measurement: At that batch.
    """
    constant_bytes = np.array([cost.constant_bytes for cost in measurement.costs], dtype=np.float64)
    arrays = {}
    for name in _OPERATOR_COUNTS:
        fixed = constant_bytes if name == "operator_traffic_bytes" else np.zeros_like(constant_bytes)
        arrays[name] = AffineArray(fixed, (_column(measurement, name) - fixed) / batch)
    fixed_totals = {"traffic_bytes": int(constant_bytes.sum())}
    scalars = {}
    for name, value in measurement.totals.items():
        fixed_total = value if name in _INDEPENDENT_OF_BATCH else fixed_totals.get(name, 0)
        per_sample = (value - fixed_total) // batch
        scalars[name] = Affine(value - per_sample * batch, per_sample)
    return BatchLines(families=measurement.families, scalars=scalars, arrays=arrays)


def worst_deviation_ratio(lines: BatchLines, batch: int, measurement: Measurement) -> float:
    """How far the lines miss a further measurement: largest relative error over all totals, 0 = exact."""
    return max(abs(lines.scalars[name].at(batch) - value) / max(value, 1) for name, value in measurement.totals.items())


def _column(measurement: Measurement, name: str) -> FloatArray:
    read = _OPERATOR_COUNTS[name]
    return np.array([read(cost) for cost in measurement.costs], dtype=np.float64)
