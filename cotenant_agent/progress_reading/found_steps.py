"""Numbers of a line as the counter takes them, with the loss beside each."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple

from cotenant_agent.progress_reading.loss_recognition import printed_loss
from cotenant_agent.progress_reading.printed_numbers import integer_of, total_behind
from cotenant_agent.progress_reading.progress import is_counter
from cotenant_agent.progress_reading.progress_recognition import (
    SAMPLE_GROUP,
    STEP_GROUP,
    find_inner_loop,
    find_loop,
    is_other_work,
    makes_data,
    steps_of_samples,
)
from cotenant_agent.progress_reading.sparse_counters import find_percent_counter, find_sparse_counter, is_of_epoch
from cotenant_agent.progress_reading.step_counting import LOOP_MARK, OF_EPOCH_MARK, SPARSE_MARK, PrintedStep, label_of

_OF_STATED_STEPS = " update"
"""Behind the label of what counts steps, however many batches a step takes: samples, or the stated steps' own loop."""
LABEL_REACH = 256
"""Characters before a number in which the words that name it stand."""


class Found(NamedTuple):
    """One number of a line, and the loss that the line tells; None = none."""

    printed: PrintedStep
    loss: float | None


def read_unnamed(line: str, steps_total: int, *, is_written_over: bool) -> list[Found]:
    """Returns what a line counts in words that are not known, or in none.

    Args:
        line: One without any number whose words name it.
        steps_total: What the job states; 0 = nothing.
        is_written_over: The next line is written over it, or it over the one before.
    """
    match, mark, unit = _find_unnamed(line, steps_total, is_written_over=is_written_over)
    if match is None:
        return []
    before = line[: match.start(STEP_GROUP)][-LABEL_REACH:]
    item = read_match(match, STEP_GROUP, before, 0)
    if item is None or is_other_work(item.printed.label):
        return []
    if mark == SPARSE_MARK and item.printed.total:
        if is_of_epoch(before):
            mark = OF_EPOCH_MARK
        elif steps_total not in (0, item.printed.total):
            return []
    printed = dataclasses.replace(item.printed, label=mark + item.printed.label + unit)
    return [Found(printed, printed_loss(before, line[match.end() :]))]


def _find_unnamed(line: str, steps_total: int, *, is_written_over: bool) -> tuple[re.Match[str] | None, str, str]:
    """Where the number stands, and what is put before and behind its label."""
    if is_written_over and (found := find_loop(line)) is not None:
        return found, LOOP_MARK, ""
    if (found := find_percent_counter(line, steps_total)) is not None:
        return found, "", ""
    if (found := find_inner_loop(line, steps_total)) is not None:
        return found, "", _OF_STATED_STEPS
    return find_sparse_counter(line), SPARSE_MARK, ""


def read_match(match: re.Match[str], group: str, before: str, batch_size: int) -> Found | None:
    """Returns the number that a match shows; None = none that can be one of steps.

    Args:
        match: Of an expression of steps.
        group: Its group that has the number.
        before: What the line has before it.
        batch_size: Samples of one step; 0 = not known.
    """
    step = _counter(match, group)
    total = total_behind(match.string, match.end(group), step)
    label = label_of(before)
    if group == SAMPLE_GROUP:
        if makes_data(label):
            return None
        label += _OF_STATED_STEPS  # the batch is that of a whole step
        # Whether a last smaller batch is trained or dropped is not printed: in doubt it is not counted.
        step, total = steps_of_samples(step, total, batch_size), total // batch_size
    if step < 0:
        return None
    return Found(PrintedStep(step=step, total=total, label=label, epoch=_counter(match, "epoch")), _loss(match))


def _counter(match: re.Match[str], group: str) -> int:
    """The number in a group; -1 where there is none, or one that cannot be."""
    try:
        number = integer_of(match[group] or "")
    except IndexError:
        return -1
    return number if is_counter(number) else -1


def _loss(match: re.Match[str]) -> float | None:
    try:
        loss = float(match["loss"] or "")
    except (IndexError, ValueError):
        return None
    return loss if math.isfinite(loss) else None
