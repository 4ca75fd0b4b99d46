"""Rows about pairs answer what a look at each of them answers, in whatever order they are asked about."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.proto_enums import LEVEL_FROM_PROTO
from scheduler_service.core.predictions.measured_averages import preferred
from scheduler_service.grpc_api.snapshots.snapshot_pairs import PairRows

PAIR = scheduling_pb2.SnapshotPairPrediction
KEYS = st.sampled_from(["", "a", "b", "ab", "job-one/32", "job-two/32", "job-two/64", "k" * 200, "ä"])
DEVICES = st.sampled_from(["", "A10", "A100"])
SIZES = st.sampled_from([0, 1, 300])
PAIRS = st.builds(
    PAIR,
    victim_job_key=KEYS,
    other_job_key=KEYS,
    device=DEVICES,
    micro_batch_size=SIZES,
    other_micro_batch_size=SIZES,
    slowdown_ratio=st.floats(-1, 9),
    slowdown_upper_ratio=st.floats(-1, 9),
    level=st.sampled_from(resources_pb2.EstimateLevel.values()),
    in_domain=st.booleans(),
)
QUESTIONS = st.tuples(st.tuples(KEYS, KEYS, DEVICES), st.tuples(SIZES, SIZES))


def last_stated(pairs: Sequence[PAIR], keys: tuple[str, str, str], sizes: tuple[int, int]) -> PAIR | None:
    for at in preferred(*sizes):
        for pair in reversed(pairs):
            places = pair.micro_batch_size, pair.other_micro_batch_size
            if (pair.victim_job_key, pair.other_job_key, pair.device) == keys and places == at:
                return pair
    return None


@given(st.lists(PAIRS, max_size=30), st.lists(QUESTIONS, max_size=20))
def test_every_question_is_answered_by_the_last_row_about_its_place(
    pairs: list[PAIR], questions: list[tuple[tuple[str, str, str], tuple[int, int]]]
) -> None:
    rows = PairRows([pair.SerializeToString() for pair in pairs])
    for keys, sizes in [*questions, *questions[:3]]:
        stated, found = last_stated(pairs, keys, sizes), rows.find(keys, sizes)
        assert (found is None) == (stated is None)
        if found is None or stated is None:
            continue
        assert (found.victim_key, found.other_key, found.device) == keys
        assert (found.micro_batch_size, found.other_micro_batch_size) == (
            stated.micro_batch_size,
            stated.other_micro_batch_size,
        )
        assert found.slowdown_ratio == max(stated.slowdown_ratio, 0.0)
        assert found.upper_ratio == max(stated.slowdown_upper_ratio, stated.slowdown_ratio, 0.0)
        assert found.in_domain is stated.in_domain
        assert found.level is LEVEL_FROM_PROTO[stated.level]
