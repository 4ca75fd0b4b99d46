"""How large one message between a client and the scheduler may be."""

from __future__ import annotations

from cotenant.client import MESSAGE_LIMIT_BYTES
from scheduler_service.grpc_api.server import RECEIVED_MESSAGE_BYTES_MAX, SENT_MESSAGE_BYTES_MAX


def test_the_client_sends_what_the_scheduler_takes_and_takes_what_it_answers() -> None:
    assert (MESSAGE_LIMIT_BYTES, MESSAGE_LIMIT_BYTES) == (RECEIVED_MESSAGE_BYTES_MAX, SENT_MESSAGE_BYTES_MAX)
