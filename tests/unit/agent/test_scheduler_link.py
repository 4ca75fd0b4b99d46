"""How long an agent waits before it dials again, by its own choice and as the scheduler asks."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from cotenant_agent.scheduler_link import JOIN_REFUSED, requested_pause_s

CODE = grpc.StatusCode.FAILED_PRECONDITION
DETAILS_KEY = "grpc-status-details-bin"


def refusal(details: bytes | None) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata() if details is None else grpc.aio.Metadata((DETAILS_KEY, details))
    return grpc.aio.AioRpcError(CODE, grpc.aio.Metadata(), trailing, details="join again")


def status(retry_s: int, *, message: str = "join again") -> bytes:
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=retry_s)))
    encoded: bytes = status_pb2.Status(code=CODE.value[0], message=message, details=[packed]).SerializeToString()
    return encoded


@pytest.mark.parametrize(("requested_s", "pause_s"), [(0, 0.0), (7, 7.0), (3_600, 30.0), (-5, 0.0)])
def test_an_agent_waits_as_long_as_it_is_asked_but_never_sleeps_for_long(requested_s: int, pause_s: float) -> None:
    assert requested_pause_s(refusal(status(requested_s))) == pause_s


@pytest.mark.parametrize("details", [None, b"", b"\xff\xff\xff", status(7, message="something else")])
def test_what_cannot_be_read_or_contradicts_itself_says_nothing(details: bytes | None) -> None:
    assert requested_pause_s(refusal(details)) == 0.0


def test_a_scheduler_that_is_away_is_no_refusal() -> None:
    assert grpc.StatusCode.UNAVAILABLE not in JOIN_REFUSED
