"""Whatever order the lines of several processes come in, no step is counted twice, and one process loses none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotenant_agent.progress_reading.step_counting import PrintedStep, StepCounter


def lines(draws: st.DataObject, processes: int, epochs: int, total: int) -> list[tuple[int, int]]:
    """(epoch, step) in the order of printing: no process begins a step before all have ended the last but one."""
    script = [(epoch, step) for epoch in range(epochs) for step in range(total + 1)]
    # Steps that need the others, counted over all epochs; a bar's first line needs no other.
    needs = [epoch * total + step for epoch, step in script]
    places = [0] * processes
    printed = []
    while any(place < len(script) for place in places):
        done = [needs[place - 1] if place else 0 for place in places]
        able = [index for index, place in enumerate(places) if place < len(script) and needs[place] <= min(done) + 1]
        index = draws.draw(st.sampled_from(able))
        printed.append(script[places[index]])
        places[index] += 1
    return printed


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(4, 12), st.booleans())
def test_processes_in_step_count_at_most_what_was_done(
    draws: st.DataObject, processes: int, epochs: int, total: int, has_total: bool
) -> None:
    counter, done = StepCounter(), 0
    for epoch, step in lines(draws, processes, epochs, total):
        done = max(done, epoch * total + step)
        counter.take(PrintedStep(step=step, total=total if has_total else 0))
        assert counter.steps <= done
    if processes == 1:
        assert counter.steps == epochs * total


@given(st.lists(st.tuples(st.integers(0, 70), st.sampled_from([0, 10, 60]), st.integers(-1, 3)), max_size=60))
def test_no_sequence_of_numbers_makes_the_steps_go_back(numbers: list[tuple[int, int, int]]) -> None:
    counter, before, added = StepCounter(), 0, 0
    for step, total, epoch in numbers:
        counter.take(PrintedStep(step=step, total=total, epoch=epoch))
        added += step
        assert before <= counter.steps <= added
        before = counter.steps
    again = StepCounter.from_record(counter.to_record())
    assert again.to_record() == counter.to_record()
