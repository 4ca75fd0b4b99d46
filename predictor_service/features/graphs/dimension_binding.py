"""Gives every dimension of the graph inputs a value, and finds which of them are the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto, TensorShapeProto, ValueInfoProto, numpy_helper

from predictor_service.errors import InvalidBindingError, UnboundDimensionError
from predictor_service.features.graphs.constant_folding import read_whole_numbers
from predictor_service.features.graphs.graph_limits import GraphLimits, subgraphs
from predictor_service.features.graphs.graph_nodes import GraphNode

BATCH_SYMBOLS = frozenset({"batch", "N", "batch_size"})
"""Names of dimensions that mean the batch unless a binding states otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundInputs:
    """What binding found.

    Attributes:
        data_inputs: Graph inputs that are neither initializers nor weights, in order.
        batch_slots: (input name, dimension) pairs that hold the batch; empty when none could be found.
        exported_batch: Size of the batch in a graph that was exported with a fixed one; None when it is symbolic,
            0 when the graph has no dimension that could be the batch.
        symbols: Dimension names with the values they got.
        unused_bindings: Names in the request that the graph does not have.
    """

    data_inputs: tuple[str, ...]
    batch_slots: frozenset[tuple[str, int]]
    exported_batch: int | None
    symbols: Mapping[str, int]
    unused_bindings: tuple[str, ...]


def bind_inputs(
    model: ModelProto, weights: frozenset[str], bindings: Mapping[str, int], limits: GraphLimits
) -> BoundInputs:
    """Writes the bindings into the model and finds the batch.

    Args:
        model: Changed in place: every dimension of its inputs has a value afterwards, except those of the batch;
            shapes of inner tensors and outputs are forgotten, since they may contradict the bindings.
        weights: Graph inputs that are weights.
        bindings: Dimension name to size.
        limits: Largest accepted size.

    Raises:
        InvalidBindingError: A size is not an integer within the limits.
        UnboundDimensionError: A dimension has neither value nor binding.
    """
    _check_bindings(bindings, limits)
    _forget_shapes(model)
    stored = {tensor.name for tensor in model.graph.initializer} | weights
    data = [value for value in model.graph.input if value.name not in stored]
    slots: set[tuple[str, int]] = set()
    bound: dict[str, int] = {}
    unbound: list[str] = []
    for value in data:
        for index, size in enumerate(value.type.tensor_type.shape.dim):
            if size.HasField("dim_value"):
                continue
            name = size.dim_param
            if name in bindings:
                size.dim_value = bound[name] = bindings[name]
            elif name in BATCH_SYMBOLS or (not name and index == 0):
                slots.add((value.name, index))
            else:
                unbound.append(name or f"{value.name}[{index}]")
    if unbound:
        raise _unbound_error(unbound)
    exported_batch = None
    if not slots:
        asked_batch = next((bindings[name] for name in sorted(BATCH_SYMBOLS & bindings.keys())), 0)
        exported_batch, slots = _find_fixed_batch(data, asked_batch)
    return BoundInputs(
        data_inputs=tuple(value.name for value in data),
        batch_slots=frozenset(slots),
        exported_batch=exported_batch,
        symbols=bound,
        unused_bindings=tuple(sorted(bindings.keys() - bound.keys() - (BATCH_SYMBOLS if exported_batch else set()))),
    )


def set_batch(model: ModelProto, bound: BoundInputs, batch: int) -> None:
    """Writes a batch into all its slots."""
    for value in model.graph.input:
        for index, size in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, index) in bound.batch_slots:
                size.dim_value = batch


def free_fixed_reshapes(model: ModelProto, nodes: Sequence[GraphNode], exported_batch: int) -> None:
    """Lets reshapes to a fixed batch follow a new one.

    Exporters write the target of a reshape as numbers; where the first is the exported batch and none is left open, it
    is opened (-1), so that shape inference fills in whatever the batch is.

    Args:
        model: Changed in place.
        nodes: Its flattened nodes.
        exported_batch: The batch in the file.
    """
    targets = {node.input(1) for node in nodes if node.op_type == "Reshape"}
    for tensor in _named_constants(model.graph):
        name, values = tensor
        target = read_whole_numbers(values) if name in targets else None
        if target is None or target.ndim != 1 or not target.size:
            continue
        if target[0] == exported_batch and (target > 0).all():
            opened = target.copy()
            opened[0] = -1
            values.CopyFrom(numpy_helper.from_array(opened, values.name))


def _named_constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], attribute.t


def _check_bindings(bindings: Mapping[str, int], limits: GraphLimits) -> None:
    for name, size in bindings.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= limits.dimension:
            raise InvalidBindingError(
                f"dimension_bindings[{name}]: {size!r} is no size",
                remedy=f"use an integer from 1 to {limits.dimension}",
            )


def _unbound_error(names: Sequence[str]) -> UnboundDimensionError:
    distinct = list(dict.fromkeys(names))
    named = all("[" not in name for name in distinct)
    bindings = " and ".join(f"dimension_bindings[{name}]" for name in distinct)
    return UnboundDimensionError(
        f"dimension{'s' if len(distinct) > 1 else ''} {', '.join(distinct)} of the graph inputs "
        f"{'have' if len(distinct) > 1 else 'has'} no value",
        remedy=f"set {bindings}" if named else "name it when exporting, then set its size",
        details={"symbols": ",".join(distinct)},
    )


def _find_fixed_batch(data: Sequence[ValueInfoProto], asked_batch: int) -> tuple[int, set[tuple[str, int]]]:
    """The batch of a graph without symbols: what the caller states, else the size that all inputs begin with."""
    leading = {value.name: _dims(value)[0].dim_value for value in data if _dims(value)}
    if not leading:
        return asked_batch, set()
    if not asked_batch and len(set(leading.values())) > 1:
        return next(iter(leading.values())), set()
    batch = asked_batch or next(iter(leading.values()))
    return batch, {(name, 0) for name, size in leading.items() if size == batch}


def _dims(value: ValueInfoProto) -> Sequence[TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim


def _forget_shapes(model: ModelProto) -> None:
    # What a network hands on as it came has its shape as an input: inference would take the forgotten one.
    stated = {value.name for value in model.graph.input} | {tensor.name for tensor in model.graph.initializer}
    made = [value for value in model.graph.output if value.name not in stated]
    del model.graph.output[:]
    model.graph.output.extend(made)
    _forget_inner_shapes(model.graph)
    foreign = {name for node in model.graph.node if node.domain not in ("", "ai.onnx") for name in node.output}
    kept = [value for value in model.graph.value_info if value.name in foreign and _is_static(value)]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)


def _is_static(value: ValueInfoProto) -> bool:
    return all(size.HasField("dim_value") for size in _dims(value))


def _forget_inner_shapes(graph: GraphProto) -> None:
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for inner in subgraphs(node):
            _forget_inner_shapes(inner)
            del inner.value_info[:]
            for value in inner.input:
                value.type.tensor_type.ClearField("shape")
