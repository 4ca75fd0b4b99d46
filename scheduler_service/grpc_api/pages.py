"""Pages of lists: opaque tokens, bounded sizes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile, islice
from typing import TypeVar

from google.protobuf.message import Message

from cotenant.names import NAME_PATTERN
from scheduler_service.errors import FieldViolation, InvalidRequestError
from scheduler_service.grpc_api.validation import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

PAGE_BYTES_MAX = 8 << 20
"""Of the messages of one page, or one that is larger; a job's command and environment alone may have 192 KiB."""
T = TypeVar("T")
M = TypeVar("M", bound=Message)


def page(
    items: Iterable[T], *, size: int, token: str, place_of: Callable[[T], str], is_after: Callable[[str, str], bool]
) -> tuple[list[T], str]:
    """Return one page and the token of the next one, empty at the end.

    Args:
        items: In the list's order.
        size: Wanted entries; 0 = the default; more than the bound is cut.
        token: Of the page before; empty = the first page.
        place_of: What identifies an entry's place, a name; it must survive the entry itself.
        is_after: Whether the first place comes after the second one in the list's order.

    Raises:
        InvalidRequestError: Bad size or token.
    """
    if size < 0:
        raise InvalidRequestError(FieldViolation(field="page_size", description="must not be negative"))
    limit = min(size or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
    rest = iter(items)
    if token:
        last_place = _decoded(token)
        rest = dropwhile(lambda item: not is_after(place_of(item), last_place), rest)
    found = list(islice(rest, limit + 1))
    next_token = _encoded(place_of(found[limit - 1])) if len(found) > limit else ""
    return found[:limit], next_token


def cut_to_bytes(
    messages: Sequence[M], token: str, *, wanted: int, place_of: Callable[[M], str]
) -> tuple[Sequence[M], str]:
    """Return as many messages of a page as one answer holds, at least one, and the token of the next page.

    Args:
        messages: Of the page, in the list's order; they may end early where they are too large already.
        token: Of the next page as it is.
        wanted: Entries of the page.
        place_of: As in `page`.
    """
    size_bytes = 0
    for number, message in enumerate(messages):
        size_bytes += message.ByteSize()
        if size_bytes > PAGE_BYTES_MAX and number:
            messages = messages[:number]
            break
    return messages, _encoded(place_of(messages[-1])) if len(messages) < wanted else token


def _encoded(place: str) -> str:
    return base64.urlsafe_b64encode(f"1:{place}".encode()).decode()


def _decoded(token: str) -> str:
    try:
        version, _, place = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        version, place = "", ""
    if version != "1" or not NAME_PATTERN.fullmatch(place):
        description = "must be a next_page_token of this method; leave it empty for the first page"
        raise InvalidRequestError(FieldViolation(field="page_token", description=description))
    return place
