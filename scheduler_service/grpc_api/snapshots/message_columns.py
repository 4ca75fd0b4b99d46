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
Places = NDArray[np.intp]
_Stated = NDArray[np.bool_]
_PAYLOAD: Final = 0x7F
_GOES_ON: Final = 0x80
_SHIFTS: Final = [np.uint64(7 * place) for place in range(1, 10)]
"""Of the bytes of an integer behind its first."""
_LAST_SHIFT: Final = 63
_WORD_BYTES: Final = 8
_PADDING: Final = bytes(1 + 15 * 129)
"""The end of the last row, and as far as can be read beyond it: 15 fields of a tag, a length and 127 bytes."""


class WireType(IntEnum):
    """How a field is encoded, by its number in a tag."""

    VARINT = 0
    FIXED_64 = 1
    LENGTH_DELIMITED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What was read of some rows.

    Attributes:
        rows: The rows, without fields that their type does not have.
        content: The bytes of all of them.
        begins: Where each begins in it.
        numbers: By field name; a row that does not state a field has 0 there. Without the length-delimited fields.
        spans: By field name from where to where the field lies in the content; of those that are length-delimited.
    """

    rows: Sequence[bytes]
    content: Column
    begins: Places
    numbers: dict[str, Column] = field(default_factory=dict)
    spans: dict[str, tuple[Places, Places]] = field(default_factory=dict)

    def ends(self, name: str, numbers: Places) -> Sequence[int]:
        """Return where a length-delimited field ends in the rows with these numbers, in bytes from their begin."""
        found: Sequence[int] = (self.spans[name][1][numbers] - self.begins[numbers]).tolist()
        return found

    def alike(self, name: str, stated: bytes) -> _Stated:
        """Say by row whether it may state a length-delimited field so: those that do not mostly end otherwise.

        Args:
            name: Of the field.
            stated: The field as it is encoded, with its tag; empty = it is not stated.
        """
        compared = stated[-_WORD_BYTES:]
        # In front of the first row there is nothing, and what is read instead at worst makes that row alike.
        words = _at_every_byte(self.content, "<u8")[self.spans[name][1] - len(compared)]
        mask = np.uint64((1 << 8 * len(compared)) - 1)
        found: _Stated = words & mask == np.uint64(int.from_bytes(compared, "little"))
        return found


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
        # No tag is 0, by which a row ends; a last one that breaks off is read beyond its end.
        self._data = np.frombuffer(b"\0".join(rows) + _PADDING, dtype=np.uint8)
        lengths = np.fromiter(map(len, rows), dtype=np.intp, count=len(rows))
        self._ends = np.cumsum(lengths + 1) - 1
        self._at = self._ends - lengths
        self.found = Columns(rows, self._data, self._at)
        self._high_bytes = 0
        """Bytes above 127 in numbers."""

    def read_all(self, kind: Any) -> bool:  # noqa: ANN401 - a class, which mypy does not take for hashable
        """Read all fields; False = a row has more than these, or is not written as `SerializeToString` would."""
        for name, tag, wire_type, kept in _layout(kind):
            begins = self._at
            stated = self._data.take(begins) == tag
            stating = int(np.count_nonzero(stated))
            values = self._values(wire_type, stated, stating, kept)
            if values is None:
                return False
            if wire_type is WireType.LENGTH_DELIMITED:
                self._at = self._at + values
                # An empty text would not be stated; how far beyond the end of a row a long one goes is not bounded.
                is_long = values.dtype != np.uint8
                if np.count_nonzero(values) < stating or (is_long and (self._at > self._ends).any()):
                    return False
                self.found.spans[name] = begins, self._at
            else:
                self.found.numbers[name] = values if wire_type is WireType.FIXED_64 else values.astype(np.int64)
        is_ascii = np.count_nonzero(self._data >= _GOES_ON) == self._high_bytes
        return is_ascii and np.array_equal(self._at, self._ends)

    def _values(self, wire_type: WireType, stated: _Stated, stating: int, kept: tuple[float, float]) -> Column | None:
        """Return the numbers of a field or the lengths of its texts, 0 where it is not stated; None = an odd one.

        Small ones are bytes.

        Args:
            wire_type: Of the field.
            stated: By row whether it states it.
            stating: How many do: mostly all or none, which takes fewer steps.
            kept: The least and most that a message keeps as they are.
        """
        if not stating:
            return np.zeros(len(stated), dtype=np.uint8)
        are_some = stating < len(stated)
        self._at = self._at + (stated if are_some else 1)
        if wire_type is WireType.FIXED_64:
            return self._doubles(stated, are_some=are_some)
        byte = self._data.take(self._at)
        if are_some:
            byte *= stated
        self._at = self._at + (stated if are_some else 1)
        most = int(byte.max())
        if most >= _GOES_ON:
            return self._varints(byte, kept)
        return byte if most <= kept[1] else None

    def _doubles(self, stated: _Stated, *, are_some: bool) -> Column:
        values: Column = _at_every_byte(self._data, "<f8")[self._at]
        if are_some:
            values[~stated] = 0.0
        self._high_bytes += int(np.count_nonzero(values.view(np.uint8) >= _GOES_ON))
        self._at = self._at + (8 * stated if are_some else 8)
        return values

    def _varints(self, byte: Column, kept: tuple[float, float]) -> Column | None:
        """Return integers of which some have several bytes.

        Args:
            byte: The first of each, 0 of a row without one.
            kept: The least and most that a message keeps as they are.
        """
        goes_on = byte >= _GOES_ON
        found: Column = (byte & _PAYLOAD).astype(np.uint64)
        for shift in _SHIFTS:
            count = int(np.count_nonzero(goes_on))
            if not count:
                break
            self._high_bytes += count
            byte = self._data.take(self._at)
            self._at = self._at + goes_on
            found |= ((byte & _PAYLOAD) * goes_on).astype(np.uint64) << shift
            # Nor may the last byte add nothing: names are found by their bytes. Of the tenth one bit is left.
            if (goes_on & (byte == 0 if shift < _LAST_SHIFT else byte != 1)).any():
                return None
            goes_on = goes_on & (byte >= _GOES_ON)
        values = found.view(np.int64)
        least, most = kept
        return None if values.min() < least or values.max() > most else values


def _at_every_byte(content: Column, dtype: str) -> Column:
    """Return the eight bytes from every place on as a number."""
    return np.ndarray(len(content) - _WORD_BYTES + 1, dtype=dtype, buffer=content, strides=(1,))


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
