"""A question to Decide is read in the thread that decides, and means what its bytes mean to protobuf."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import InvalidRequestError
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.snapshots.snapshot_bases import SnapshotBases
from scheduler_service.grpc_api.snapshots.unread_request import UnreadRequest
from tests.support.random_snapshots import SnapshotMaker

SNAPSHOT = 2
BROKEN = b"\x0a\x05ab"
"""A text of five bytes that has two."""
ROWS = {"nodes": 3, "running": 4, "pending": 5, "job_predictions": 6, "pair_predictions": 7, "tenants": 20}


def part(number: int, content: bytes) -> bytes:
    tag = number << 3 | 2
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    length = len(content)
    assert length < 2**14
    return head + bytes([length & 127 | 128, length >> 7]) + content


def ask(content: bytes, bases: SnapshotBases | None = None) -> scheduling_pb2.DecideResponse:
    return asyncio.run(decide(UnreadRequest.read(content), predictor=None, seconds_left=60, bases=bases))


def test_a_snapshot_in_two_parts_is_one_snapshot() -> None:
    whole = SnapshotMaker(5).make()
    first, rest = scheduling_pb2.Snapshot(), scheduling_pb2.Snapshot()
    for field, _ in whole.ListFields():
        target = first if field.number % 2 else rest
        if field.is_repeated:
            getattr(target, field.name).MergeFrom(getattr(whole, field.name))
        else:
            setattr(target, field.name, getattr(whole, field.name))
    parts = [scheduling_pb2.DecideRequest(policy="horus", snapshot=one).SerializeToString() for one in (first, rest)]
    expected = ask(scheduling_pb2.DecideRequest(policy="horus", snapshot=whole).SerializeToString())
    assert len(expected.decisions) == len(whole.pending) > 0
    assert ask(b"".join(parts)).decisions == expected.decisions


@pytest.mark.parametrize("name", ROWS)
def test_bytes_that_are_no_row_are_refused_and_change_nothing(name: str) -> None:
    whole = SnapshotMaker(5).make()
    request = scheduling_pb2.DecideRequest(policy="horus", snapshot=whole).SerializeToString()
    bases = SnapshotBases()
    expected = ask(request, bases)
    with pytest.raises(InvalidRequestError, match="are no message of this method"):
        ask(request + part(SNAPSHOT, part(ROWS[name], BROKEN)), bases)
    assert ask(request, bases) == expected


def test_parameters_in_two_parts_are_all_read() -> None:
    whole = SnapshotMaker(5).make()
    request = scheduling_pb2.DecideRequest(policy="horus", snapshot=whole)
    request.parameters.update({"max_jobs_per_gpu": 3})
    more = scheduling_pb2.DecideRequest()
    more.parameters.update({"locality_gpus": 2})
    found = ask(request.SerializeToString() + more.SerializeToString()).effective_parameters
    assert (found["max_jobs_per_gpu"], found["locality_gpus"]) == (3, 2)
