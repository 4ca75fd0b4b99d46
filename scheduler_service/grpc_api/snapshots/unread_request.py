"""A question to Decide as it came: its snapshot stays bytes until the thread that decides reads it.

To make messages of a snapshot takes milliseconds, in which the server's own thread would answer no agent and no user;
and most of its rows are of pairs that are never asked for, or known from the snapshot before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.message_columns import unread_rows

_UNREAD: Final = unread_rows(scheduling_pb2.DecideRequest.DESCRIPTOR)


@dataclass(frozen=True, slots=True)
class UnreadRequest:
    """What is asked, and about what.

    Attributes:
        asked: The request without its snapshot.
        snapshot: Serialized.
        has_snapshot: One was sent, though it may be empty.
    """

    asked: scheduling_pb2.DecideRequest
    snapshot: bytes
    has_snapshot: bool = True

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read a serialized request.

        Raises:
            DecodeError: It is none.
        """
        unread = _UNREAD.FromString(content)
        snapshot, has_snapshot = b"".join(unread.snapshot), bool(unread.snapshot)
        unread.ClearField("snapshot")
        return cls(scheduling_pb2.DecideRequest.FromString(unread.SerializeToString()), snapshot, has_snapshot)
