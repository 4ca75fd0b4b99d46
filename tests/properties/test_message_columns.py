"""Columns that are read off the bytes of messages say what the messages say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.message_columns import Columns, read_columns
from scheduler_service.grpc_api.snapshot_bases import UnreadSnapshot

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


@given(st.lists(PAIRS, max_size=6))
def test_every_number_is_read_as_the_message_has_it(pairs: list[PAIR]) -> None:
    columns = read(pairs)
    for name in NUMBERS:
        found = columns.numbers[name].tolist()
        assert [repr(float(one)) for one in found] == [repr(float(getattr(pair, name))) for pair in pairs]


@given(st.lists(PAIRS, max_size=6))
def test_a_row_begins_with_its_names(pairs: list[PAIR]) -> None:
    columns = read(pairs)
    for pair, row, end in zip(pairs, columns.rows, columns.ends["device"].tolist(), strict=True):
        names = PAIR(victim_job_key=pair.victim_job_key, other_job_key=pair.other_job_key, device=pair.device)
        assert row[:end] == names.SerializeToString()


@given(st.lists(PAIRS, min_size=1, max_size=6))
def test_what_a_newer_caller_states_in_addition_is_left_out(pairs: list[PAIR]) -> None:
    columns = read(pairs, LATER_FIELDS)
    assert [*columns.rows] == [pair.SerializeToString() for pair in pairs]
    assert columns.numbers["level"].tolist() == [pair.level for pair in pairs]


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
