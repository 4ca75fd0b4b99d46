"""A snapshot is written entry by entry and reads as if it had been written at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.adapters.storage.snapshot_text import write_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.booleans() | st.none()
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=40,
)


@given(VALUES)
def test_the_text_is_that_of_one_call(value: Any) -> None:
    assert write_json(value) == json.dumps(value, separators=(",", ":")).encode()


@given(st.binary())
def test_what_json_does_not_know_is_refused_at_every_level(raw: bytes) -> None:
    for value in (raw, [raw], {"state": {"jobs": [raw]}}, {"state": {"jobs": [{"command": [raw]}]}}):
        with pytest.raises(TypeError):
            write_json(value)
