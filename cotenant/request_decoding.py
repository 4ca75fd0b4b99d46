"""Requests whose bytes are no message: gRPC itself would answer INTERNAL, as if the service had failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

MALFORMED_MESSAGE: Final = "the bytes of the request are no message of this method; send what the contract names"


class MalformedRequest:
    """Stands for a request that cannot be decoded, until the method's turn comes to refuse it."""


def tolerant(decode: Callable[[bytes], object] | None) -> Callable[[bytes], object] | None:
    """Return a decoder that hands on a `MalformedRequest` instead of raising.

    Args:
        decode: Of one method; None where the method takes bytes as they are.
    """
    if decode is None:
        return None

    def decode_or_mark(content: bytes) -> object:
        try:
            return decode(content)
        except (DecodeError, ValueError, RecursionError):
            return MalformedRequest()

    return decode_or_mark
