"""When a silent node is lost, and what of many heartbeats reaches the log."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_messages import progress
from scheduler_service.adapters.agents.node_leases import NodeLeases
from scheduler_service.adapters.agents.progress_reports import ProgressReports
from scheduler_service.adapters.system_clock import SystemClock
from scheduler_service.core.events import JobProgressed


def report(steps_done: int, *, window_steps: int = 1, attempt: int = 1, loss: float | None = None) -> JobProgressed:
    return JobProgressed(
        at_ms=0,
        job_id="job-1",
        attempt=attempt,
        fence=attempt,
        steps_done=steps_done,
        window_steps=window_steps,
        window_ms=10 * window_steps,
        loss=loss,
    )


def test_a_node_is_lost_at_lease_and_grace_and_margin_after_the_last_renewal() -> None:
    leases = NodeLeases(lease_ms=30_000, grace_ms=30_000, margin_ratio=0.05)
    leases.renew("a", now_ms=0)
    leases.renew("b", now_ms=0)
    leases.renew("a", now_ms=1_000)
    assert leases.lost(now_ms=62_999) == []
    assert leases.lost(now_ms=63_000) == ["b"]
    assert leases.lost(now_ms=63_999) == []
    assert leases.lost(now_ms=64_000) == ["a"]
    assert leases.lost(now_ms=10**9) == []


def test_what_is_left_of_a_lease_is_counted_from_the_last_renewal_and_never_below_nothing() -> None:
    leases = NodeLeases(lease_ms=30_000, grace_ms=30_000, margin_ratio=0.05)
    leases.renew("a", now_ms=0)
    leases.renew("a", now_ms=1_000)
    assert [leases.remaining_ms("a", now_ms=now_ms) for now_ms in (1_000, 63_000, 10**9)] == [63_000, 1_000, 0]
    assert leases.remaining_ms("b", now_ms=0) == 0


def test_at_most_one_report_per_interval_passes_and_no_step_is_left_out() -> None:
    reports = ProgressReports(interval_ms=2_000)
    passed: list[JobProgressed] = []
    for number in range(100):
        reports.add(report(number + 1), now_ms=100 * number)
        passed += reports.due(now_ms=100 * number)
    passed += reports.due(now_ms=20_000)
    assert len(passed) == 6
    assert sum(one.window_steps for one in passed) == 100
    assert passed[-1].steps_done == 100


def test_the_last_known_loss_survives_a_report_without_one() -> None:
    reports = ProgressReports(interval_ms=1_000)
    reports.add(report(1, loss=0.5), now_ms=0)
    reports.add(report(2), now_ms=1)
    assert [(one.loss, one.steps_done, one.window_steps) for one in reports.due(now_ms=5)] == [(0.5, 2, 2)]


def test_a_report_that_says_nothing_new_is_dropped() -> None:
    reports = ProgressReports(interval_ms=0)
    reports.add(report(5), now_ms=0)
    assert len(reports.due(now_ms=0)) == 1
    reports.add(report(5, window_steps=0), now_ms=1)
    assert reports.due(now_ms=10**6) == []


def test_a_new_attempt_is_passed_on_at_once() -> None:
    reports = ProgressReports(interval_ms=10_000)
    reports.add(report(5), now_ms=0)
    reports.due(now_ms=0)
    reports.add(report(5, attempt=2), now_ms=1)
    assert [one.attempt for one in reports.due(now_ms=1)] == [2]


def test_what_waits_is_returned_when_the_attempt_ends() -> None:
    reports = ProgressReports(interval_ms=10_000)
    reports.add(report(5), now_ms=0)
    assert reports.forget("job-1", fence=1, now_ms=0) == replace(report(5), window_span_ms=10)
    assert reports.forget("job-1", fence=1, now_ms=0) is None


def test_the_late_end_of_an_older_attempt_drops_nothing_of_the_newer_one() -> None:
    reports = ProgressReports(interval_ms=10_000)
    reports.add(report(5, attempt=2), now_ms=0)
    assert reports.forget("job-1", fence=1, now_ms=0) is None
    assert reports.forget("job-1", fence=2, now_ms=0) == replace(report(5, attempt=2), window_span_ms=10)


def test_the_end_of_a_newer_attempt_drops_what_is_left_of_the_older_one() -> None:
    reports = ProgressReports(interval_ms=10_000)
    reports.add(report(5), now_ms=0)
    assert reports.forget("job-1", fence=2, now_ms=0) is None
    assert reports.due(now_ms=10**6) == []
    assert reports.due(now_ms=10**6) == []


def test_the_clock_starts_no_earlier_than_the_newest_event(monkeypatch: pytest.MonkeyPatch) -> None:
    future_ms = 2**45
    clock = SystemClock(not_before_ms=future_ms)
    assert clock.now_ms() >= future_ms


def test_a_jump_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now_ms()
    monkeypatch.setattr("scheduler_service.adapters.system_clock.time.time_ns", lambda: 0)
    assert before <= clock.now_ms() < before + 60_000


def test_the_merged_report_is_a_report_of_the_same_attempt() -> None:
    reports = ProgressReports(interval_ms=1_000)
    reports.add(replace(report(1), memory_peak_bytes=9), now_ms=0)
    reports.add(replace(report(2), memory_peak_bytes=3), now_ms=0)
    (merged,) = reports.due(now_ms=1_000)
    assert (merged.attempt, merged.fence, merged.memory_peak_bytes) == (1, 1, 9)
    assert re.fullmatch(r"job-\d+", merged.job_id)


def test_a_report_says_how_long_ago_its_earliest_window_began_whatever_lies_between_the_windows() -> None:
    reports = ProgressReports(interval_ms=1_000)
    reports.add(replace(report(4), window_ms=80), now_ms=5_000)
    assert [one.window_span_ms for one in reports.due(now_ms=5_000)] == [80]
    reports.add(replace(report(8), window_ms=80), now_ms=5_100)
    reports.add(replace(report(12), window_ms=80), now_ms=5_500)
    (merged,) = reports.due(now_ms=6_050)
    assert (merged.window_ms, merged.window_span_ms) == (160, 1_030)
    reports.add(replace(report(16), window_ms=80), now_ms=6_060)
    ended = reports.forget("job-1", fence=1, now_ms=6_100)
    assert ended is not None
    assert ended.window_span_ms == 120


def test_a_doubt_about_a_part_of_a_merged_window_is_one_about_the_whole() -> None:
    reports = ProgressReports(interval_ms=1_000)
    reports.add(report(1), now_ms=0)
    reports.add(replace(report(2), quality_flags=("foreign_load",)), now_ms=0)
    reports.add(report(3), now_ms=0)
    (merged,) = reports.due(now_ms=1_000)
    assert merged.quality_flags == ("foreign_load",)


def test_reasons_for_doubt_that_the_scheduler_does_not_know_are_not_stored() -> None:
    said = node_agent_pb2.AttemptObservation(quality_flags=["foreign_load", "x" * 10**6, "foreign_load", *"abc"])
    assert progress(said).quality_flags == ("foreign_load",)


def test_a_total_that_a_script_says_reaches_the_log_and_outlasts_reports_without_one() -> None:
    assert progress(node_agent_pb2.AttemptObservation(steps_total=40)).steps_total == 40
    reports = ProgressReports(interval_ms=1_000)
    reports.add(report(1), now_ms=0)
    assert len(reports.due(now_ms=0)) == 1
    reports.add(replace(report(1, window_steps=0), steps_total=40), now_ms=10)
    reports.add(report(2), now_ms=20)
    assert [one.steps_total for one in reports.due(now_ms=2_000)] == [40]
