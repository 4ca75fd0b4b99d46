"""Columns that are read off the bytes of messages say what the messages say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.message_columns import Columns, read_columns
from scheduler_service.grpc_api.snapshots.snapshot_bases import UnreadSnapshot

PAIR = scheduling_pb2.SnapshotPairPrediction
NAMES = st.text(st.characters(codec="utf-8"), max_size=200)
INTEGERS = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))
PAIRS = st.builds(
    PAIR,
    victim_job_key=NAMES,
    other_job_key=NAMES,
    device=NAMES,
    micro_batch_size=INTEGERS,
    slowdown_ratio=st.floats(),
    slowdown_upper_ratio=st.floats(),
    level=st.integers(-(2**31), 2**31 - 1),
    in_domain=st.booleans(),
    other_micro_batch_size=INTEGERS,
)
NUMBERS = (
    "micro_batch_size",
    "slowdown_ratio",
    "slowdown_upper_ratio",
    "level",
    "in_domain",
    "other_micro_batch_size",
)
LATER_FIELDS = b"\xf8\x01\x07"
"""Field 31 = 7: what a newer caller may state."""


def read(pairs: list[PAIR], more: bytes = b"") -> Columns:
    return read_columns(PAIR, [pair.SerializeToString() + more for pair in pairs])


def ends_of_names(columns: Columns) -> Sequence[int]:
    return columns.ends("device", np.arange(len(columns.rows)))


@given(st.lists(PAIRS, max_size=6))
def test_every_number_is_read_as_the_message_has_it(pairs: list[PAIR]) -> None:
    columns = read(pairs)
    for name in NUMBERS:
        found = columns.numbers[name].tolist()
        assert [repr(float(one)) for one in found] == [repr(float(getattr(pair, name))) for pair in pairs]


@given(st.lists(PAIRS, max_size=6))
def test_a_row_begins_with_its_names(pairs: list[PAIR]) -> None:
    columns = read(pairs)
    for pair, row, end in zip(pairs, columns.rows, ends_of_names(columns), strict=True):
        names = PAIR(victim_job_key=pair.victim_job_key, other_job_key=pair.other_job_key, device=pair.device)
        assert row[:end] == names.SerializeToString()


@given(st.lists(PAIRS, min_size=1, max_size=6))
def test_what_a_newer_caller_states_in_addition_is_left_out(pairs: list[PAIR]) -> None:
    columns = read(pairs, LATER_FIELDS)
    assert [*columns.rows] == [pair.SerializeToString() for pair in pairs]
    assert columns.numbers["level"].tolist() == [pair.level for pair in pairs]


def message_or_none(row: bytes) -> PAIR | None:
    try:
        found = PAIR.FromString(row)
    except DecodeError:
        return None
    found.DiscardUnknownFields()
    return found


@given(
    st.lists(PAIRS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.binary(max_size=3)), min_size=1, max_size=3),
)
def test_bytes_that_nobody_wrote_so_are_read_as_the_message_reads_them(
    pairs: list[PAIR], changes: list[tuple[int, int, bytes]]
) -> None:
    rows = [pair.SerializeToString() for pair in pairs]
    for place, removed, put in changes:
        rows[-1] = rows[-1][:place] + put + rows[-1][place + removed :]
    expected = [message_or_none(row) for row in rows]
    if None in expected:
        with pytest.raises(DecodeError):
            read_columns(PAIR, rows)
        return
    columns = read_columns(PAIR, rows)
    for name in NUMBERS:
        found = columns.numbers[name].tolist()
        assert [repr(float(one)) for one in found] == [repr(float(getattr(pair, name))) for pair in expected]
    for pair, row, end in zip(expected, columns.rows, ends_of_names(columns), strict=True):
        assert pair is not None
        names = PAIR(victim_job_key=pair.victim_job_key, other_job_key=pair.other_job_key, device=pair.device)
        assert row[:end] == names.SerializeToString()


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        (b"\x20\x87\x00", {"micro_batch_size": 7}),
        (b"\x20\x07\x20\x09", {"micro_batch_size": 9}),
        (b"\x68\x05\x20\x07", {"micro_batch_size": 7, "other_micro_batch_size": 5}),
        (b"\x38\x83\x80\x80\x80\x10", {"level": 3}),
        (b"\x40\x02", {"in_domain": 1}),
        (b"\x0a\x00\x20\x07", {"micro_batch_size": 7}),
        (b"\x0a\x81\x00a\x20\x07", {"micro_batch_size": 7}),
    ],
    ids=["long", "twice", "order", "more bits", "true", "empty", "long length"],
)
def test_a_number_that_another_library_writes_otherwise_is_the_same(row: bytes, numbers: dict[str, int]) -> None:
    columns = read_columns(PAIR, [b"", row, b""])
    assert {name: columns.numbers[name].tolist() for name in numbers} == {
        name: [0, n, 0] for name, n in numbers.items()
    }
    assert columns.rows[1] == PAIR.FromString(row).SerializeToString()


@pytest.mark.parametrize(
    "row",
    [
        b"\x0a\x05ab",
        b"\x0a\x01\xff",
        b"\x0a" + b"\xff" * 10 + b"\x01",
        b"\x29\x00",
        b"\x20" + b"\x80" * 11,
        b"\x20",
        b"\x00",
    ],
    ids=["cut text", "no UTF-8", "long length", "cut number", "endless", "tag alone", "tag 0"],
)
def test_a_row_that_is_no_message_is_refused(row: bytes) -> None:
    for rows in ([row], [row, PAIR(device="x").SerializeToString()]):
        with pytest.raises(DecodeError):
            read_columns(PAIR, rows)


@given(st.lists(PAIRS, max_size=4))
def test_rows_of_a_snapshot_are_its_bytes(pairs: list[PAIR]) -> None:
    snapshot = scheduling_pb2.Snapshot(now_ms=7, pair_predictions=pairs, base_token="x")
    unread = UnreadSnapshot.FromString(snapshot.SerializeToString())
    assert [*unread.pair_predictions] == [pair.SerializeToString() for pair in pairs]
    assert (unread.now_ms, unread.base_token, len(unread.nodes)) == (7, "x", 0)


def test_the_rows_that_are_read_so_have_only_what_can_be_read_so() -> None:
    """A later field must be a number or text below 16, and stand in the lists of this file."""
    fields = {field.name: field for field in PAIR.DESCRIPTOR.fields}
    assert fields.keys() == {*NUMBERS, "victim_job_key", "other_job_key", "device"}
    assert all(field.number < 16 and field.message_type is None and not field.is_repeated for field in fields.values())
