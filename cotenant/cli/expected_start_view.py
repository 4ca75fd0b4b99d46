"""When a waiting job starts, in one line: about when, between what, its place, and how old that answer is."""

from __future__ import annotations

from math import inf

from cotenant.v1 import scheduling_pb2

_NOW_MS = 1_000
_UNITS = ((90_000, 1_000, "s"), (90 * 60_000, 60_000, "min"), (36 * 3_600_000, 3_600_000, "h"), (inf, 86_400_000, "d"))


def expected_start_text(expected: scheduling_pb2.ExpectedStart, *, at_ms: int) -> str:
    """Returns the line, e.g. starts in about 12 min (8 to 25), position 3 of 9, as of 20 s ago.

    Args:
        expected: As the scheduler answered.
        at_ms: Now; what has passed since the answer's instant is taken off.
    """
    age_ms = max(at_ms - expected.as_of_ms, 0) if expected.as_of_ms else 0
    position = f"position {expected.position} of {expected.waiting_jobs}" if expected.position else ""
    age = f"as of {_about(age_ms, age_ms)} ago" if expected.as_of_ms else ""
    if not expected.HasField("wait_ms"):
        start = f"start not known: {expected.unknown_reason or 'the scheduler does not say why'}"
        return "; ".join([start, ", ".join(filter(None, [position, age]))]).removesuffix("; ")
    lower_ms, middle_ms, upper_ms = (
        max(wait_ms - age_ms, 0) for wait_ms in (expected.wait_lower_ms, expected.wait_ms, expected.wait_upper_ms)
    )
    lower, upper = _number(lower_ms, upper_ms), _number(upper_ms, upper_ms)
    range_text = f" ({lower} to {upper})" if lower != upper else ""
    start = f"starts in about {_about(middle_ms, upper_ms)}{range_text}" if upper_ms >= _NOW_MS else "starts now"
    return ", ".join(filter(None, [start, position, age]))


def _unit(longest_ms: int) -> tuple[int, str]:
    return next((unit_ms, name) for below_ms, unit_ms, name in _UNITS if longest_ms < below_ms)


def _number(duration_ms: int, longest_ms: int) -> str:
    return f"{duration_ms / _unit(longest_ms)[0]:.0f}"


def _about(duration_ms: int, longest_ms: int) -> str:
    return f"{_number(duration_ms, longest_ms)} {_unit(longest_ms)[1]}"
