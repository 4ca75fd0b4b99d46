"""What a graph does and holds at several batches, one row for each, in the arrays that features are built from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.features.graphs.affine import FloatArray
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.operator_families import OperatorFamily

IndexArray = npt.NDArray[np.intp]

FAMILY_CODES: Final = {family: code for code, family in enumerate(OperatorFamily)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphTable:
    """Figures of one graph at several batches.

    Attributes:
        rows: The features at each batch, at least one.
        size_values: What `size_values` yields of each row, shape (batches, sizes).
        count_values: What `count_values` yields; operators are the same at every batch.
        families: Code of the family of each operator, shape (operators,).
        operator_flops: Operations of each operator, shape (batches, operators).
        operator_traffic_bytes: Bytes moved by each operator, shape (batches, operators).
    """

    rows: tuple[GraphFeatures, ...]
    size_values: FloatArray
    count_values: tuple[float, ...]
    families: IndexArray
    operator_flops: FloatArray
    operator_traffic_bytes: FloatArray

    def first(self, count: int) -> GraphTable:
        """The table of the first batches only."""
        if count == len(self.rows):
            return self
        return GraphTable(
            rows=self.rows[:count],
            size_values=self.size_values[:count],
            count_values=self.count_values,
            families=self.families,
            operator_flops=self.operator_flops[:count],
            operator_traffic_bytes=self.operator_traffic_bytes[:count],
        )


def tabulate_graph(rows: Sequence[GraphFeatures], families: IndexArray | None = None) -> GraphTable:
    """Makes the table of a graph.

    Args:
        rows: Its features at each batch, at least one.
        families: `family_codes` of the graph, where they are at hand.
    """
    flops = np.stack([row.operator_flops for row in rows])
    traffic_bytes = np.stack([row.operator_traffic_bytes for row in rows])
    first = rows[0]
    return GraphTable(
        rows=tuple(  # views, so that nothing is kept twice
            dataclasses.replace(row, operator_flops=flops[place], operator_traffic_bytes=traffic_bytes[place])
            for place, row in enumerate(rows)
        ),
        size_values=np.array([[value for _, _, value in size_values(row)] for row in rows]),
        count_values=tuple(value for _, _, value in count_values(first)),
        families=family_codes(first.operator_families) if families is None else families,
        operator_flops=flops,
        operator_traffic_bytes=traffic_bytes,
    )


def family_codes(families: Sequence[OperatorFamily]) -> IndexArray:
    """Numbers the family of each operator, shape (operators,)."""
    return np.fromiter((FAMILY_CODES[family] for family in families), dtype=np.intp, count=len(families))


def size_values(graph: GraphFeatures) -> Iterator[tuple[str, str, float]]:
    """Yields name, unit and value of what only the graph and its batch decide."""
    batch = graph.batch
    yield "log_batch", "ln(samples)", math.log(batch)
    yield "log_parameters", "ln(1 + count)", math.log1p(graph.parameters)
    yield "log_flops_per_sample", "ln(operations)", math.log1p(graph.forward_flops / batch)
    yield "log_flops", "ln(operations)", math.log1p(graph.forward_flops)
    yield "log_activation_bytes", "ln(bytes)", math.log1p(graph.activation_bytes_saved)
    yield "log_input_bytes", "ln(bytes)", math.log1p(graph.input_bytes)
    yield "log_output_bytes", "ln(bytes)", math.log1p(graph.output_bytes)
    yield "log_traffic_bytes", "ln(bytes)", math.log1p(graph.traffic_bytes)
    yield "log_widest_activation_bytes", "ln(bytes)", math.log1p(graph.widest_activation_bytes)
    yield "log_unfolded_bytes", "ln(bytes)", math.log1p(graph.largest_unfolded_bytes)
    yield "log_intensity", "ln(operations/byte)", math.log1p(graph.forward_flops / max(graph.traffic_bytes, 1))
    yield "log_flops_per_node", "ln(operations)", math.log1p(graph.forward_flops / max(graph.nodes, 1))
    yield "log_nodes", "ln(1 + count)", math.log1p(graph.nodes)
    yield "log_depth", "ln(1 + count)", math.log1p(graph.depth)
    yield "log_recurrent_steps", "ln(1 + count)", math.log1p(graph.recurrent_steps)
    yield "unshaped_ratio", "share of nodes", graph.unshaped_nodes / max(graph.nodes, 1)


def count_values(graph: GraphFeatures) -> Iterator[tuple[str, str, float]]:
    """Yields name, unit and value of how many operators of each family there are."""
    for family in OperatorFamily:
        yield f"log_{family.value}_nodes", "ln(1 + count)", math.log1p(graph.operator_counts[family])
