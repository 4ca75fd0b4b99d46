"""Doubtful windows count until the first sound one, which begins anew; after it they change nothing."""

from __future__ import annotations

from scheduler_service.core.predictions.measured_averages import ObservedSlowdown, SoloStep, with_steps, with_windows
from tests.support.cases import for_each

SOUND, DOUBTFUL = False, True


@for_each(
    ("windows", "step_ms", "is_doubtful"),
    [
        ([(10, 1_000, DOUBTFUL), (10, 3_000, DOUBTFUL)], 200.0, DOUBTFUL),
        ([(10, 1_000, DOUBTFUL), (10, 3_000, SOUND)], 300.0, SOUND),
        ([(10, 1_000, SOUND), (10, 3_000, DOUBTFUL)], 100.0, SOUND),
        ([(10, 1_000, SOUND), (10, 3_000, SOUND)], 200.0, SOUND),
    ],
)
def test_a_step_time_is_that_of_sound_windows_once_there_is_one(
    windows: list[tuple[int, int, bool]], step_ms: float, is_doubtful: bool
) -> None:
    known: SoloStep | None = None
    for steps, window_ms, doubt in windows:
        known = with_steps(known, steps, window_ms, is_doubtful=doubt)
    assert known is not None
    assert (known.step_ms, known.is_doubtful) == (step_ms, is_doubtful)


@for_each(
    ("first", "second", "windows"),
    [(DOUBTFUL, DOUBTFUL, 2), (DOUBTFUL, SOUND, 1), (SOUND, DOUBTFUL, 1), (SOUND, SOUND, 2)],
)
def test_a_slowdown_counts_the_windows_of_its_kind(first: bool, second: bool, windows: int) -> None:
    known: ObservedSlowdown | None = with_windows(None, 0.5, 1, is_doubtful=first)
    known = with_windows(known, 0.1, 1, is_doubtful=second)
    assert (known.windows, known.is_doubtful) == (windows, first and second)
