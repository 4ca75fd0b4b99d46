"""Durations as people write them."""

from __future__ import annotations

import pytest

from cotenant.client_errors import InputError
from cotenant.quantities import parse_duration_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("1ms", 1), ("500MS", 500), ("5m", 300_000), ("1m5ms", 60_005), ("2s250ms", 2_250)]
)
def test_milliseconds_are_a_duration(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "ms", "5", "0ms", "1ms1s", "5 ms", "1us"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not (a duration|between 1 ms and 10 years)"):
        parse_duration_ms(text)
