from __future__ import annotations

import pytest
from cotenant_profiler.errors import WorkerError
from cotenant_profiler.step_times import StepRecord, is_steady, percentile, window_figures

MS = 1_000_000


def steps(durations_ms: list[float], *, busy: float = 1.0, gap_ms: float = 0.0) -> list[StepRecord]:
    now_ms = busy_ms = 0.0
    records = []
    for duration_ms in durations_ms:
        begin_ms, now_ms = now_ms, now_ms + duration_ms
        busy_ms += busy * duration_ms
        records.append(
            StepRecord(begin_ns=round(begin_ms * MS), end_ns=round(now_ms * MS), processor_ns=round(busy_ms * MS))
        )
        now_ms += gap_ms
    return records


def test_only_whole_steps_inside_the_window_count() -> None:
    figures = window_figures(steps([10] * 10), begin_ns=15 * MS, end_ns=78 * MS)
    assert figures.steps == 5
    assert figures.step_ms_mean == pytest.approx(10)


def test_the_mean_counts_long_steps_that_the_median_hides() -> None:
    figures = window_figures(steps([5, 5, 5, 5, 30]), begin_ns=0, end_ns=50 * MS)
    assert figures.step_ms_mean == pytest.approx(10)
    assert figures.step_ms_p50 == pytest.approx(5)
    assert figures.step_ms_p95 == pytest.approx(25)


def test_utilization_is_processor_time_over_wall_time() -> None:
    figures = window_figures(steps([10] * 20, busy=0.4), begin_ns=20 * MS, end_ns=150 * MS)
    assert figures.utilization_ratio == pytest.approx(0.4)


def test_mean_times_rate_is_one_when_no_time_is_lost_between_steps() -> None:
    assert window_figures(steps([7, 9, 8, 7]), 0, 40 * MS).rate_check_ratio == pytest.approx(1)


def test_time_lost_between_steps_shows_in_the_rate_check() -> None:
    assert window_figures(steps([8] * 10, gap_ms=2), 0, 120 * MS).rate_check_ratio < 0.9


def test_a_window_shorter_than_two_steps_is_refused() -> None:
    with pytest.raises(WorkerError, match="lengthen the window"):
        window_figures(steps([100, 100]), begin_ns=0, end_ns=150 * MS)


def test_percentiles_are_interpolated() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == pytest.approx(2.5)
    assert percentile([1], 0.95) == 1


@pytest.mark.parametrize(
    ("durations_ms", "steady"),
    [([10.0] * 9, False), ([10.0] * 10, True), ([20.0] * 5 + [10.0] * 5, False), ([10.4] * 5 + [10.0] * 5, True)],
)
def test_steady_means_that_five_steps_resemble_the_five_before(durations_ms: list[float], steady: bool) -> None:
    assert is_steady(durations_ms) is steady
