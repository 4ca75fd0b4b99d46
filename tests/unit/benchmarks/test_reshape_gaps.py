"""What the benchmark of reshapes makes of the journal of a job."""

from __future__ import annotations

import pytest

from benchmarks.reshape import gap_ms, lost_steps, read_journal


def lines(fence: int, *, begin_ms: int, steps_ms: list[int], load_ms: int = 0, save_ms: int = 0) -> list[str]:
    steps = [f"step {fence} {number} {at_ms * 1_000_000}" for number, at_ms in enumerate(steps_ms)]
    return [
        f"begin {fence} {begin_ms * 1_000_000}",
        f"loaded {fence} 0 {load_ms}",
        *steps,
        f"saved {fence} {save_ms}",
    ]


def test_a_gap_leaves_out_saving_loading_and_the_first_step() -> None:
    old, new = read_journal(
        [
            *lines(9, begin_ms=700, steps_ms=[1_500, 1_600, 1_700], load_ms=30),
            *lines(7, begin_ms=0, steps_ms=[800, 900, 1_000], save_ms=50),
        ]
    )
    assert gap_ms(old, new) == pytest.approx(1_500 - 1_000 - 50 - 30 - 100)


def test_lost_steps_are_those_that_the_usual_pace_would_have_made_while_the_next_attempt_started() -> None:
    old, new = read_journal(
        [
            *lines(1, begin_ms=0, steps_ms=[100, 200, 300, 400, 600, 800, 1_000]),
            *lines(2, begin_ms=400, steps_ms=[1_500, 1_600]),
        ]
    )
    assert lost_steps(old, new) == pytest.approx(6 - 4)
    steady = read_journal(lines(1, begin_ms=0, steps_ms=list(range(100, 1_100, 100))))[0]
    assert lost_steps(steady, new) == 0
