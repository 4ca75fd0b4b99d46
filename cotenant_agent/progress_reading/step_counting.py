"""From the numbers that a script prints to the steps that it has done, for scripts without the helper.

A progress bar begins again with every epoch, validation has a bar of its own, and several processes may print the same
bar. What is in doubt is not added: a job that seems further than it is could be called finished when it is stopped.
The rules stand in `docs/progress.md`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from itertools import pairwise

from cotenant_agent.progress_reading.batch_counters import ONE_BATCH
from cotenant_agent.records import STEPS_LIMIT

_VALUES_OF_A_PASS = 3
"""So many growing numbers show that a bar has really begun again, and that no late line of another process was read."""
_BARS_MAX = 16
_FIELDS_ONCE = (7, 9, 11)
"""Of a bar in what earlier agents have left: without the newest two, four or six of its fields."""
_LABEL_LIMIT = 64
_LOOP_VALUES_MIN = 8
LOOP_MARK = "\r"
"""Before the label of a count whose unit is not known: it counts only where most of its numbers are printed.

Samples, bytes and what is printed now and then grow by more than one.
"""
SPARSE_MARK = "\v"
"""Before the label of a number that no word names: it counts only where it is printed at equal distances.

Epochs, files and devices are printed one by one; samples grow by a multiple of a batch, that is of a power of two.
"""
OF_EPOCH_MARK = SPARSE_MARK * 2
"""The same of a number behind that of an epoch, which it can be none of itself."""
SHARE_MARK = "\b"
"""Before the label of steps that are reckoned out of a part of all epochs: a count out of the same total is surer."""
NESTED_MARK = "\f"
"""Before the label of a bar below another one: of batches below epochs, or of an evaluation below steps."""
_CURSOR_UP = "\x1b[A"
_SPARSE_VALUES_MIN = 3
_SPARSE_DISTANCE_MIN = 5
_BATCH_DIVISOR = 16
_SIZE_LABEL = re.compile(r"(?i)\bbatch$")
_SIZE_MIN = 8
_WORD = re.compile(r"[^\W\d_]{3,}")
# Of colours, cursors and titles, whose text is nothing that a bar says.
_TERMINAL_ORDER = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,128}\x07)")
_NUMBER_WORDS = frozenset({"nan", "inf"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedStep:
    """One number of a log.

    Attributes:
        step: What is printed.
        total: What is printed behind it, as in 27/60; 0 = nothing.
        label: Words before it; with the total they name the bar.
        epoch: What the expression's group `epoch` has found; -1 = nothing.
    """

    step: int
    total: int = 0
    label: str = ""
    epoch: int = -1


@dataclass(slots=True)
class _Bar:
    """One bar, or one counter.

    Attributes:
        base: Steps of the passes that are over.
        first: The number that it began with.
        peak: The largest number of the present pass; -1 = none yet.
        values: How many growing numbers the present pass has shown.
        epoch: The present pass, where the log names it.
        next_peak: The largest number of what may be a new pass; -1 = none.
        next_values: How many growing numbers that has shown.
        distance: Between the newest two numbers of the present pass.
        passes: How many passes there were, the present one included.
        newest: What was printed last; -1 = nothing yet.
        starts: How often it began, by its printed numbers alone.
        began: How many numbers of all bars had been taken with its first one.
        grew: The same of the last one by which it went on.
    """

    base: int = 0
    first: int = 0
    peak: int = -1
    values: int = 0
    epoch: int = -1
    next_peak: int = -1
    next_values: int = 0
    distance: int = 0
    passes: int = 1
    newest: int = -1
    starts: int = 1
    began: int = 0
    grew: int = 0

    @property
    def steps(self) -> int:
        return self.base + self.peak

    def pass_steps(self, total: int) -> int:
        """The steps of a pass that is over: its last ones are not printed where numbers lie apart, or begin with 0."""
        return total if 0 < total - self.peak <= self.distance else self.peak

    def is_even(self, distance_min: int) -> bool:
        """Whether each number so far lies as many steps behind the one before, and the first one so from 0 or 1."""
        distance = self.distance
        if self.values < _SPARSE_VALUES_MIN or distance < distance_min or not distance % _BATCH_DIVISOR:
            return False
        is_from_beginning = self.first in (0, 1, distance - 1, distance)
        return is_from_beginning and abs(self.first + (self.values - 1) * distance - self.peak) <= 1

    def may_be_sizes(self) -> bool:
        """Whether it shows powers of two, as the sizes of batches that a search tries: `batch 32`, then `batch 64`."""
        are_powers = all(number >= _SIZE_MIN and number & (number - 1) == 0 for number in (self.first, self.peak))
        return are_powers and self.values <= (self.peak // self.first).bit_length()

    def take(self, printed: PrintedStep) -> None:
        self.starts += printed.step < self.newest
        self.newest = printed.step
        if self.peak < 0:
            self.first, self.peak, self.values, self.epoch = printed.step, printed.step, 1, printed.epoch
        elif self.epoch >= 0:
            self._take_in_epoch(printed)
        elif self.next_peak >= 0:
            self._follow(printed.step, printed.total)
        elif printed.step >= self.peak:
            self._go_on(printed.step)
        elif self._may_begin_again(printed):
            self.next_peak, self.next_values = -1, 0
            self._follow(printed.step, printed.total)

    def _take_in_epoch(self, printed: PrintedStep) -> None:
        """The log itself states which pass a number belongs to; a late line of an earlier one counts nothing."""
        if printed.epoch > self.epoch:
            is_complete = printed.step == self.peak == printed.total
            # A number that runs through all epochs grows here as well.
            if printed.step < self.peak or is_complete:
                self._begin_again(printed.step, 1, printed.total)
            self.epoch = printed.epoch
        if printed.epoch == self.epoch and printed.step > self.peak:
            self._go_on(printed.step)

    def _go_on(self, step: int) -> None:
        self.values += step > self.peak
        self.distance = step - self.peak or self.distance
        self.peak = step

    def _may_begin_again(self, printed: PrintedStep) -> bool:
        """Whether a smaller number looks like a beginning: of a bar that was all but full, or of a counter."""
        if printed.total:
            is_full = self.values >= _VALUES_OF_A_PASS and self.pass_steps(printed.total) == printed.total
            return (is_full or 10 * self.peak >= 9 * printed.total) and 2 * printed.step <= printed.total
        return printed.step <= max(self.first, 1) and 2 * printed.step <= self.peak

    def _follow(self, step: int, total: int) -> None:
        """Wait until a new pass is certain; the late line of another process is at the old pass's end at once."""
        if step > self.next_peak:
            self.next_peak, self.next_values = step, self.next_values + 1
        if self.next_values >= self._values_needed(total):
            self._begin_again(self.next_peak, self.next_values, total)
        elif step >= self.peak:
            self.next_peak, self.next_values = -1, 0
            self._go_on(step)

    def _values_needed(self, total: int) -> int:
        """A full bar of few lines may begin again with as few; a counter that shows no end may not."""
        return min(_VALUES_OF_A_PASS, self.values) if total and self.values > 1 else _VALUES_OF_A_PASS

    def _begin_again(self, step: int, values: int, total: int) -> None:
        self.base += self.pass_steps(total)
        self.passes += 1
        self.peak, self.values = step, values
        self.next_peak, self.next_values = -1, 0


class StepCounter:
    """The steps of one attempt; of several bars the one that is furthest counts.

    Args:
        values_min: So many growing numbers a bar shows before it counts.

    Attributes:
        accumulation: What is known of the batches of a step.
        steps: What counts so far.
        epochs: What is stated; up to it a number that no word names may be one of them. 0 = not known.
    """

    def __init__(self, values_min: int = 1) -> None:
        self._values_min, self.accumulation = values_min, ONE_BATCH
        self._bars: dict[tuple[str, int], _Bar] = {}
        self._growths = (0, 0, 0)
        self._taken = 0
        self.steps = 0
        self.epochs = 0

    @property
    def interval(self) -> int:
        """How many steps lie between two printed numbers; 0 = it varies, or too few were seen."""
        _, before, newest = self._growths
        is_rounded = self.accumulation.batches > 1 and min(before, newest) > 0 and abs(newest - before) == 1
        return max(newest, before) if newest == before or is_rounded else self._distance_of_two()

    def _distance_of_two(self) -> int:
        """The distance of two numbers where the first is one from the beginning: 0 or 1, or the first printed one."""
        bar = next(reversed(self._bars.values()), None)
        if bar is None or bar.values != 2 or bar.base:
            return 0
        distance = bar.peak - bar.first
        return distance if bar.first in (0, 1, distance - 1, distance) else 0

    def _distance_by_clock(self) -> int:
        """The largest of the last distances; 0 = only the very last one, of an end that is always printed, differs."""
        first, second, _ = self._growths
        return max(self._growths) if first and first != second else 0

    @property
    def steps_at_end(self) -> int:
        """The steps of a job that has ended with success: the last pass of the bar that counts is over as well."""
        key, bar = self._furthest()
        return max(self.steps, self.accumulation.steps(*key, max(bar.base + bar.pass_steps(key[1]), 0)))

    def steps_of_stages(self, steps_total: int) -> int:
        """The stated steps of a job that has ended with success, where full bars of several names make them; else 0."""
        counted = ((key, bar) for key, bar in self._bars.items() if self._counts(*key, bar))
        full = sorted((bar.began, bar.grew, self._steps_of(key, bar)) for key, bar in counted if key[1] == bar.peak > 0)
        # Bars side by side, as of a generator and its critic, may show the same steps.
        follow = all(after[0] > before[1] for before, after in pairwise(full))
        return steps_total if follow and len(full) > 1 and sum(steps for *_, steps in full) == steps_total else 0

    @property
    def unseen_at_end(self) -> int:
        """How many steps more it may have done: of each pass without a total those behind its last printed number.

        A counter that begins with 0 ends one before the number of its steps. One without a total whose distances vary
        may be printed by the clock: then it may have done as many as between its last numbers.
        """
        (_, total), bar = self._furthest()
        from_zero = int(bar.first == 0 and bar.values > 1)
        if total:
            return max(self.interval, from_zero)
        return max(self.interval or self._distance_by_clock(), from_zero) * bar.passes

    def _counts(self, label: str, total: int, bar: _Bar) -> bool:
        if label.startswith(LOOP_MARK):
            batches = self.accumulation.batches_of_loop(total)
            is_one_by_one = bar.first <= batches and 2 * batches * bar.values > bar.peak - bar.first
            return is_one_by_one and bar.values >= _LOOP_VALUES_MIN
        if label.startswith(SPARSE_MARK):
            if label.startswith(OF_EPOCH_MARK):
                return bar.is_even(1)
            return bar.steps > self.epochs and bar.is_even(_SPARSE_DISTANCE_MIN)
        if label.startswith(SHARE_MARK) and self._has_surer(label, total):
            return False
        if label.startswith(NESTED_MARK) and self._is_evaluation(bar):
            return False
        if self._values_min > 1 and not total and _SIZE_LABEL.search(label) is not None and bar.may_be_sizes():
            return False
        return bar.values >= self._values_min or bar.base > 0

    def _has_surer(self, label: str, total: int) -> bool:
        """Whether steps out of the same total are counted themselves, as by the bar of transformers' Trainer."""
        others = (key for key, bar in self._bars.items() if bar.values >= self._values_min)
        return any(other != label and other_total == total for other, other_total in others)

    def _is_evaluation(self, nested: _Bar) -> bool:
        """Whether the bar above goes on by several each time that the one below begins: epochs go on by one."""
        above = (bar for (label, total), bar in reversed(self._bars.items()) if total and label[:1] != NESTED_MARK)
        bar = next(above, _Bar())
        return bar.peak - bar.first > 2 * nested.starts

    def _furthest(self) -> tuple[tuple[str, int], _Bar]:
        """The bar that counts, behind its label and total."""
        bars = ((key, bar) for key, bar in self._bars.items() if self._counts(*key, bar))
        return max(bars, key=lambda found: self._steps_of(*found), default=(("", 0), _Bar()))

    def _steps_of(self, key: tuple[str, int], bar: _Bar) -> int:
        return self.accumulation.steps(*key, bar.steps)

    def take(self, printed: PrintedStep) -> bool:
        """Take in the next number; whether it is one of the bar that counts."""
        key = (printed.label, printed.total)
        bar = self._bars.pop(key, None) or _Bar()
        # The one that was seen longest ago stands first, and leaves first.
        self._bars[key] = bar
        if len(self._bars) > _BARS_MAX:
            del self._bars[next(iter(self._bars))]
        passes, shown = bar.passes, (bar.base, bar.peak)
        bar.take(printed)
        self._note_place(bar, shown)
        if not self._counts(printed.label, printed.total, bar):
            return False
        steps, before = self._steps_of(key, bar), self.steps
        # What a new pass adds at once is no distance between two numbers.
        if steps > before and bar.passes == passes:
            self._growths = (*self._growths[1:], steps - before)
        self.steps = min(max(before, steps), STEPS_LIMIT - 1)
        return steps >= before

    def _note_place(self, bar: _Bar, shown: tuple[int, int]) -> None:
        """Note when a bar began and when it went on, beside which other bars did so."""
        self._taken += 1
        bar.began = bar.began or self._taken
        if (bar.base, bar.peak) != shown:
            bar.grew = self._taken

    def to_record(self) -> dict[str, object]:
        """For the agent's next life."""
        bars = [[*key, *astuple(bar)] for key, bar in self._bars.items()]
        return {"steps": self.steps, "bars": bars, **({"epochs": self.epochs} if self.epochs else {})}

    @classmethod
    def from_record(cls, record: Mapping[str, object], values_min: int = 1) -> StepCounter:
        """The counter of an earlier life.

        Raises:
            ValueError: that is no such record.
        """
        counter = cls(values_min)
        bars, counter.steps = record.get("bars"), _integer(record.get("steps"))
        counter.epochs = _integer(record.get("epochs", 0))
        for fields in bars if isinstance(bars, list) else []:
            label, total, *numbers = fields if isinstance(fields, list) and len(fields) > 1 else ("", None)
            is_bar = len(numbers) in (*_FIELDS_ONCE, len(astuple(_Bar())))
            if not isinstance(label, str) or not is_bar or len(counter._bars) >= _BARS_MAX:
                raise ValueError("no bar")
            bar = counter._bars[label, _integer(total)] = _Bar(*map(_integer, numbers))
            counter._taken = max(counter._taken, bar.grew)
        return counter


def label_of(text: str) -> str:
    """The words of a text, without its numbers: what stays the same while a bar moves."""
    words = [word for word in _WORD.findall(_TERMINAL_ORDER.sub("", text)) if word.lower() not in _NUMBER_WORDS]
    return " ".join(words)[-_LABEL_LIMIT:]


def nested(printed: PrintedStep, behind: str) -> PrintedStep:
    """Returns a number, as one of a bar below another one if the text behind it in its line goes back up."""
    return replace(printed, label=NESTED_MARK + printed.label) if _CURSOR_UP in behind else printed


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < STEPS_LIMIT:
        raise ValueError("no counter")
    return value
