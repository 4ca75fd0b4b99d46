"""The steps from bytes to counts over all batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onnx import GraphProto, ModelProto

from predictor_service.errors import GraphError
from predictor_service.features.graphs.affine import Affine
from predictor_service.features.graphs.batch_lines import BatchLines, fit_lines, scale_lines, worst_deviation_ratio
from predictor_service.features.graphs.constant_folding import fold_small_constants
from predictor_service.features.graphs.dead_nodes import drop_dead_nodes
from predictor_service.features.graphs.dimension_binding import BoundInputs, bind_inputs, free_fixed_reshapes, set_batch
from predictor_service.features.graphs.graph_limits import GraphLimits
from predictor_service.features.graphs.graph_measurement import (
    GraphStructure,
    Measurement,
    ParameterCount,
    count_parameters,
    lacks_multiplying_shape,
    longest_path,
    measure_graph,
    read_structure,
)
from predictor_service.features.graphs.graph_nodes import flatten
from predictor_service.features.graphs.omitted_outputs import name_omitted_outputs
from predictor_service.features.graphs.onnx_graph import read_graph_bytes
from predictor_service.features.graphs.routed_tokens import (
    PASSES_MAX,
    Routed,
    find_routed,
    forget_routed,
    note_routed,
    whole_shares,
)
from predictor_service.features.graphs.shape_inference import ShapeTable, infer_shapes, infer_shapes_symbolically
from predictor_service.features.graphs.split_sequences import unroll_split_sequences
from predictor_service.features.graphs.step_operators import reserved_bytes
from predictor_service.features.graphs.weight_inputs import find_weight_inputs

SCALARS: Final = (
    "forward_macs",
    "forward_flops",
    "traffic_bytes",
    "activation_bytes_saved",
    "activation_bytes_saved_mixed",
    "input_bytes",
    "output_bytes",
    "largest_unfolded_bytes",
    "recurrent_steps",
    "lstm_steps",
    "reserved_bytes",
)
"""Names of the totals that every extraction has."""

UNCOUNTED_MACS: Final = "UNCOUNTED_MACS"
"""Code of the warning that multiply-adds are missing in the counts."""

# Adjacent, so that integer slopes are exact; above 1, so that no dimension looks like one to be broadcast.
_FIRST_BATCH, _SECOND_BATCH, _CHECK_BATCH = 2, 3, 7
_CHECKED_NODES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphWarning:
    """Something that makes the figures less certain.

    Attributes:
        code: UPPER_SNAKE_CASE, stable.
        message: For a person, with the numbers and what to do.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What was found in a graph.

    Attributes:
        graph_sha256: Content hash of the stripped graph.
        stored: Parameters and buffers.
        depth: Multiplying operators on the longest path.
        unshaped_nodes: Device operators whose cost is unknown.
        lines: All counts over the batch.
        symbols: Bound dimensions.
        warnings: What makes the figures less certain.
    """

    graph_sha256: str
    stored: ParameterCount
    depth: int
    unshaped_nodes: int
    lines: BatchLines
    symbols: Mapping[str, int]
    warnings: tuple[GraphWarning, ...]


@dataclass(frozen=True, slots=True)
class _Subject:
    """A bound graph that can be measured at any batch."""

    model: ModelProto
    structure: GraphStructure
    bound: BoundInputs
    limits: GraphLimits
    routed: Routed

    def measure(self, batch: int) -> tuple[Measurement, ShapeTable]:
        set_batch(self.model, self.bound, batch)
        table = self._infer_shapes()
        measurement = measure_graph(self.structure, table)
        if lacks_multiplying_shape(measurement):
            table = infer_shapes_symbolically(self.model, table, self.limits)
            measurement = measure_graph(self.structure, table)
        return measurement, table

    def _infer_shapes(self) -> ShapeTable:
        """What follows from the inputs, and from the mean number of tokens that routers give to experts."""
        forget_routed(self.model.graph, self.routed)
        table = infer_shapes(self.model, self.limits)
        for _ in range(PASSES_MAX if self.routed else 0):
            if not note_routed(self.model.graph, self.routed, table):
                break
            table = infer_shapes(self.model, self.limits)
        return table


def extract(data: bytes, bindings: Mapping[str, int], limits: GraphLimits) -> Extraction:
    """Reads, binds, infers and counts.

    Args:
        data: Serialized model.
        bindings: Sizes of named dimensions.
        limits: Largest accepted sizes.

    Raises:
        GraphError: The graph is malformed, unsupported, too large, or has an unbound dimension.
        InvalidBindingError: A binding is not a usable size.
    """
    graph = read_graph_bytes(data, limits)
    _simplify(graph.model.graph)
    nodes = flatten(graph.model.graph)
    weights = find_weight_inputs(graph.model.graph, nodes)
    bound = bind_inputs(graph.model, weights, bindings, limits)
    structure = read_structure(graph.model.graph, nodes, weights, bound.data_inputs)
    subject = _Subject(graph.model, structure, bound, limits, find_routed(graph.model.graph))
    warnings = _warn_about_inputs(structure, bound, weights)
    if bound.exported_batch is None:
        lines, measurement, table, batch = _follow_symbolic_batch(subject, warnings)
    else:
        lines, measurement, table = _follow_fixed_batch(subject, bound.exported_batch, warnings)
        batch = bound.exported_batch
    _warn_about_measurement(measurement, structure, warnings)
    if any(output in table for output in subject.routed):
        message = "each expert is counted with the mean of its tokens, as if the router favoured none"
        warnings.append(GraphWarning(code="ROUTED_TOKENS", message=message))
    reserved = _follow_reserved(structure, table, batch)
    lines = dataclasses.replace(lines, scalars={**lines.scalars, "reserved_bytes": reserved})
    return Extraction(
        graph_sha256=graph.graph_sha256,
        stored=count_parameters(structure, table),
        depth=longest_path(structure, measurement.families),
        unshaped_nodes=len(measurement.unshaped),
        lines=lines,
        symbols=bound.symbols,
        warnings=tuple(warnings),
    )


def _follow_reserved(structure: GraphStructure, table: ShapeTable, batch: int) -> Affine:
    """What the allocator reserves, from a replay at one batch: sizes of tensors are in proportion to it."""
    found = reserved_bytes(structure.nodes, structure.roles, structure.fused, table)
    return Affine(0, found // batch) if batch else Affine(found, 0)


def _simplify(graph: GraphProto) -> None:
    """Rewrite what stands between shape inference and the shapes; what is computed stays the same."""
    unroll_split_sequences(graph, fold_small_constants(graph))
    drop_dead_nodes(graph)
    name_omitted_outputs(graph)


def _follow_symbolic_batch(
    subject: _Subject, warnings: list[GraphWarning]
) -> tuple[BatchLines, Measurement, ShapeTable, int]:
    first, table = subject.measure(_FIRST_BATCH)
    shares = whole_shares(subject.routed, table)
    if shares > 1:
        first, _ = subject.measure(shares * _FIRST_BATCH)
    batch = shares * _SECOND_BATCH
    second, table = subject.measure(batch)
    lines = fit_lines((shares * _FIRST_BATCH, first), (batch, second))
    if len(subject.structure.nodes) <= _CHECKED_NODES:
        checked = shares * _CHECK_BATCH
        third, _ = subject.measure(checked)
        deviation = worst_deviation_ratio(lines, checked, third)
        if deviation > 0:
            message = (
                f"some counts do not grow linearly with the batch (off by {deviation:.1%} at batch {checked}); "
                "figures at large batches are extrapolated"
            )
            warnings.append(GraphWarning(code="NOT_AFFINE", message=message))
    return lines, second, table, batch


def _follow_fixed_batch(
    subject: _Subject, exported_batch: int, warnings: list[GraphWarning]
) -> tuple[BatchLines, Measurement, ShapeTable]:
    """A graph exported with a fixed batch: free it when the freed graph reproduces the original, else scale."""
    native, table = subject.measure(exported_batch)
    if exported_batch == 0:
        message = "no graph input has a dimension that could be the batch; all figures are the same at every batch"
        warnings.append(GraphWarning(code="NO_BATCH", message=message))
        return fit_lines((1, native), (2, native)), native, table
    lines = _free_batch(subject, exported_batch, native)
    how = "other batches were inferred by replacing it"
    if lines is None:
        lines = scale_lines(exported_batch, native)
        how = (
            "the graph cannot be rebound, so other batches are scaled in proportion; set dimension_bindings[batch] "
            "when the exported batch was another one, or export with a dynamic batch"
        )
    message = f"the graph was exported with the fixed batch {exported_batch}; {how}"
    warnings.append(GraphWarning(code="FIXED_BATCH", message=message))
    return lines, native, table


def _free_batch(subject: _Subject, exported_batch: int, native: Measurement) -> BatchLines | None:
    """Lines of the graph with its batch replaced; None when the result contradicts the original."""
    if not subject.bound.batch_slots:
        return None
    model = ModelProto()
    model.CopyFrom(subject.model)
    free_fixed_reshapes(model, subject.structure.nodes, exported_batch)
    freed = dataclasses.replace(subject, model=model)
    try:
        first, _ = freed.measure(_FIRST_BATCH)
        second, _ = freed.measure(_SECOND_BATCH)
    except GraphError:
        return None
    lines = fit_lines((_FIRST_BATCH, first), (_SECOND_BATCH, second))
    same_holes = second.unshaped == native.unshaped and second.broken_reshapes <= native.broken_reshapes
    agrees = worst_deviation_ratio(lines, exported_batch, native) == 0
    grows = lines.scalars["forward_macs"].per_sample > 0 or native.totals["forward_macs"] == 0
    return lines if same_holes and agrees and grows else None


def _warn_about_inputs(structure: GraphStructure, bound: BoundInputs, weights: frozenset[str]) -> list[GraphWarning]:
    warnings = []
    if weights:
        message = f"{len(weights)} graph inputs are counted as weights by the operators that take them"
        warnings.append(GraphWarning(code="WEIGHTS_AS_INPUTS", message=message))
    if bound.unused_bindings:
        message = f"the graph has no dimension named {', '.join(bound.unused_bindings)}; those bindings are ignored"
        warnings.append(GraphWarning(code="UNUSED_BINDING", message=message))
    if any(node.op_type == "Loop" for node in structure.nodes):
        message = "how often a Loop runs is not known before the run; its body is counted once"
        warnings.append(GraphWarning(code="LOOP_COUNTED_ONCE", message=message))
    return warnings


def _warn_about_measurement(measurement: Measurement, structure: GraphStructure, warnings: list[GraphWarning]) -> None:
    if measurement.unshaped:
        nodes = [structure.nodes[structure.roles.device_nodes[position]] for position in measurement.unshaped]
        names = sorted({node.op_type for node in nodes})
        message = f"{len(nodes)} operators without a known shape count as 0: {', '.join(names[:10])}"
        warnings.append(GraphWarning(code="UNSHAPED_NODES", message=message))
        if lacks_multiplying_shape(measurement):
            message = "some of them multiply: a step takes longer, and may need more memory, than is counted"
            warnings.append(GraphWarning(code=UNCOUNTED_MACS, message=message))
    if measurement.broken_reshapes:
        message = (
            f"{measurement.broken_reshapes} reshapes do not keep the number of elements: a batch is written into the "
            "graph as a number; export with a dynamic batch"
        )
        warnings.append(GraphWarning(code="BAKED_BATCH", message=message))
    if not structure.roles.parameter_candidates:
        message = "the graph holds no weights; memory and traffic of parameters count as 0"
        warnings.append(GraphWarning(code="NO_PARAMETERS", message=message))
