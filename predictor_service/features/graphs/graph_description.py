"""A graph, measured once for all batches.

Counts of ordinary networks are affine in the batch: the graph is measured at two adjacent batches, every count is
stored as constant + per_sample * batch, and any batch is answered in microseconds. A third measurement checks the
claim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from predictor_service.errors import InvalidBatchError
from predictor_service.features.graphs.affine import Affine, AffineArray
from predictor_service.features.graphs.graph_extraction import SCALARS, GraphWarning, extract
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.graph_limits import DEFAULT_LIMITS
from predictor_service.features.graphs.graph_measurement import ParameterCount
from predictor_service.features.graphs.operator_families import OperatorFamily

SCHEMA: Final = "cotenant.graph_description/5"
"""Raise it with every change of what is counted: stored descriptions are a cache, and older ones are computed anew."""


@dataclass(frozen=True, kw_only=True)
class GraphDescription:
    """Everything that the predictor knows about a graph.

    Attributes:
        graph_sha256: Content hash of the stripped graph.
        stored: Parameters and buffers.
        depth: Multiplying operators on the longest path.
        unshaped_nodes: Device operators whose cost is unknown.
        families: Family of each device operator.
        scalars: Totals by name, affine in the batch.
        arrays: Per-operator counts by name, affine in the batch.
        symbols: Bound dimensions.
        warnings: What makes the figures less certain.
    """

    graph_sha256: str
    stored: ParameterCount
    depth: int
    unshaped_nodes: int
    families: tuple[OperatorFamily, ...]
    scalars: Mapping[str, Affine]
    arrays: Mapping[str, AffineArray]
    symbols: Mapping[str, int]
    warnings: tuple[GraphWarning, ...]

    @property
    def nodes(self) -> int:
        """Operators that run on the device."""
        return len(self.families)

    @cached_property
    def _operator_counts(self) -> Mapping[OperatorFamily, int]:
        """Operators by family, all families present."""
        counts = dict.fromkeys(OperatorFamily, 0)
        for family in self.families:
            counts[family] += 1
        return counts

    def at_batch(self, batch: int) -> GraphFeatures:
        """Computes the features at one batch.

        Args:
            batch: Samples per step, 1 to 1,048,576.

        Raises:
            InvalidBatchError: Not an integer within that range.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= DEFAULT_LIMITS.batch:
            raise InvalidBatchError(
                f"the batch is {batch!r}", remedy=f"use an integer from 1 to {DEFAULT_LIMITS.batch}"
            )
        output_bytes = self.arrays["operator_output_bytes"].at(batch)
        return GraphFeatures(
            batch=batch,
            parameters=self.stored.parameters,
            parameter_bytes=self.stored.parameter_bytes,
            buffers=self.stored.buffers,
            buffer_bytes=self.stored.buffer_bytes,
            widest_activation_bytes=int(output_bytes.max(initial=0)),
            depth=self.depth,
            nodes=self.nodes,
            unshaped_nodes=self.unshaped_nodes,
            operator_counts=self._operator_counts,
            operator_families=self.families,
            operator_flops=self.arrays["operator_flops"].at(batch),
            operator_traffic_bytes=self.arrays["operator_traffic_bytes"].at(batch),
            **{name: self.scalars[name].at(batch) for name in SCALARS},
        )

    def to_json(self) -> str:
        """Writes the description; `from_json` restores it exactly."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "graph_sha256": self.graph_sha256,
                "parameters": self.stored.parameters,
                "parameter_bytes": self.stored.parameter_bytes,
                "buffers": self.stored.buffers,
                "buffer_bytes": self.stored.buffer_bytes,
                "depth": self.depth,
                "unshaped_nodes": self.unshaped_nodes,
                "families": list(self.families),
                "scalars": {name: [line.constant, line.per_sample] for name, line in self.scalars.items()},
                "arrays": {
                    name: [lines.constant.tolist(), lines.per_sample.tolist()] for name, lines in self.arrays.items()
                },
                "symbols": dict(self.symbols),
                "warnings": [[warning.code, warning.message] for warning in self.warnings],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> GraphDescription:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: Another schema.
        """
        read: dict[str, Any] = json.loads(text)
        if read.get("schema") != SCHEMA:
            raise ValueError(f"expected {SCHEMA}, found {read.get('schema')!r}; describe the graph again")
        stored = ParameterCount(
            **{name: read[name] for name in ("parameters", "parameter_bytes", "buffers", "buffer_bytes")}
        )
        return cls(
            graph_sha256=read["graph_sha256"],
            stored=stored,
            depth=read["depth"],
            unshaped_nodes=read["unshaped_nodes"],
            families=tuple(OperatorFamily(name) for name in read["families"]),
            scalars={name: Affine(*line) for name, line in read["scalars"].items()},
            arrays={
                name: AffineArray(*(np.array(part, dtype=np.float64) for part in lines))
                for name, lines in read["arrays"].items()
            },
            symbols=read["symbols"],
            warnings=tuple(GraphWarning(code=code, message=message) for code, message in read["warnings"]),
        )


def describe_graph(data: bytes, dimension_bindings: Mapping[str, int] | None = None) -> GraphDescription:
    """Measures an ONNX graph for all batches.

    Args:
        data: Serialized model; weights are not needed and never read.
        dimension_bindings: Sizes of dimensions that were exported as names. `batch`, `N`, `batch_size` and an unnamed
            first dimension are the batch unless bound here. For a graph without names, `batch` states which batch it
            was exported with.

    Raises:
        GraphError: The graph is malformed, unsupported, too large, or has an unbound dimension.
        InvalidBindingError: A binding is not a usable size.
    """
    extraction = extract(data, dimension_bindings or {}, DEFAULT_LIMITS)
    return GraphDescription(
        graph_sha256=extraction.graph_sha256,
        stored=extraction.stored,
        depth=extraction.depth,
        unshaped_nodes=extraction.unshaped_nodes,
        families=extraction.lines.families,
        scalars=extraction.lines.scalars,
        arrays=extraction.lines.arrays,
        symbols=extraction.symbols,
        warnings=extraction.warnings,
    )
