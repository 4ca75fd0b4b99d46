"""Progress out of the output of a job, for scripts without the helper. Lines may be bars, endless, or hostile.

What is read at once, kept of a line, searched, and spent on searching is bounded; what exceeds a bound is not counted.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from cotenant_agent.keeper.lost_output import read_lost
from cotenant_agent.progress_reading.batch_counters import Accumulation
from cotenant_agent.progress_reading.counters_of_one_line import is_no_step, surest_of
from cotenant_agent.progress_reading.epoch_shares import EpochShares
from cotenant_agent.progress_reading.found_steps import LABEL_REACH, Found, read_match, read_unnamed
from cotenant_agent.progress_reading.log_reading import open_quietly
from cotenant_agent.progress_reading.loss_recognition import printed_loss
from cotenant_agent.progress_reading.progress import ProgressReport
from cotenant_agent.progress_reading.progress_recognition import (
    GROWING_VALUES_MIN,
    STEP_GROUP,
    is_beyond_stated,
    recognised,
    steps_of_full_bar,
    steps_of_last_epoch,
)
from cotenant_agent.progress_reading.sparse_counters import stated_epochs
from cotenant_agent.progress_reading.step_counting import StepCounter, nested
from cotenant_agent.storage.durable_files import read_integer
from cotenant_agent.system_clock import wall_ms

_READ_BYTES = 1 << 18
_READS_AT_END_MAX = 16
_SETTINGS_BYTES = _READ_BYTES
"""Settings are printed in the beginning of a log."""
_EPOCHS_MAX = 1_000_000
_AGE_MS_MAX = 2_000
_LINE_END = re.compile("([\r\n]+)")
_WRITES_OVER = re.compile("\r(?!\r*\n)")
"""In the end of a line: the next one is written over it. Windows ends a line with both characters."""
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,19}m")
_LINE_LIMIT = 8192
"""Of a longer line the end is searched."""
_WINDOW = 2048
"""Of a line that is searched at once: some expressions take a time that grows with the square of it."""
_OVERLAP = 512
"""So much of a window is searched again with what follows, so that nothing is cut."""
_SEARCH_LIMIT_S = 0.05
"""Of one reading; what it does not suffice for is skipped, but for the newest lines."""
_NEWEST_LINES = 64
_WINDOWS_EXPECTED = 20
"""An expression that does not come so far in that time is a bad one; another one was only given too much text."""
_TIMEOUTS_MAX = 20
"""After so many of a bad expression it is given up."""
_MATCHES_MAX = 20_000
"""Of one reading; the newest count."""


class _Line(NamedTuple):
    text: str
    is_written_over: bool


class LogProgress:
    """A position in the output of one attempt, and what was counted up to it.

    Args:
        path: The log; what was written before it lies next to it, with the suffix `.1`.
        pattern: Expression with a group `step`, and `loss` or `epoch` if it likes; empty = the usual forms count.
        record: What an agent's earlier life has left (`to_record`); anything else counts as nothing.
        steps_total: What the job states; 0 = nothing. A number before it is progress in any words.
        batch_size: Samples of one step; 0 = not known. With it numbers of samples are progress too.
    """

    def __init__(
        self, path: Path, pattern: str, record: object = None, steps_total: int = 0, batch_size: int = 0
    ) -> None:
        self._path, self._older_path = path, path.with_name(f"{path.name}.1")
        # Made of what the job states, so no two jobs have the same; most write their steps to a file and print nothing.
        self._expression = pattern or recognised(steps_total, batch_size)
        self._pattern: re.Pattern[str] | None = None
        self._recognises, self._batch_size, self._steps_total = not pattern, batch_size, steps_total
        values_min = 1 if pattern else GROWING_VALUES_MIN
        self._rest, self._is_written_over = "", False
        self._windows = self._lines = self._timeouts = 0
        self._loss: float | None = None
        self._epoch = 0
        self._counter, self._shares = StepCounter(values_min), EpochShares(steps_total)
        self._inode = self._offset = self._lost_bytes = self._newly_lost_bytes = 0
        self._written_wall_ms = self._reported_at_ns = 0
        with contextlib.suppress(ValueError):
            record = record if isinstance(record, Mapping) else {}
            self._shares.take_record(record)
            self._counter = StepCounter.from_record(record, values_min)
            self._inode, self._offset = read_integer(record, "inode"), read_integer(record, "offset")
            self._lost_bytes = read_integer(record, "lost_bytes")

    def note_epochs(self, text: str) -> None:
        """Remember how many epochs a command or a log states: they are no steps, but where the job says so."""
        self._shares.note(text)
        epochs = stated_epochs(text)
        if epochs != self._steps_total:
            self._counter.epochs = max(self._counter.epochs, min(epochs, _EPOCHS_MAX))

    def note_batches(self, batches: int) -> None:
        """Remember how many batches a step takes; of an expression's numbers it says nothing."""
        if self._recognises:
            self._counter.accumulation = Accumulation(max(batches, 1), self._steps_total)

    @property
    def unseen_at_end(self) -> int:
        """How many steps may have come behind printed numbers without being printed; 0 = none, or not known."""
        return self._counter.unseen_at_end

    def steps_by_last_line(self, tail: str, steps_total: int) -> int:
        """The steps of a job that has ended with success, by its numbers and the end of its log; 0 = not told."""
        if not self._recognises:
            return self._counter.steps_at_end
        accumulation = self._counter.accumulation
        counted = max(steps_of_last_epoch(tail, steps_total, accumulation), self._counter.steps_at_end)
        counted = max(counted, self._shares.steps_at_end(tail), self._counter.steps_of_stages(steps_total))
        return counted or steps_of_full_bar(tail, accumulation)

    def to_record(self) -> dict[str, object]:
        """What the agent's next life goes on from: the unfinished line is read again."""
        rest_bytes = len(self._rest.encode())
        of_lost_bytes = min(rest_bytes, self._newly_lost_bytes)
        offset = max(0, self._offset - rest_bytes + of_lost_bytes)
        place = {"inode": self._inode, "offset": offset, "lost_bytes": self._lost_bytes - of_lost_bytes}
        return {**place, **self._counter.to_record(), **self._shares.to_record()}

    def read(self, now_ns: int) -> list[ProgressReport]:
        """The newest progress since the last reading, if any; 256 KiB at most are read."""
        return self._report(self._search_next(), now_ns)

    def read_to_end(self, now_ns: int) -> list[ProgressReport]:
        """The same of all that an ended job has written, its last line included; 4 MiB at most, and then the end."""
        found = False
        for _ in range(_READS_AT_END_MAX):
            before = (self._inode, self._offset, self._lost_bytes)
            found = self._search_next() or found
            if (self._inode, self._offset, self._lost_bytes) == before:
                break
        else:
            self.skip_to_end()
            found = self._search_next() or found
        found = self._search_text("\n") or found
        # What was held back while the job ran is told now, though nothing was written since.
        return self._report(found or (self._recognises and self._counter.steps > 0), now_ns)

    def skip_to_end(self) -> None:
        """Pass over what was written before, but for the newest 256 KiB: it tells no time of steps."""
        self._rest = ""
        with contextlib.suppress(OSError):
            found = self._path.stat()
            self._inode, self._offset = found.st_ino, max(0, found.st_size - _READ_BYTES)

    def _report(self, found: bool, now_ns: int) -> list[ProgressReport]:
        if not found:
            return []
        # A line is as old as the file: a step time is no multiple of the time between two readings.
        age_ms = min(max(wall_ms() - self._written_wall_ms, 0), _AGE_MS_MAX)
        self._reported_at_ns = max(now_ns - age_ms * 1_000_000, self._reported_at_ns + 1)
        at_ns = min(self._reported_at_ns, now_ns)
        return [ProgressReport(step=self._counter.steps, at_ns=at_ns, epoch=self._epoch, loss=self._loss)]

    def _search_next(self) -> bool:
        logged, lost = (self._new_content(), self._new_lost_content()) if self._expression else (b"", b"")
        content = logged + lost
        self._newly_lost_bytes = len(lost) if content else self._newly_lost_bytes
        return bool(content) and self._search_text(content.decode("utf-8", "replace"))

    def _search_text(self, text: str) -> bool:
        """Count the steps of all lines that end here; whether there were any."""
        text = self._rest + text
        if self._pattern is None and self._expression and not text.isspace():
            self._pattern = re.compile(self._expression)  # takes longer than a search may
        if self._recognises and self._offset <= _SETTINGS_BYTES:
            self.note_epochs(text.rpartition("\n")[0])  # of a line that has not ended a number may be cut
        lines, rest = self._split(text)
        self._rest, self._windows, self._lines = "", 0, 0
        found: deque[Found] = deque(maxlen=_MATCHES_MAX)
        try:
            with _time_limit():
                self._search_lines(lines, rest, found)
        except TimeoutError:
            self._take_timeout(lines, rest, found)
        # Not before: an interrupted count would be a wrong one.
        for item in found:
            self._take(item)
        return bool(found)

    def _split(self, text: str) -> tuple[list[_Line], str]:
        """The lines that have ended, and what is left."""
        *parts, rest = _LINE_END.split(text)
        lines = []
        for content, end in zip(parts[::2], parts[1::2], strict=True):
            begins_over, self._is_written_over = self._is_written_over, _WRITES_OVER.search(end) is not None
            lines.append(_Line(content, begins_over or self._is_written_over))
        return lines, rest

    def _search_lines(self, lines: Sequence[_Line], rest: str, found: deque[Found]) -> None:
        """Add what whole lines show to `found`, and keep what is left of the one that has not ended."""
        for line in lines:
            text = line.text[-_LINE_LIMIT:]
            text = _COLOUR.sub("", text) if self._recognises and "\x1b" in text else text
            self._search_line(text, found, is_whole=True, is_written_over=line.is_written_over)
            self._lines += 1
        if len(rest) > _LINE_LIMIT:
            # A line without an end, as of a script that prints blanks between its steps.
            rest = rest[-_LINE_LIMIT:]
            rest = rest[self._search_line(rest, found, is_whole=False) :]
        self._rest = rest

    def _take_timeout(self, lines: Sequence[_Line], rest: str, found: deque[Found]) -> None:
        """Count a bad expression's failure; after too much text for a good one search the newest lines at least."""
        if self._windows <= _WINDOWS_EXPECTED:
            self._timeouts += 1
            if self._timeouts >= _TIMEOUTS_MAX:
                self._expression, self._pattern = "", None
            return
        # The line that was interrupted may have been counted in part, and none may count twice.
        newest = lines[self._lines + 1 :][-_NEWEST_LINES:]
        with contextlib.suppress(TimeoutError), _time_limit():
            self._search_lines(newest, rest, found)

    def _search_line(self, line: str, found: deque[Found], *, is_whole: bool, is_written_over: bool = False) -> int:
        """Add what the line shows to `found`; returns how much of it need not be searched again."""
        start = 0
        while is_whole or len(line) - start >= _WINDOW:
            window = line[start : start + _WINDOW]
            is_last = is_whole and start + _WINDOW >= len(line)
            settled = len(window) if is_last else _WINDOW - _OVERLAP
            end = self._search_window(window, settled, found)
            if is_last:
                if self._recognises and not start and not end:
                    share = self._shares.read(line)
                    found.extend(
                        [share] if share else read_unnamed(line, self._steps_total, is_written_over=is_written_over)
                    )
                return len(line)
            start += max(end, settled - _OVERLAP)
        return start

    def _search_window(self, window: str, settled: int, found: deque[Found]) -> int:
        """Add the steps whose matches end in the settled part; returns where the last one ends."""
        end, shown = 0, list[Found]()
        self._windows += 1
        for match in self._pattern.finditer(window) if self._pattern is not None else ():
            if match.end() > settled:
                break
            if self._recognises and is_beyond_stated(match, self._steps_total):
                continue
            group = (self._recognises and match.lastgroup) or STEP_GROUP
            before = window[end : match.start(group)][-LABEL_REACH:]
            item = read_match(match, group, before, self._batch_size)
            end = match.end()
            if item is not None and self._recognises:
                item = Found(nested(item.printed, window[end:]), printed_loss(before, window[end:]))
                if is_no_step(item.printed.label, window[: match.start(group)][-LABEL_REACH:], window[end:]):
                    continue
            if item is not None:
                shown.append(item)
        sure = surest_of([item.printed for item in shown], self._steps_total) if self._recognises else range(len(shown))
        found.extend(shown[place] for place in sure)
        return end

    def _take(self, found: Found) -> None:
        if self._counter.take(found.printed):
            self._loss = self._loss if found.loss is None else found.loss
            self._epoch = max(found.printed.epoch, 0)

    def _new_content(self) -> bytes:
        """What comes next, at most 256 KiB; a file that was begun is read to its end before its successor."""
        # In this order: a rotation in between is seen as one of the next reading.
        with open_quietly(self._path) as newest, open_quietly(self._older_path) as older:
            if newest >= 0 and os.fstat(newest).st_ino == self._inode:
                return self._read_on(newest)
            if older >= 0:
                content = self._read_on(older)
                if content or newest < 0:
                    return content
            return self._read_on(newest) if newest >= 0 else b""

    def _new_lost_content(self) -> bytes:
        """What a full disk has kept out of the log since the last reading, as far as it is kept."""
        self._lost_bytes, content = read_lost(str(self._path), self._lost_bytes)
        self._written_wall_ms = wall_ms() if content else self._written_wall_ms
        return content

    def _read_on(self, descriptor: int) -> bytes:
        found = os.fstat(descriptor)
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._inode, self._offset = found.st_ino, 0
        self._written_wall_ms = found.st_mtime_ns // 1_000_000
        content = os.pread(descriptor, _READ_BYTES, self._offset)
        self._offset += len(content)
        return content


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Interrupt an expression that backtracks without end: the matcher looks at signals while it works.

    The time is that of the processor: on a busy machine an innocent expression waits long. No garbage is collected
    meanwhile: what is raised while a callback of the collector runs is lost.
    """

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGVTALRM, give_up)
    collects = gc.isenabled()
    gc.disable()
    signal.setitimer(signal.ITIMER_VIRTUAL, _SEARCH_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
        if collects:
            gc.enable()
