"""Messages between the pool and its workers: length-prefixed frames over a socket pair.

Answers cross the border as JSON, never as pickles: a worker reads foreign bytes all day and is not trusted.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Final

from predictor_service import errors
from predictor_service.errors import ExtractionCrashedError, PredictorError

LARGEST_FRAME_BYTES: Final = 64 << 20

READY: Final = b"R"
DESCRIPTION: Final = b"D"
ERROR: Final = b"E"
LAST_ERROR: Final = b"L"
"""First byte of an answer: ready to work, a description, an error, an error after which the worker ends."""

_LENGTH = struct.Struct("!I")


def send_frame(connection: socket.socket, payload: bytes) -> None:
    """Sends one frame.

    Raises:
        OSError: The other side is gone, or the socket's timeout has passed.
    """
    connection.sendall(_LENGTH.pack(len(payload)) + payload)


def receive_frame(connection: socket.socket, before_read: Callable[[], None] = lambda: None) -> bytes:
    """Receives one frame; empty when the other side has closed.

    Args:
        connection: The socket.
        before_read: Called before every read, e.g. to shorten the socket's timeout.

    Raises:
        OSError: The socket's timeout has passed, or the frame is longer than accepted.
    """
    header = _receive_exactly(connection, _LENGTH.size, before_read)
    if not header:
        return b""
    (size_bytes,) = _LENGTH.unpack(header)
    if size_bytes > LARGEST_FRAME_BYTES:
        raise OSError(f"a frame of {size_bytes} bytes is longer than {LARGEST_FRAME_BYTES}")
    return _receive_exactly(connection, size_bytes, before_read)


def encode_request(data: bytes, bindings: Mapping[str, int]) -> bytes:
    """Packs a graph and its bindings."""
    header = json.dumps(dict(bindings)).encode()
    return _LENGTH.pack(len(header)) + header + data


def decode_request(payload: bytes) -> tuple[bytes, dict[str, int]]:
    """Unpacks what `encode_request` packed."""
    (header_bytes,) = _LENGTH.unpack_from(payload)
    start = _LENGTH.size + header_bytes
    return payload[start:], json.loads(payload[_LENGTH.size : start])


def encode_error(error: PredictorError) -> bytes:
    """Packs an error of the tree in `predictor_service.errors`."""
    name = type(error).__name__
    return json.dumps([name, error.message[:2000], error.remedy[:500], error.details]).encode()


def decode_error(payload: bytes) -> PredictorError:
    """Restores class, message, remedy and details; what is not of the tree is a crash."""
    name, message, remedy, details = json.loads(payload)
    error_class = getattr(errors, name, None)
    if not (isinstance(error_class, type) and issubclass(error_class, PredictorError)):
        error_class = ExtractionCrashedError
    return error_class(message, remedy=remedy, details=details)


def _receive_exactly(connection: socket.socket, size_bytes: int, before_read: Callable[[], None]) -> bytes:
    chunks: list[bytes] = []
    missing = size_bytes
    while missing:
        before_read()
        chunk = connection.recv(min(missing, 1 << 20))
        if not chunk:
            return b""
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
