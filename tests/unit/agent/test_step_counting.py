"""From printed numbers to steps: what is added, and what is not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cotenant_agent.progress_reading.step_counting import PrintedStep, StepCounter, label_of
from tests.support.cases import for_each


def count(printed: Iterable[PrintedStep]) -> int:
    counter = StepCounter()
    steps = [0]
    for item in printed:
        counter.take(item)
        assert counter.steps >= steps[-1]
        steps.append(counter.steps)
    return counter.steps


def bars(*steps: int, total: int = 60, label: str = "") -> list[PrintedStep]:
    return [PrintedStep(step=step, total=total, label=label) for step in steps]


def numbers(*steps: int, epoch: int = -1) -> list[PrintedStep]:
    return [PrintedStep(step=step, epoch=epoch) for step in steps]


@for_each("total", [1, 2, 3, 60])
@for_each("first", [0, 1])
def test_a_bar_that_begins_again_goes_on_counting(total: int, first: int) -> None:
    epoch = bars(*range(min(first, total), total + 1), total=total)
    if (total, first) == (1, 1):
        # Nothing distinguishes 1/1 after 1/1 from the same line printed twice.
        assert count(epoch * 5) == 1
    else:
        assert count(epoch * 5) == 5 * total


def test_a_bar_that_shows_few_of_its_steps_counts_all_epochs() -> None:
    assert count(bars(0, 60, 60) * 4) == 240
    assert count(bars(0, 21, 44, 60) * 4) == 240


def test_a_bar_that_is_gone_before_its_end_is_seen_counts_what_was_seen() -> None:
    assert count(bars(*range(59)) * 3) == 3 * 58


def test_validation_between_epochs_is_no_training() -> None:
    epoch = [*bars(*range(61), label="Epoch"), *bars(*range(11), total=10, label="Validation")]
    assert count(epoch * 3) == 180
    same_size = [*bars(*range(61), label="Epoch"), *bars(*range(61), label="Validation")]
    assert count(same_size * 3) == 180
    without_words = [*bars(*range(61)), *bars(*range(11), total=10)]
    assert count(without_words * 3) == 180
    check_before = [*bars(0, 1, 2, total=2, label="Sanity Checking"), *bars(*range(61), label="Epoch") * 2]
    assert count(check_before) == 120


def test_an_outer_bar_of_epochs_is_no_step() -> None:
    printed = []
    for epoch in range(3):
        printed += [*bars(epoch, total=3), *bars(*range(61))]
    assert count([*printed, *bars(3, total=3)]) == 180


def test_a_bar_that_fell_back_in_its_middle_did_not_begin_an_epoch() -> None:
    assert count(bars(*range(45), *range(61))) == 60
    assert count(bars(*range(31), *range(20, 61))) == 60


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_that_print_the_same_bar_count_once(processes: int) -> None:
    inside = [step for step in range(1, 60) for _ in range(processes)]
    epoch = bars(*[0] * processes, *inside, *[60] * processes)
    assert count(epoch * 3) == 180


@pytest.mark.parametrize("processes", [2, 3, 8])
def test_a_process_that_is_late_at_the_end_of_an_epoch_counts_nothing(processes: int) -> None:
    printed = bars(*[0] * processes)
    for _ in range(3):
        printed += bars(*[step for step in range(1, 60) for _ in range(processes)], 60)
        # The first is in the next epoch before the others have left this one.
        printed += bars(0, *[number for _ in range(processes - 1) for number in (60, 60, 0)])
    # The last bars stand at 0 of an epoch that never was.
    assert count(printed) == 180


def test_a_counter_that_begins_again_goes_on_counting() -> None:
    assert count(numbers(*range(0, 200, 10)) * 3) == 3 * 190
    assert count(numbers(*range(1, 61)) * 3) == 180
    # Two numbers are too few to be sure.
    assert count(numbers(10, 20) * 3) == 20


def test_a_counter_that_runs_through_is_what_it_says() -> None:
    assert count(numbers(*range(501, 1001))) == 1000
    assert count(numbers(*range(1, 301), *range(200, 501))) == 500
    assert count(numbers(*range(501, 801), *range(450, 900))) == 899


def test_lines_out_of_order_add_nothing() -> None:
    swapped = [number for step in range(2, 100, 2) for number in (step, step - 1)]
    assert count(numbers(*swapped)) == 98
    assert count(numbers(1, 2, 1, 2, 3, 2, 3, 4)) == 4


def test_an_epoch_that_the_log_names_decides() -> None:
    two_steps = [item for epoch in range(4) for item in numbers(1, 2, epoch=epoch)]
    assert count(two_steps) == 8
    one_line = [PrintedStep(step=60, total=60, epoch=epoch) for epoch in range(4)]
    assert count(one_line) == 240
    late = [*numbers(*range(61), epoch=1), *numbers(0, epoch=2), *numbers(60, epoch=1), *numbers(1, 2, epoch=2)]
    assert count(late) == 62
    again_from_a_checkpoint = [*numbers(*range(41), epoch=2), *numbers(*range(31), epoch=2)]
    assert count(again_from_a_checkpoint) == 40


def test_a_step_that_runs_through_all_epochs_is_counted_once() -> None:
    printed = [item for epoch in range(3) for item in numbers(*range(60 * epoch, 60 * epoch + 61), epoch=epoch)]
    assert count(printed) == 180


def test_any_number_of_bars_is_bounded_and_the_furthest_stays() -> None:
    counter = StepCounter()
    for item in bars(*range(61)) * 2:
        counter.take(item)
    for total in range(1_000, 3_000):
        counter.take(PrintedStep(step=7, total=total))
    assert counter.steps == 120
    assert len(str(counter.to_record())) < 2_000


def test_numbers_that_no_job_can_reach_stay_countable() -> None:
    assert count(numbers(0, (1 << 53) - 1) * 5) == (1 << 53) - 1


@for_each(
    ("text", "label"),
    [
        ("Epoch 3:  45%|####5     | ", "Epoch"),
        ("\x1b[32mEpoch 3\x1b[0m:  45%|████▌     | ", "Epoch"),
        ("Validation DataLoader 0:  10%|", "Validation DataLoader"),
        ("2024-07-06T12:00:01Z loss 1.2e-05 nan step ", "loss step"),
        ("100%|", ""),
        ("\x1b[2J\x1b]0;my training\x07\x1b[?25lstep ", "step"),
    ],
)
def test_the_words_before_a_number_name_its_bar(text: str, label: str) -> None:
    assert label_of(text) == label


@for_each(
    ("steps", "interval"), [((10, 20, 30), 10), ((0, 10, 20), 10), ((7, 20, 31), 0), ((10,), 0), ((10, 20, 20, 30), 10)]
)
def test_the_distance_of_printed_numbers_is_known_where_it_is_regular(steps: tuple[int, ...], interval: int) -> None:
    counter = StepCounter()
    for printed in numbers(*steps):
        counter.take(printed)
    assert counter.interval == interval


@for_each(
    ("printed", "unseen"),
    [
        (numbers(37, 81, 122, 165), 44), (numbers(37, 81), 0), (numbers(0, 44, 122, 140), 78),
        (numbers(10, 20, 30, 40), 10), (numbers(10, 20, 30, 40, 49), 0),
        (bars(37, 44, 53, 59), 0), (numbers(1, 2, 3), 1),
        (numbers(0, 10, 20) * 2, 20), (numbers(0, 10, 20, 30) * 4, 40), (numbers(10, 20, 30) * 2, 20),
        (numbers(10, 20, 23) * 4, 0), (numbers(37, 81, 122, 165) + numbers(30, 80, 120, 170), 100),
    ],
)  # fmt: skip
def test_what_is_printed_by_the_clock_may_have_done_as_much_again_behind_its_last_line(
    printed: list[PrintedStep], unseen: int
) -> None:
    counter = StepCounter()
    for one in printed:
        counter.take(one)
    assert counter.unseen_at_end == unseen
