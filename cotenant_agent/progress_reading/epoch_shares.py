"""Steps out of the part of all epochs that is done, as transformers' Trainer prints it where it draws no bar.

    {'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': 0.5}
    {'train_runtime': 12.1, 'train_steps_per_second': 6.6, 'train_loss': 2.3, 'epoch': 2.0}

With the stated steps and the epochs that the command or the log states, `epoch / epochs` of them are done. Where the
epochs are not known, or `max_steps` ends the training, only its last line tells something: how many steps were planned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cotenant_agent.progress_reading.found_steps import Found
from cotenant_agent.progress_reading.loss_recognition import printed_loss
from cotenant_agent.progress_reading.sparse_counters import stated_epochs
from cotenant_agent.progress_reading.step_counting import SHARE_MARK, PrintedStep
from cotenant_agent.records import STEPS_LIMIT
from cotenant_agent.storage.durable_files import read_integer

_QUOTES: Final = str.maketrans("", "", "\"'")
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,17})?(?:e[+-]?[0-9]{1,2})?"
# A whole number is one of an own loop; newer versions print all numbers in quotes, and cut 1.0 to 1.
_EPOCH = re.compile(
    rf"[\"']epoch[\"']: (?:(?P<plain>[0-9]{{1,9}}\.[0-9]{{1,17}})|[\"'](?P<quoted>{_NUMBER})[\"'])[,}}]"
)
_MARKS: Final = ("'learning_rate'", '"learning_rate"')
_END_MARK: Final = "train_runtime"
_RUNTIME = re.compile(rf"\btrain_runtime: ({_NUMBER})")
_RATE = re.compile(rf"\btrain_steps_per_second: ({_NUMBER})")
_MAX_STEPS = re.compile(
    r"(?i)(?<![a-z])max[_-]steps[\"']?(?:\s{0,2}[:=]\s{0,2}|\s{1,16})[\"']?[1-9][0-9]{0,14}(?![\w.])"
)
_EPOCHS_MAX = 1_000_000
_LINE_LIMIT = 8192
_EPOCH_ERROR = 0.005
"""Of an epoch, whose second decimal is the last one that older versions print."""
_RATE_ERROR = 0.0005
_DIGITS_ERROR = 0.001
"""Of the product of two numbers of four digits."""


class EpochShares:
    """What such lines of one job say.

    Args:
        steps_total: What the job states; 0 = nothing, and then they say no steps.
    """

    def __init__(self, steps_total: int) -> None:
        self._steps_total = steps_total
        self._epochs, self._ends_by_steps = 0, False

    def note(self, text: str) -> None:
        """Remember what ends the training, by the first text that says it: of the command, then of the log."""
        self._epochs = self._epochs or min(stated_epochs(text), _EPOCHS_MAX)
        self._ends_by_steps = self._ends_by_steps or _MAX_STEPS.search(text) is not None

    def read(self, line: str) -> Found | None:
        """Returns the steps that a line shows; None = none, or they cannot be told from it.

        Args:
            line: One without any number whose words name it.
        """
        is_share = _END_MARK in line or any(mark in line for mark in _MARKS)
        steps = self._exact_steps(line) if is_share else -1.0
        if not 0 <= steps < STEPS_LIMIT:
            return None
        printed = PrintedStep(step=round(steps), total=self._steps_total, label=SHARE_MARK)
        return Found(printed, printed_loss("", line.translate(_QUOTES)))

    def steps_at_end(self, tail: str) -> int:
        """Returns the steps of a job that has ended with success, by the line in which the training says its time.

        Args:
            tail: The end of its log.

        Returns:
            Steps; 0 = it says no time, or neither the epochs nor the planned steps fit what is known.
        """
        start = tail.rfind(_END_MARK)
        line = tail[max(start, 0) :][:_LINE_LIMIT].partition("\n")[0] if start >= 0 else ""
        steps = self._exact_steps(line)
        if steps < 0:
            return self._steps_total if self._is_as_planned(line.translate(_QUOTES)) else 0
        # Of batches that are left over at the end of an epoch some versions make no step, and epochs are rounded.
        rounding = _EPOCH_ERROR * self._steps_total / self._epochs
        return max(round(steps), self._steps_total) if steps + rounding > self._steps_total - 1 else round(steps)

    def to_record(self) -> dict[str, object]:
        """For the agent's next life, which reads the beginning of the log no more."""
        known = {"share_epochs": self._epochs, "ends_by_steps": int(self._ends_by_steps)}
        return {name: value for name, value in known.items() if value}

    def take_record(self, record: Mapping[str, object]) -> None:
        """Remember what an earlier life of the agent knew."""
        self._epochs = min(max(read_integer(record, "share_epochs"), 0), _EPOCHS_MAX)
        self._ends_by_steps = read_integer(record, "ends_by_steps") > 0

    def _exact_steps(self, line: str) -> float:
        """The stated steps times the part of the epochs; -1 = it is not known, or not printed there."""
        found = _EPOCH.search(line) if self._steps_total > 0 and self._epochs and not self._ends_by_steps else None
        return float(found["plain"] or found["quoted"]) / self._epochs * self._steps_total if found else -1.0

    def _is_as_planned(self, line: str) -> bool:
        """Whether the training was to make the stated steps, by its time and its steps per second, both rounded."""
        runtime, rate = _RUNTIME.search(line), _RATE.search(line)
        if self._steps_total <= 0 or runtime is None or rate is None:
            return False
        time_s, planned = float(runtime[1]), float(runtime[1]) * float(rate[1])
        return abs(planned - self._steps_total) <= _RATE_ERROR * time_s + _DIGITS_ERROR * planned + 0.5
