"""What a certificate says, read without a library: its key, and when it is valid."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0
_FIELDS: Final = (_INTEGER, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE)
"""Serial number, algorithm, issuer, validity, subject and key."""
_VALIDITY, _KEY = 3, 5
_SHORT_YEAR, _LONG_YEAR = 0x17, 0x18
_PIVOT_YEAR: Final = 50
"""Years of two digits are those from 1950 to 2049."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """From when and until when a certificate is valid, milliseconds since 1970."""

    begins_at_ms: int
    ends_at_ms: int


@lru_cache(maxsize=1_024)
def key_sha256(certificate: bytes) -> str | None:
    """Returns the SHA-256 of a certificate's public key as it stands there (SubjectPublicKeyInfo); None = it is none.

    Args:
        certificate: PEM.
    """
    try:
        content, fields = _fields(certificate)
    except (ValueError, IndexError):
        return None
    begin, _, end = fields[_KEY]
    return hashlib.sha256(content[begin:end]).hexdigest()


@lru_cache(maxsize=1_024)
def validity(certificate: bytes) -> Validity | None:
    """Returns when a certificate is valid; None = it is none.

    Args:
        certificate: PEM; of several the first.
    """
    try:
        content, fields = _fields(certificate)
        _, place, _ = fields[_VALIDITY]
        begins_at_ms, place = _instant(content, place)
        ends_at_ms, _ = _instant(content, place)
    except (ValueError, IndexError):
        return None
    return Validity(begins_at_ms=begins_at_ms, ends_at_ms=ends_at_ms)


def _fields(certificate: bytes) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Returns the certificate as DER, and of each of its fields where it, its content and what follows it begin."""
    text = certificate.decode("ascii")
    first = text.partition(ssl.PEM_FOOTER)[0][text.find(ssl.PEM_HEADER) :]
    content = ssl.PEM_cert_to_DER_cert(f"{first}{ssl.PEM_FOOTER}\n")
    return content, list(_places(content))


def _places(content: bytes) -> Iterator[tuple[int, int, int]]:
    begin, _ = _element(content, 0, _SEQUENCE)
    place, _ = _element(content, begin, _SEQUENCE)
    if content[place] == _VERSION:
        _, place = _element(content, place, _VERSION)
    for tag in _FIELDS:
        begin, end = _element(content, place, tag)
        yield place, begin, end
        place = end


def _instant(content: bytes, place: int) -> tuple[int, int]:
    """Returns an instant, milliseconds since 1970, and where the next element begins."""
    tag = content[place]
    if tag not in (_SHORT_YEAR, _LONG_YEAR):
        raise ValueError("not an instant")
    begin, end = _element(content, place, tag)
    text = content[begin:end].decode("ascii")
    if tag == _SHORT_YEAR:
        text = f"{'19' if int(text[:2]) >= _PIVOT_YEAR else '20'}{text}"
    at = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return round(at.timestamp() * 1_000), end


def _element(content: bytes, place: int, expected_tag: int) -> tuple[int, int]:
    """Reads one element of DER; returns where its content begins and where it ends."""
    tag, length = content[place], content[place + 1]
    begin = place + 2
    if length & 0x80:
        octets = length & 0x7F
        length = int.from_bytes(content[begin : begin + octets], "big")
        begin += octets
    if tag != expected_tag or begin + length > len(content):
        raise ValueError("not the expected element")
    return begin, begin + length
