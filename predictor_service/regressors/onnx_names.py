"""Names inside an ONNX file by order of appearance, so that equal models have equal bytes.

Converters draw tensor names from a counter of the whole process, and list operator sets in the order of a hash table.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto


def serialize_with_canonical_names(model: ModelProto) -> bytes:
    """Renames everything but the inputs and outputs of the outer graph, and serializes.

    Args:
        model: Changed in place.
    """
    kept = [value.name for value in (*model.graph.input, *model.graph.output)]
    names = {name: name for name in [*kept, ""]}
    for graph in _graphs(model.graph):
        graph.name = "regressor"
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name = names.setdefault(value.name, f"t{len(names)}")
        for tensor in graph.initializer:
            tensor.name = names.setdefault(tensor.name, f"t{len(names)}")
        for place, node in enumerate(graph.node):
            node.name = f"n{place}"
            for tensors in (node.input, node.output):
                tensors[:] = [names.setdefault(name, f"t{len(names)}") for name in tensors]
    operator_sets = sorted(model.opset_import, key=lambda operator_set: operator_set.domain)
    del model.opset_import[:]
    model.opset_import.extend(operator_sets)
    return bytes(model.SerializeToString(deterministic=True))


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
