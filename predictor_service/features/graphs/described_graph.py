"""The features of a graph that is known by figures in a table instead of by its file.

Public sets name their networks or list their layers; tables hold what these compute and keep. The features made of them
mean what those of a graph file mean, so that a model that learned from such rows answers jobs with a graph: of the
networks that are in both tables, parameters, products and widest tensors agree exactly and saved tensors within 3 %
where no activation is decomposed. Operators of one family are taken to be alike, and traffic is known by the sum at
most: `TRAFFIC_PER_ALLOCATED_BYTE` is the median over the networks of both tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from predictor_service.features.graphs.affine import FloatArray
from predictor_service.features.graphs.batch_figures import figures_at
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.operator_families import MULTIPLYING_FAMILIES, OperatorFamily

NEEDED: Final = frozenset(
    {"parameters", "forward_macs", "saved_for_backward_bytes", "widest_activation_bytes", "nodes"}
)
"""Figures without which there are no features."""
TRAFFIC_PER_ALLOCATED_BYTE: Final = 3.3
_WEIGHT_BYTES: Final = 4.0
_FLOPS_PER_MAC: Final = 2.0
# Of a table nothing says which tensors keep 32 bits in mixed precision; of convolutional networks none do.
_MIXED_RATIO: Final = 0.5
# Other operators compute about once for each number that they read or write.
_BYTES_PER_FLOP: Final = 4.0
_NODES_MAX: Final = 100_000
_FIGURE_MAX: Final = 1e18
_SIZES: Final = NEEDED | {
    "parameter_bytes", "buffer_bytes", "forward_flops", "input_bytes", "output_bytes", "traffic_bytes",
    "allocated_bytes", "reserved_bytes", "largest_unfolded_bytes", "depth", "recurrent_steps", "lstm_steps",
}  # fmt: skip
_MULTIPLYING: Final = tuple(family for family in OperatorFamily if family in MULTIPLYING_FAMILIES)


def describe_figures(facts: Mapping[str, float], batch: int) -> GraphFeatures | None:
    """Makes the features of a graph.

    Args:
        facts: By the naming of `batch_figures`.
        batch: Samples held at a time, at least 1.

    Returns:
        The features at the batch; None where `is_describable` denies it.
    """
    if not is_describable(facts, batch):
        return None
    figures = figures_at(facts, batch)
    counts = _count_operators(figures)
    nodes = sum(counts.values())
    parameter_bytes = figures.get("parameter_bytes", _WEIGHT_BYTES * figures["parameters"])
    traffic_bytes = _traffic_bytes(figures, parameter_bytes)
    flops, moved_bytes = _spread_work(figures, counts, traffic_bytes)
    return GraphFeatures(
        batch=batch,
        parameters=round(figures["parameters"]),
        parameter_bytes=round(parameter_bytes),
        buffers=round(figures.get("buffer_bytes", 0.0) / _WEIGHT_BYTES),
        buffer_bytes=round(figures.get("buffer_bytes", 0.0)),
        forward_macs=round(figures["forward_macs"]),
        forward_flops=round(figures.get("forward_flops", float(flops.sum()))),
        activation_bytes_saved=round(figures["saved_for_backward_bytes"]),
        activation_bytes_saved_mixed=round(_MIXED_RATIO * figures["saved_for_backward_bytes"]),
        input_bytes=round(figures.get("input_bytes", 0.0)),
        output_bytes=round(figures.get("output_bytes", 0.0)),
        traffic_bytes=round(traffic_bytes),
        largest_unfolded_bytes=round(figures.get("largest_unfolded_bytes", 0.0)),
        widest_activation_bytes=round(figures["widest_activation_bytes"]),
        depth=round(figures.get("depth", sum(counts[family] for family in _MULTIPLYING))),
        recurrent_steps=round(figures.get("recurrent_steps", 0.0)),
        lstm_steps=round(figures.get("lstm_steps", 0.0)),
        nodes=nodes,
        unshaped_nodes=0,
        operator_counts=counts,
        operator_families=tuple(family for family in OperatorFamily for _ in range(counts[family])),
        operator_flops=flops,
        operator_traffic_bytes=moved_bytes,
        reserved_bytes=round(figures.get("reserved_bytes", 0.0)),
    )


def is_describable(facts: Mapping[str, float], batch: int) -> bool:
    """Whether all figures of `NEEDED` are there, and none of any other is negative or beyond what a graph can have."""
    figures = figures_at(facts, batch)
    if not figures.keys() >= NEEDED or not all(0 <= value < _FIGURE_MAX for value in _sizes(figures)):
        return False
    return 0 < sum(_count_operators(figures).values()) <= _NODES_MAX


def _sizes(figures: Mapping[str, float]) -> Iterator[float]:
    """What becomes a size of the features."""
    return (value for name, value in figures.items() if name in _SIZES or name.endswith(("_nodes", "_macs")))


def _count_operators(figures: Mapping[str, float]) -> dict[OperatorFamily, int]:
    """Operators by family; those that a table does not name are others."""
    counts = {family: round(max(0.0, figures.get(f"{family.value}_nodes", 0.0))) for family in OperatorFamily}
    unnamed = round(figures["nodes"]) - sum(counts.values())
    counts[OperatorFamily.OTHER] += max(0, unnamed)
    return counts


def _traffic_bytes(figures: Mapping[str, float], parameter_bytes: float) -> float:
    if "traffic_bytes" in figures:
        return figures["traffic_bytes"]
    allocated = figures.get("allocated_bytes", figures["saved_for_backward_bytes"])
    return TRAFFIC_PER_ALLOCATED_BYTE * allocated + parameter_bytes


def _spread_work(
    figures: Mapping[str, float], counts: Mapping[OperatorFamily, int], traffic_bytes: float
) -> tuple[FloatArray, FloatArray]:
    """Operations and bytes of every operator, in the order of families, alike within one."""
    operators = np.array([counts[family] for family in OperatorFamily])
    each_bytes = traffic_bytes / operators.sum()
    macs = _macs_by_family(figures, counts)
    per_operator = [
        _FLOPS_PER_MAC * macs[family] / max(1, counts[family]) if family in macs else each_bytes / _BYTES_PER_FLOP
        for family in OperatorFamily
    ]
    return np.repeat(np.array(per_operator), operators), np.full(operators.sum(), each_bytes)


def _macs_by_family(figures: Mapping[str, float], counts: Mapping[OperatorFamily, int]) -> dict[OperatorFamily, float]:
    """Products of each family as the table has them; what it does not divide goes to all alike."""
    named = {family: figures.get(f"{family.value}_macs", 0.0) for family in _MULTIPLYING}
    rest = max(0.0, figures["forward_macs"] - sum(named.values()))
    sharing = {family: counts[family] for family in _MULTIPLYING if f"{family.value}_macs" not in figures}
    operators = sum(sharing.values())
    for family, count in sharing.items():
        named[family] += rest * count / operators if operators else 0.0
    return named
