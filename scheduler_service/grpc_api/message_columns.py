"""The fields of many small messages as columns, read off their bytes: thousands of rows in a fixed number of steps.

To make an object of each message and ask it for each field takes ten times as long.

Source:
    Protocol Buffers, "Encoding": tags, variable-width integers, length-delimited records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from math import inf
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

Column = NDArray[Any]
_Places = NDArray[np.intp]
_Stated = NDArray[np.bool_]
_PAYLOAD: Final = 0x7F
_GOES_ON: Final = 0x80
_SHIFTS: Final = [np.uint64(7 * place) for place in range(1, 10)]
"""Of the bytes of an integer behind its first."""
_LAST_SHIFT: Final = 63
_PADDING_BYTES: Final = 15 * 11
"""As far as the numbers of a row can be read beyond its end: 15 fields of a tag and ten bytes."""


class WireType(IntEnum):
    """How a field is encoded, by its number in a tag."""

    VARINT = 0
    FIXED_64 = 1
    LENGTH_DELIMITED = 2


@dataclass(frozen=True, slots=True)
class Columns:
    """What was read of some rows.

    Attributes:
        rows: The rows, without fields that their type does not have.
        numbers: By field name; a row that does not state a field has 0 there. Without the length-delimited fields.
        ends: By field name where the field ends in its row, in bytes; of those that are length-delimited.
    """

    rows: Sequence[bytes]
    numbers: dict[str, Column] = field(default_factory=dict)
    ends: dict[str, _Places] = field(default_factory=dict)


def unread_rows(message: Descriptor) -> type[Any]:
    """Return a twin of a message type, equal on the wire, whose parts of other message types stay bytes.

    Each such part is repeated: one that is stated several times is one message, whose bytes are those of all together.
    """
    twin = descriptor_pb2.DescriptorProto()
    message.CopyToProto(twin)
    for part in twin.field:
        if part.type == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
            part.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            part.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            part.ClearField("type_name")
    name = f"Unread{message.name}"
    twin.name = name
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3", message_type=[twin])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def read_columns(kind: type[Message], rows: Sequence[bytes]) -> Columns:
    """Read rows of one message type.

    Args:
        kind: Has scalar fields only, numbered up to 15.
        rows: Serialized by anyone; those that are not written as `SerializeToString` would are written so.

    Raises:
        DecodeError: A row is no message.
    """
    reader = _Reader(rows)
    if not reader.read_all(kind):
        # A newer caller states what this type does not have, another library has its own order, a name is not ASCII.
        reader = _Reader([_known_part(kind, row) for row in rows])
        reader.read_all(kind)
    return reader.found


def _known_part(kind: type[Message], row: bytes) -> bytes:
    message = kind.FromString(row)
    message.DiscardUnknownFields()
    return message.SerializeToString()


class _Reader:
    """Reads rows field by field, each field of all rows in the same few steps.

    Args:
        rows: The rows.

    Attributes:
        found: What was read.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.found = Columns(rows)
        # No tag is 0, by which a row ends; a last one that breaks off is read beyond its end.
        self._data = np.frombuffer(b"\0".join((*rows, bytes(_PADDING_BYTES))), dtype=np.uint8)
        lengths = np.fromiter(map(len, rows), dtype=np.intp, count=len(rows))
        self._ends = np.cumsum(lengths + 1) - 1
        self._at = self._ends - lengths
        self._high_bytes = 0
        """Bytes above 127 in numbers."""

    def read_all(self, kind: Any) -> bool:  # noqa: ANN401 - a class, which mypy does not take for hashable
        """Read all fields; False = a row has more than these, or is not written as `SerializeToString` would."""
        begins = self._at
        for name, tag, wire_type, (least, most) in _layout(kind):
            stated = self._data.take(self._at) == tag
            values = self._values(wire_type, stated)
            if values is None or (most < inf and (values.min(initial=0) < least or values.max(initial=0) > most)):
                return False
            if wire_type is WireType.LENGTH_DELIMITED:
                self._at = self._at + values
                # An empty text would not be stated.
                if np.count_nonzero(values) < np.count_nonzero(stated) or (self._at > self._ends).any():
                    return False
                self.found.ends[name] = self._at - begins
            else:
                self.found.numbers[name] = values
        is_ascii = np.count_nonzero(self._data >= _GOES_ON) == self._high_bytes
        return is_ascii and np.array_equal(self._at, self._ends)

    def _values(self, wire_type: WireType, stated: _Stated) -> Column | None:
        """Return the numbers of a field or the lengths of its texts, 0 where it is not stated; None = an odd one."""
        if not stated.any():
            return np.zeros(len(stated), dtype=np.int64)
        self._at = self._at + stated
        return self._doubles(stated) if wire_type is WireType.FIXED_64 else self._varints(stated)

    def _doubles(self, stated: _Stated) -> Column:
        at_every_byte: Column = np.ndarray(len(self._data) - 7, dtype="<f8", buffer=self._data, strides=(1,))
        values: Column = at_every_byte[self._at]
        values[~stated] = 0.0
        self._high_bytes += int(np.count_nonzero(values.view(np.uint8) >= _GOES_ON))
        self._at = self._at + 8 * stated
        return values

    def _varints(self, stated: _Stated) -> Column | None:
        byte = self._data.take(self._at)
        self._at = self._at + stated
        goes_on = stated & (byte >= _GOES_ON)
        if not goes_on.any():
            return (byte * stated).astype(np.int64)
        values: Column = ((byte & _PAYLOAD) * stated).astype(np.uint64)
        for shift in _SHIFTS:
            count = int(np.count_nonzero(goes_on))
            if not count:
                break
            self._high_bytes += count
            byte = self._data.take(self._at)
            self._at = self._at + goes_on
            values |= ((byte & _PAYLOAD) * goes_on).astype(np.uint64) << shift
            # Nor may the last byte add nothing: names are found by their bytes. Of the tenth one bit is left.
            if (goes_on & (byte == 0 if shift < _LAST_SHIFT else byte != 1)).any():
                return None
            goes_on = goes_on & (byte >= _GOES_ON)
        return values.view(np.int64)


@cache
def _layout(kind: Any) -> list[tuple[str, int, WireType, tuple[float, float]]]:  # noqa: ANN401 - a class, which mypy does not take for hashable
    """Return name, tag and type of each field, and the least and most that a message keeps as they are."""
    fields = kind.DESCRIPTOR.fields_by_number
    ordered = [(number, fields[number], _wire_type(fields[number].type)) for number in sorted(fields)]
    return [(part.name, number << 3 | wire, wire, _KEPT.get(part.type, (-inf, inf))) for number, part, wire in ordered]


def _wire_type(kind: int) -> WireType:
    of = descriptor_pb2.FieldDescriptorProto
    if kind in (of.TYPE_STRING, of.TYPE_BYTES):
        return WireType.LENGTH_DELIMITED
    return WireType.FIXED_64 if kind == of.TYPE_DOUBLE else WireType.VARINT


_KEPT: Final[Mapping[int, tuple[float, float]]] = {
    descriptor_pb2.FieldDescriptorProto.TYPE_BOOL: (0, 1),
    descriptor_pb2.FieldDescriptorProto.TYPE_ENUM: (-(2**31), 2**31 - 1),
    # The length of one.
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING: (0, 2**31 - 1),
}
