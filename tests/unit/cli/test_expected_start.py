"""explain says when a waiting job starts, how sure that is, its place, and how old the answer is."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.forecast_views import expected_start_text
from cotenant.v1 import scheduling_pb2
from tests.support.cases import for_each
from tests.support.cli_cluster import NOW_MS, CommandLine
from tests.support.fake_services import FakeScheduler

MINUTE_MS = 60_000
WAITING = "job-000003"


def expected(
    minutes: tuple[float, float, float] | None = (8, 12, 25), *, age_s: int = 20, why: str = ""
) -> scheduling_pb2.ExpectedStart:
    found = scheduling_pb2.ExpectedStart(
        position=3, waiting_jobs=9, confidence=0.8, as_of_ms=NOW_MS - age_s * 1_000, unknown_reason=why
    )
    if minutes is not None:
        lower, middle, upper = (round(one * MINUTE_MS) + age_s * 1_000 for one in minutes)
        found.wait_lower_ms, found.wait_ms, found.wait_upper_ms = lower, middle, upper
    return found


@for_each(
    ("minutes", "text"),
    [
        ((8, 12, 25), "starts in about 12 min (8 to 25), position 3 of 9, as of 20 s ago"),
        ((0, 0.5, 1), "starts in about 30 s (0 to 60), position 3 of 9, as of 20 s ago"),
        ((0, 0, 0.01), "starts now, position 3 of 9, as of 20 s ago"),
        ((1.9, 2, 2.1), "starts in about 2 min, position 3 of 9, as of 20 s ago"),
        ((60, 120, 600), "starts in about 2 h (1 to 10), position 3 of 9, as of 20 s ago"),
        ((1_440, 2_880, 7_200), "starts in about 2 d (1 to 5), position 3 of 9, as of 20 s ago"),
    ],
)
def test_what_has_passed_since_is_taken_off_and_units_fit(minutes: tuple[float, float, float], text: str) -> None:
    assert expected_start_text(expected(minutes), at_ms=NOW_MS) == text


def test_what_is_not_known_says_why() -> None:
    unknown = expected(None, why="it may have to wait for job-3")
    text = "start not known: it may have to wait for job-3; position 3 of 9, as of 20 s ago"
    assert expected_start_text(unknown, at_ms=NOW_MS) == text
    nothing = scheduling_pb2.ExpectedStart(unknown_reason="it is being simulated")
    assert expected_start_text(nothing, at_ms=NOW_MS) == "start not known: it is being simulated"


def test_explain_shows_the_reason_what_would_change_it_and_the_start(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    scheduler.explanations[WAITING].expected_start.CopyFrom(expected())
    scheduler.explanations[WAITING].remedy = "A larger --max-slowdown."
    out = cotenant("explain", WAITING).out
    places = [out.index(text) for text in ("SLOWDOWN_TOO_LARGE", "A larger --max-slowdown", "starts in about 12 min")]
    assert places == sorted(places)


def test_what_if_is_asked_and_shown(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    scheduler.explanations[WAITING].changed_start.CopyFrom(expected((0, 1, 2)))
    out = cotenant("explain", WAITING, "--if", "batch_size=32", "--if", "policy=srtf").out
    asked = next(one for one in scheduler.seen if isinstance(one, scheduling_pb2.ExplainJobRequest))
    assert (asked.expected_start, dict(asked.changes)) == (True, {"batch_size": "32", "policy": "srtf"})
    assert "batch_size=32, policy=srtf: starts in about" in out


def test_of_a_job_that_does_not_wait_no_start_is_made_up(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert "only the start of a waiting job" in cotenant("explain", WAITING, "--if", "policy=srtf").out
    assert "start" not in json.loads(cotenant("explain", WAITING, "--no-start", "-o", "json").out)


@pytest.mark.parametrize("flags", [("--if", "batch"), ("--if", "=3"), ("--if", "a=1", "--if", "a=2"), ("--no-start",)])
def test_a_wrong_what_if_is_refused_before_anything_is_asked(
    cotenant: CommandLine, scheduler: FakeScheduler, flags: tuple[str, ...]
) -> None:
    flags = (*flags, "--if", "policy=srtf") if flags == ("--no-start",) else flags
    outcome = cotenant("explain", WAITING, *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert "remedy: " in outcome.err
    assert not scheduler.seen
