"""From bytes to a checked ONNX model without weights and functions."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError
from onnx import ModelProto, inliner
from onnx.checker import ValidationError

from cotenant.graph_file import GraphFileError, GraphTooLargeError, graph_sha256, strip_weights
from predictor_service.errors import GraphLimitError, MalformedGraphError
from predictor_service.features.graph_limits import GraphLimits, check_graph_bytes, check_model_size
from predictor_service.features.graph_structure import check_structure
from predictor_service.features.graph_text import check_text


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A checked model and the name of its content.

    Attributes:
        model: Functions inlined; weights absent, their dimensions present.
        graph_sha256: Hash of the stripped bytes as the client sends them, 64 hexadecimal digits.
    """

    model: ModelProto
    graph_sha256: str


def read_graph_bytes(data: bytes, limits: GraphLimits) -> OnnxGraph:
    """Parses and checks an ONNX model, cheapest checks first.

    Args:
        data: Serialized model, with or without weights.
        limits: Largest accepted sizes.

    Raises:
        MalformedGraphError: Not ONNX, or not a graph.
        UnsupportedGraphError: An operator set that this version does not know.
        GraphLimitError: Larger than the limits.
    """
    check_graph_bytes(data, limits)
    try:
        stripped = strip_weights(data, node_limit=limits.nodes, field_limit=limits.protobuf_fields)
        model = ModelProto.FromString(stripped)
    except GraphTooLargeError as error:
        raise GraphLimitError(str(error), remedy="export a smaller part of the model") from None
    except GraphFileError as error:
        raise MalformedGraphError(str(error), remedy="send the bytes of an .onnx file; export it again") from None
    except DecodeError:
        raise MalformedGraphError("the bytes are not an ONNX model", remedy="send the bytes of an .onnx file") from None
    check_text(model, limits)
    check_model_size(model, limits)
    check_structure(model)
    if model.functions:
        model = _inline_functions(model)
        check_model_size(model, limits)
        check_structure(model)
    return OnnxGraph(model=model, graph_sha256=graph_sha256(stripped))


def _inline_functions(model: ModelProto) -> ModelProto:
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, ValidationError) as error:  # how the C++ inliner reports broken functions
        raise MalformedGraphError(
            f"a function of the model cannot be expanded: {error}", remedy="export the model without functions"
        ) from None
