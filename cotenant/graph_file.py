"""ONNX files without their weights: what leaves the user's machine is the graph, never the parameters.

The protobuf wire format is walked directly, so that neither the onnx package nor the memory for the weights is
needed: a file of 500 MB is mapped, and only the graph around its tensors is copied. Three things are taken out:

- data of tensors above 4 KiB, and of every floating-point initializer that no shape depends on: dimensions and type
  stay, the data is marked as stored elsewhere. Two trainings of one network thus have one hash, whatever their seeds;
- documentation and metadata, where exporters put stack traces with lines of the user's source code;
- the separate training graph (training_info), which no reader here uses.

Small tensors of this kind that an exporter moved to a side file are brought back: shapes depend on them.
Field numbers are those of onnx.proto. Stripping what is already stripped changes nothing.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SMALL_TENSOR_BYTES = 4096
"""Tensors up to this size keep their data, unless they are floating-point initializers."""

STRIPPED_LOCATION = b"stripped"
"""Name of the file that stripped tensors claim to be stored in; it never exists."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_WIDTH_BYTES = {_FIXED64: 8, _FIXED32: 4}
_WIRE_TYPES = frozenset({_VARINT, _FIXED64, _BYTES, _FIXED32})
_NESTING_LIMIT = 32
_DIMENSIONS_MAX = 64
# Attributes up to this size hold numbers or a scalar: not worth opening.
_PLAIN_ATTRIBUTE_BYTES = 64
_NAMES_BYTES = 4096
_OFFSET = re.compile(rb"[0-9]{1,18}")
# Name, type and dimensions fit into this.
_STRIPPED_TENSOR_BYTES = 256

# (message, field number) -> message it holds; every other field is copied as it is.
_HOLDS = {
    ("model", 7): "graph",
    ("model", 25): "function",
    ("graph", 1): "node",
    ("graph", 5): "initializer",
    ("graph", 11): "value_info",
    ("graph", 12): "value_info",
    ("graph", 13): "value_info",
    ("graph", 15): "sparse_tensor",
    ("function", 7): "node",
    ("function", 11): "attribute",
    ("function", 12): "value_info",
    ("node", 5): "attribute",
    ("attribute", 5): "tensor",
    ("attribute", 6): "graph",
    ("attribute", 10): "tensor",
    ("attribute", 11): "graph",
    ("attribute", 22): "sparse_tensor",
    ("attribute", 23): "sparse_tensor",
    ("sparse_tensor", 1): "tensor",
    ("sparse_tensor", 2): "tensor",
}
_DROPPED = {
    ("model", 6),  # doc_string
    ("model", 14),  # metadata_props
    ("model", 20),  # training_info
    ("graph", 10),
    ("graph", 16),
    ("function", 8),
    ("function", 14),
    ("node", 6),
    ("node", 9),
    ("attribute", 13),
    ("value_info", 3),
    ("value_info", 4),
}
_TENSOR_DATA_FIELDS = frozenset({4, 5, 6, 7, 9, 10, 11})
_TENSOR_LOCATION_FIELDS = frozenset({13, 14})
_TENSOR_PROSE_FIELDS = frozenset({12, 16})
_FLOATING_TYPES = frozenset({1, 10, 11, 14, 15, 16, 17, 18, 19, 20, 23, 24})
# Operators whose output shape depends on the values of a floating-point input.
_SHAPED_BY_FLOATS = re.compile(rb"Resize|Upsample|Range")
_WIDTH_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8}


class GraphFileError(ValueError):
    """The file is not an ONNX model, or only a part of one; the message says where and what to do."""


class GraphTooLargeError(GraphFileError):
    """The file is protobuf, but has more fields or deeper nesting than accepted."""


class _Field(NamedTuple):
    """One field of a message: where it starts and where its payload lies."""

    number: int
    wire_type: int
    start: int
    payload: int
    end: int


@dataclass(slots=True)
class _Walk:
    """What the walk needs to know besides the bytes."""

    data: memoryview
    folder: Path | None
    node_limit: int = 1_000_000
    field_limit: int = 100_000_000
    fields_seen: int = 0
    shaping_names: set[bytes] = field(default_factory=set)


def read_graph(path: Path | str) -> bytes:
    """Reads an ONNX file without its weights.

    Args:
        path: The .onnx file. Side files with external data are only looked at for small tensors that shapes depend on.

    Returns:
        A valid ONNX model; tensors whose data was taken out keep name, type and dimensions.

    Raises:
        GraphFileError: The file is empty, truncated, no regular file or not an ONNX model.
        OSError: The file cannot be opened.
    """
    path = Path(path)
    if path.is_fifo() or path.is_socket() or path.is_char_device():
        # Opening a pipe waits for its writer, maybe for ever.
        raise GraphFileError(f"{path} is a pipe or device and no file; write the graph to a file first")
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise GraphFileError(f"{path} is empty; export the model again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            try:
                return _strip(_Walk(data=data, folder=path.resolve().parent))
            except GraphFileError as error:
                raise type(error)(f"{path}: {error}") from None


def strip_weights(data: bytes, *, node_limit: int = 1_000_000, field_limit: int = 100_000_000) -> bytes:
    """Takes the weights out of an ONNX model that is already in memory.

    Args:
        data: The serialized model.
        node_limit: Most nodes in one graph or function.
        field_limit: Most protobuf fields looked at; bounds the time (about a microsecond each) on foreign bytes.

    Returns:
        As `read_graph`; equal input gives equal output, and stripped input is returned unchanged.

    Raises:
        GraphTooLargeError: More nodes or fields than the limit, or graphs nested too deep.
        GraphFileError: Empty, truncated or not an ONNX model.
    """
    if not data:
        raise GraphFileError("the graph is empty; send the bytes of an .onnx file")
    with memoryview(data) as view:
        return _strip(_Walk(data=view, folder=None, node_limit=node_limit, field_limit=field_limit))


def floating_tensors(data: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields name and dimensions of every floating-point initializer of the main graph.

    Raises:
        GraphFileError: Truncated, or no protobuf.
    """
    with memoryview(data) as view:
        walk = _Walk(data=view, folder=None)
        for graph in _payloads(walk, 0, len(view), 7):
            for tensor in _payloads(walk, graph.payload, graph.end, 5):
                fields = list(_fields(walk, tensor.payload, tensor.end))
                data_type = next((_varint(view, item.payload, item.end)[0] for item in fields if item.number == 2), 0)
                name = next((bytes(view[item.payload : item.end]) for item in fields if item.number == 8), b"")
                if data_type in _FLOATING_TYPES:
                    yield name.decode("utf-8", "replace"), _dimensions(walk, fields)


def _payloads(walk: _Walk, start: int, end: int, number: int) -> list[_Field]:
    return [item for item in _fields(walk, start, end) if item.number == number and item.wire_type == _BYTES]


def graph_sha256(stripped: bytes) -> str:
    """Names a stripped graph by its content.

    Args:
        stripped: What `read_graph` or `strip_weights` returned.

    Returns:
        64 lower-case hexadecimal digits.
    """
    return hashlib.sha256(stripped).hexdigest()


def _strip(walk: _Walk) -> bytes:
    length = len(walk.data)
    pieces: list[bytes] = []
    if not any(item.number == 7 and item.wire_type == _BYTES for item in _fields(walk, 0, length)):
        raise GraphFileError("no graph inside: this is not an ONNX model")
    _copy(walk, "model", (0, length), pieces)
    return b"".join(pieces)


def _copy(walk: _Walk, message: str, span: tuple[int, int], pieces: list[bytes], depth: int = 0) -> int:
    """Appends the stripped message to `pieces` and returns its length in bytes."""
    if depth > _NESTING_LIMIT:
        raise GraphTooLargeError(f"graphs nested deeper than {_NESTING_LIMIT} levels; flatten the control flow")
    if message in ("graph", "function"):
        _note_shaping_names(walk, message, span)
    start, end = span
    length = 0
    untouched = start  # beginning of the run of fields that are copied as they are
    for item in _fields(walk, start, end):
        inner = _HOLDS.get((message, item.number)) if item.wire_type == _BYTES else None
        if inner is not None and _needs_no_change(walk, inner, item):
            continue
        if inner is None and (message, item.number) not in _DROPPED:
            continue
        length += _append(pieces, walk.data[untouched : item.start])
        untouched = item.end
        if inner is not None:
            length += _copy_nested(walk, inner, item, pieces, depth)
    return length + _append(pieces, walk.data[untouched:end])


def _needs_no_change(walk: _Walk, inner: str, item: _Field) -> bool:
    """Shortcuts for the two commonest cases: short attributes and tensors that are stripped already."""
    size = item.end - item.payload
    if inner == "attribute":
        return size <= _PLAIN_ATTRIBUTE_BYTES
    stripped_at = item.end - len(_STRIPPED_FIELDS)
    return (
        inner in ("tensor", "initializer")
        and len(_STRIPPED_FIELDS) < size <= _STRIPPED_TENSOR_BYTES
        and walk.data[stripped_at : item.end] == _STRIPPED_FIELDS
    )


def _copy_nested(walk: _Walk, inner: str, item: _Field, pieces: list[bytes], depth: int) -> int:
    inside: list[bytes] = []
    if inner in ("tensor", "initializer"):
        size = _copy_tensor(walk, item.payload, item.end, inside, initializer=inner == "initializer")
    else:
        size = _copy(walk, inner, (item.payload, item.end), inside, depth + 1)
    header = _encode_varint(item.number << 3 | _BYTES) + _encode_varint(size)
    pieces.append(header)
    pieces.extend(inside)
    return len(header) + size


def _copy_tensor(walk: _Walk, start: int, end: int, pieces: list[bytes], *, initializer: bool) -> int:
    fields = list(_fields(walk, start, end))
    payload_bytes = sum(item.end - item.payload for item in fields if item.number in _TENSOR_DATA_FIELDS)
    data_type = next((_varint(walk.data, item.payload, item.end)[0] for item in fields if item.number == 2), 0)
    wanted = True
    if initializer and data_type in _FLOATING_TYPES:
        name = next((bytes(walk.data[item.payload : item.end]) for item in fields if item.number == 8), b"")
        wanted = name in walk.shaping_names
    kept = wanted and 0 < payload_bytes <= SMALL_TENSOR_BYTES
    dropped = _TENSOR_PROSE_FIELDS | _TENSOR_LOCATION_FIELDS | (frozenset() if kept else _TENSOR_DATA_FIELDS)
    length = 0
    for item in fields:
        if item.number not in dropped:
            length += _append(pieces, walk.data[item.start : item.end])
    if kept or _element_count(walk, fields) == 0:
        return length
    recovered = _external_numbers(walk, fields, data_type) if wanted and payload_bytes == 0 else b""
    return length + _append(pieces, _encode_bytes(9, recovered) if recovered else _STRIPPED_FIELDS)


def _element_count(walk: _Walk, fields: list[_Field]) -> int:
    return math.prod(_dimensions(walk, fields))


def _dimensions(walk: _Walk, fields: list[_Field]) -> tuple[int, ...]:
    dims: list[int] = []
    for item in fields:
        if item.number == 1:
            position = item.payload
            while position < item.end:
                value, position = _varint(walk.data, position, item.end)
                dims.append(value)
                if len(dims) > _DIMENSIONS_MAX:  # millions fit into a small file, and their product into no memory
                    raise GraphTooLargeError(f"a tensor with more than {_DIMENSIONS_MAX} dimensions")
    return tuple(dims)


def _external_numbers(walk: _Walk, fields: list[_Field], data_type: int) -> bytes:
    """Reads a small tensor from its side file; empty when it is large, absent or outside the folder."""
    size_bytes = _element_count(walk, fields) * _WIDTH_BYTES.get(data_type, 0)
    if walk.folder is None or not 0 < size_bytes <= SMALL_TENSOR_BYTES:
        return b""
    entries = dict(_string_entry(walk, item) for item in fields if item.number == 13)
    offset = entries.get(b"offset", b"0")
    location = entries.get(b"location", b"").decode("utf-8", "replace")
    if not _OFFSET.fullmatch(offset) or "\0" in location:
        return b""
    try:
        side_file = (walk.folder / location).resolve()
        if not side_file.is_relative_to(walk.folder) or not side_file.is_file():
            return b""
        with side_file.open("rb") as file:
            file.seek(int(offset))
            data = file.read(size_bytes)
    except OSError:  # a name too long, a file that may not be read: as good as absent
        return b""
    return data if len(data) == size_bytes else b""


def _string_entry(walk: _Walk, entry: _Field) -> tuple[bytes, bytes]:
    parts = {item.number: bytes(walk.data[item.payload : item.end]) for item in _fields(walk, entry.payload, entry.end)}
    return parts.get(1, b""), parts.get(2, b"")


def _note_shaping_names(walk: _Walk, message: str, span: tuple[int, int]) -> None:
    """Remembers which tensors feed an operator whose output shape depends on floating-point values."""
    node_number = 1 if message == "graph" else 7
    nodes = 0
    for node in _fields(walk, *span):
        nodes += node.number == node_number
        if nodes > walk.node_limit:
            raise GraphTooLargeError(f"more than {walk.node_limit} nodes in one graph")
        # Names come before attributes in what protobuf writes: the beginning shows whether a closer look pays.
        if node.number == node_number and _SHAPED_BY_FLOATS.search(walk.data[node.payload : node.end][:_NAMES_BYTES]):
            inside = _fields(walk, node.payload, node.end)
            walk.shaping_names.update(bytes(walk.data[item.payload : item.end]) for item in inside if item.number == 1)


def _fields(walk: _Walk, start: int, end: int) -> Iterator[_Field]:
    data, position = walk.data, start
    while position < end:
        key, payload = _varint(data, position, end)
        wire_type = key & 7
        if wire_type == _BYTES:
            size, payload = _varint(data, payload, end)
            field_end = payload + size
        elif wire_type == _VARINT:
            field_end = _varint(data, payload, end)[1]
        else:
            field_end = payload + _FIXED_WIDTH_BYTES.get(wire_type, 0)
        walk.fields_seen += 1
        if key < 8 or wire_type not in _WIRE_TYPES or field_end > end or walk.fields_seen > walk.field_limit:
            raise _broken_field(walk, position, key, field_end - end)
        yield _Field(key >> 3, wire_type, position, payload, field_end)
        position = field_end


def _broken_field(walk: _Walk, position: int, key: int, missing_bytes: int) -> GraphFileError:
    if walk.fields_seen > walk.field_limit:
        return GraphTooLargeError(f"more than {walk.field_limit} protobuf fields; the graph is too large")
    if key & 7 not in _WIRE_TYPES or key < 8:
        return GraphFileError(f"byte {position}: not protobuf (field tag {key}); is this an .onnx file?")
    return GraphFileError(f"byte {position}: truncated, {missing_bytes} bytes are missing; copy the file again")


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Decodes one unsigned varint; returns it with the position behind it."""
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            raise GraphFileError(f"byte {position}: not protobuf (number above 64 bits); is this an .onnx file?")
    raise GraphFileError(f"byte {position}: truncated inside a number; copy the file again")


def _append(pieces: list[bytes], piece: memoryview | bytes) -> int:
    # A copy: slices of a mapped file that an error leaves behind would keep the mapping from being closed.
    if len(piece):
        pieces.append(bytes(piece))
    return len(piece)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_bytes(number: int, payload: bytes) -> bytes:
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(payload)) + payload


# external_data {key: "location" value: "stripped"} and data_location EXTERNAL.
_STRIPPED_FIELDS = _encode_bytes(13, _encode_bytes(1, b"location") + _encode_bytes(2, STRIPPED_LOCATION)) + b"\x70\x01"
