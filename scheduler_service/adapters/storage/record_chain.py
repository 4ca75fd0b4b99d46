"""The chain of checksums in an event log: each event's link covers its content and the link of the event before.

Whatever is altered, removed or put in between without recomputing all later links is noticed. A chain is no signature:
it has no secret, and a whole older copy of a log is in itself sound (`log_head` notices one that is put back here).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

LINK_BYTES = 16
START = bytes(LINK_BYTES)
"""The link before the first event of a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Where the chain begins: every event after `sequence` has a link, the first one to `link`.

    It moves on as old events leave. Events at it and before, of a version without the chain, may have none.
    """

    sequence: int
    link: bytes


def next_link(previous: bytes, sequence: int, at_ms: int, body: bytes) -> bytes:
    """Return the link of an event.

    Args:
        previous: The link of the event before.
        sequence: The event's place in the log.
        at_ms: Its instant, as it is stored next to its body.
        body: As it is stored.
    """
    return blake2b(b"%b%d:%d:%b" % (previous, sequence, at_ms, body), digest_size=LINK_BYTES).digest()


def request_checksum(sequence: int, request_id: str, body_sha256: str, answer: str) -> bytes:
    """Return the checksum of an answered request; it is kept for longer than its event."""
    text = "\n".join((str(sequence), request_id, body_sha256, answer))
    return blake2b(text.encode(), digest_size=LINK_BYTES).digest()


def snapshot_checksum(link: bytes, sequence: int, body: bytes) -> bytes:
    """Return the checksum of a snapshot.

    Args:
        link: Of the event at `sequence`; empty where it has none.
        sequence: The newest event in the snapshot.
        body: As it is stored.
    """
    return blake2b(b"%b:%d:%b" % (link, sequence, body), digest_size=LINK_BYTES).digest()
