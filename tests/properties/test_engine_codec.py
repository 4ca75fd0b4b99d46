"""Whatever can be recorded comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core import events
from scheduler_service.core.codec import EVENT_KINDS, decode_event, encode_event
from scheduler_service.core.errors import CodecError, UnsupportedVersionError
from scheduler_service.core.records import Gpu, Node
from tests.support.cases import for_each

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
st.register_type_strategy(object, JSON_VALUES)
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind)), max_size=3))


@for_each("kind", sorted(EVENT_KINDS))
def test_every_event_survives_json_exactly(kind: str) -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.builds(EVENT_KINDS[kind]))
    def check(event: events.Event) -> None:
        assert decode_event(json.loads(json.dumps(encode_event(event), allow_nan=False))) == event

    check()


@for_each(
    ("change", "message"),
    [
        ({"kind": "JobDreamt"}, "unknown kind of event 'JobDreamt'"),
        ({"job": 1}, "unknown job"),
        ({"job_id": 7}, "expected str, found 7"),
        ({"at_ms": True}, "expected int, found True"),
        ({"format": "x"}, "not a positive integer"),
    ],
)
def test_what_is_no_event_is_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    good = encode_event(events.JobCancelled(at_ms=1, job_id="j"))
    with pytest.raises(CodecError, match=message):
        decode_event({**good, **change})


def test_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedVersionError, match="upgrade the program"):
        decode_event({"kind": "TimerFired", "format": 2, "at_ms": 1})


def test_a_field_that_an_older_version_did_not_write_takes_its_default() -> None:
    old = {"kind": "PolicyChosen", "format": 1, "at_ms": 1, "policy": "fifo"}
    assert decode_event(old) == events.PolicyChosen(at_ms=1, policy="fifo")


def test_a_field_that_only_older_versions_wrote_is_passed_over_where_it_was_and_nowhere_else() -> None:
    joined = events.NodeJoined(
        at_ms=1, node=Node(node_id="n", gpus=(Gpu(gpu_id="g", device="d", memory_bytes=1),)), attempts=()
    )
    old = encode_event(joined)
    old["node"]["gpus"][0]["slowdown_ewma_ratio"] = 0.25
    assert decode_event(old) == joined
    old["node"]["slowdown_ewma_ratio"] = 0.25
    with pytest.raises(CodecError, match="unknown slowdown_ewma_ratio"):
        decode_event(old)
