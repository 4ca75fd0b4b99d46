"""Predictions of pairs are the longest part of a snapshot: work follows what is wrong or asked for, not the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api.snapshots import snapshot_ranges
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.snapshots.snapshot_pairs import KEYS_ALONE_MAX, PairRows

GIB = 2**30
LATER_FIELD = b"\xf8\x01\x07"
"""Field 31 = 7: what a newer caller may state."""


def pair(victim: str, other: str, ratio: float, **more: int) -> scheduling_pb2.SnapshotPairPrediction:
    return scheduling_pb2.SnapshotPairPrediction(
        victim_job_key=victim,
        other_job_key=other,
        device="A10",
        slowdown_ratio=ratio,
        level=resources_pb2.ESTIMATE_LEVEL_GRAPH,
        in_domain=True,
        **more,
    )


def cluster(keys: int) -> scheduling_pb2.Snapshot:
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    made.nodes.add(node_id="n", schedulable=True).gpus.add(
        gpu_id="g", device="A10", memory_bytes=24 * GIB, healthy=True
    )
    made.pending.add(job=scheduling_pb2.SnapshotJob(job_id="p", job_key="k0", gpus=1, global_batch_size=8))
    made.pair_predictions.extend(pair(f"k{one}", f"k{other}", 0.1) for one in range(keys) for other in range(keys))
    return made


def test_of_many_pairs_only_those_that_cannot_be_are_looked_at_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    look = snapshot_ranges.pair_prediction_violations

    def counted(row: scheduling_pb2.SnapshotPairPrediction) -> Iterator[FieldViolation]:
        looks.append(row.other_job_key)
        return look(row)

    monkeypatch.setattr(snapshot_ranges, "pair_prediction_violations", counted)
    made = cluster(20)
    made.pair_predictions[7].slowdown_ratio = -7
    request = scheduling_pb2.DecideRequest(policy="fifo", snapshot=made)
    answer = asyncio.run(decide(request, predictor=None, seconds_left=60))
    told = [one.message for one in answer.warnings if one.code == "INVALID_ROW"]
    assert len(told) == 1
    assert "of k0 co-located with k7 must be from -1 to 1,000,000, not -7.0; it is left out" in told[0]
    assert looks == ["k7"]


def test_a_row_is_found_by_its_names_and_the_last_about_one_place_counts() -> None:
    rows = PairRows(
        [
            one.SerializeToString() + LATER_FIELD
            for one in (
                pair("a", "b", 0.1),
                pair("a", "b", 0.2),
                pair("b", "a", 0.3),
                pair("a", "b", 0.4, micro_batch_size=32, other_micro_batch_size=300),
                pair("a" * 200, "ä", 0.5),
                pair("a", "c", -0.5),
            )
        ]
    )
    assert rows.are_valid()
    found = [rows.find(keys, sizes) for keys, sizes in QUESTIONS]
    assert [one and one.slowdown_ratio for one in found] == [0.2, 0.4, 0.3, 0.5, 0.0, None, None]


QUESTIONS = (
    (("a", "b", "A10"), (0, 0)),
    (("a", "b", "A10"), (32, 300)),
    (("b", "a", "A10"), (32, 300)),
    (("a" * 200, "ä", "A10"), (0, 0)),
    (("a", "c", "A10"), (0, 0)),
    (("a", "b", "A100"), (0, 0)),
    (("", "", ""), (0, 0)),
)


class CountedRow(bytes):
    """A row that knows whether its names were read.

    Attributes:
        is_read: They were.
    """

    is_read = False

    def __getitem__(self, place: Any) -> Any:
        self.is_read = True
        return super().__getitem__(place)


def rows_among(keys: int) -> list[CountedRow]:
    """Return a row for every two keys, the slowdown being 0.01 for each of the first and 0.0001 of the second."""
    return [
        CountedRow(pair(f"k{one}", f"k{other}", one / 100 + other / 10_000).SerializeToString())
        for one in range(keys)
        for other in range(keys)
    ]


def found_ratio(rows: PairRows, victim: int, other: int) -> float:
    found = rows.find((f"k{victim}", f"k{other}", "A10"), (32, 32))
    assert found is not None
    return found.slowdown_ratio


def test_the_questions_about_one_key_read_the_names_of_its_rows_alone() -> None:
    rows = rows_among(30)
    pairs = PairRows(rows)
    for other in range(30):
        assert found_ratio(pairs, 12, other) == pytest.approx(0.12 + other / 10_000)
        assert found_ratio(pairs, other, 12) == pytest.approx(other / 100 + 0.0012)
    assert sum(row.is_read for row in rows) == 2 * 30 - 1


def test_who_comes_is_told_from_who_is_there_by_the_second_question() -> None:
    """A policy may ask first how much each running job would be slowed down."""
    rows = rows_among(30)
    pairs = PairRows(rows)
    for other in range(30):
        found_ratio(pairs, other, 12)
    assert sum(row.is_read for row in rows) == 4 * 30 - 4


def test_questions_about_many_keys_are_answered_as_those_about_one() -> None:
    pairs = PairRows(rows_among(2 * KEYS_ALONE_MAX + 2))
    for key in range(0, 2 * KEYS_ALONE_MAX + 2, 2):
        assert found_ratio(pairs, key, key + 1) == pytest.approx(key / 100 + (key + 1) / 10_000)
    assert found_ratio(pairs, 0, 1) == pytest.approx(0.0001)


@pytest.mark.parametrize(
    "row",
    [
        pair("a", "b", float("nan")),
        pair("a", "b", float("inf")),
        pair("a", "b", 0.1, micro_batch_size=-1),
        pair("a", "b", 0.1, other_micro_batch_size=2**62),
        scheduling_pb2.SnapshotPairPrediction(victim_job_key="a", level=99),  # type: ignore[arg-type]
        scheduling_pb2.SnapshotPairPrediction(slowdown_upper_ratio=-2),
    ],
)
def test_a_number_that_cannot_be_costs_its_row_alone(row: scheduling_pb2.SnapshotPairPrediction) -> None:
    rows = PairRows([pair("x", "y", 0.1).SerializeToString(), row.SerializeToString()])
    assert not rows.are_valid()
    assert [one.SerializeToString() for one in rows.invalid()] == [row.SerializeToString()]
    left = rows.without_invalid()
    assert left.are_valid()
    assert left.find(("x", "y", "A10"), (0, 0)) is not None
