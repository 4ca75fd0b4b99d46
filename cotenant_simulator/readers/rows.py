"""CSV rows read strictly: every problem is an error with file, line and remedy."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from cotenant_simulator.errors import TraceError

ROWS_MAX = 5_000_000
FIELD_CHARACTERS_MAX = 100_000
LINE_CHARACTERS_MAX = 1_000_000
_CLOCK_HINT = " (a date or a clock? write seconds, of submissions since any instant)"
_CLOCK = re.compile(r":|^\d{4}-\d{2}-\d{2}")
_PACKED = {
    b"\x1f\x8b": "is packed by gzip; unpack it first: gunzip --keep FILE",
    b"PK\x03\x04": "is a workbook or another zip file; save its table as CSV UTF-8",
    b"PAR1": "is a parquet file; read it by pandas and write it by to_csv(FILE, index=False)",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, its cells by column."""

    path: Path
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """Return a cell without surrounding blanks."""
        return self.cells[column].strip()

    def number(self, column: str, *, least: float = 0.0, most: float = 1e15) -> float:
        """Return a finite number.

        Raises:
            TraceError: The cell holds none, or one outside the range.
        """
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            hint = " (a decimal comma? write a point)" if "," in text else _CLOCK_HINT if _CLOCK.search(text) else ""
            raise self.error(f"{column} is {text!r}, not a number{hint}") from None
        if not math.isfinite(value) or not least <= value <= most:
            raise self.error(f"{column} is {text}, outside {least:g} to {most:g}")
        return value

    def integer(self, column: str, *, least: int = 0, most: int = 10**15) -> int:
        """Return a whole number.

        Raises:
            TraceError: The cell holds none, or one outside the range.
        """
        value = self.number(column, least=least, most=most)
        if value != int(value):
            raise self.error(f"{column} is {self.text(column)}, not a whole number")
        return int(value)

    def milliseconds(self, column: str, *, least_ms: int = 0) -> int:
        """Return a time given in seconds, in ms; never less than `least_ms`.

        Raises:
            TraceError: The cell holds no time of at least 0.
        """
        return max(round(self.number(column, most=1e11) * 1_000), least_ms)

    def error(self, problem: str) -> TraceError:
        """Return an error about this row."""
        return TraceError(self.path, f"{problem}; correct or remove the line", line=self.line)


def read_header(path: Path) -> tuple[str, ...]:
    """Return the column names of a CSV file.

    Raises:
        TraceError: It cannot be read, or has no line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(_lines(path, file)), None)
    except UnicodeDecodeError as error:
        raise TraceError(path, _why_no_text(path)) from error
    except (OSError, csv.Error) as error:
        raise TraceError(path, f"cannot be read as a table: {error}") from error
    if not header:
        raise TraceError(path, "is empty; a trace is a CSV file with a header line")
    names = tuple(name.strip() for name in header)
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise TraceError(path, f"has the column {twice[0]} twice; give each a name of its own, or remove one")
    return names


def _why_no_text(path: Path) -> str:
    """Return what a file is that is no text, and what to do with it."""
    with path.open("rb") as file:
        begin = file.read(len(max(_PACKED, key=len)))
    kind = next((kind for mark, kind in _PACKED.items() if begin.startswith(mark)), "")
    return kind or "is no text in UTF-8; save it as such (in Excel: CSV UTF-8)"


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a CSV file that has at least these columns.

    Raises:
        TraceError: It cannot be read, lacks a column, or a line has too many or too few cells.
    """
    header = read_header(path)
    missing = [column for column in columns if column not in header]
    if missing:
        raise TraceError(path, f"lacks the column {missing[0]}; there are {', '.join(header)}", line=1)
    csv.field_size_limit(FIELD_CHARACTERS_MAX)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_lines(path, file))
            next(reader)
            for cells in reader:
                if not cells:
                    continue
                yield _row(path, reader.line_num, header, cells)
    except UnicodeDecodeError as error:
        raise TraceError(path, _why_no_text(path)) from error
    except (OSError, csv.Error) as error:
        raise TraceError(path, f"cannot be read as a table: {error}") from error


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield a file's lines: a file of another kind may be one line, as large as it is."""
    while line := file.readline(LINE_CHARACTERS_MAX):
        if len(line) == LINE_CHARACTERS_MAX:
            raise TraceError(path, f"has a line of {LINE_CHARACTERS_MAX} characters; a trace is a CSV file")
        yield line


def _row(path: Path, line: int, header: Sequence[str], cells: Sequence[str]) -> Row:
    if len(cells) != len(header):
        raise TraceError(path, f"has {len(cells)} cells where the header has {len(header)}; correct it", line=line)
    if line > ROWS_MAX:
        raise TraceError(path, f"has more than {ROWS_MAX} lines; split it", line=line)
    return Row(path=path, line=line, cells=dict(zip(header, cells, strict=True)))


def require_unique(path: Path, job_ids: Iterable[tuple[str, int]]) -> None:
    """Refuse a job id that two lines have.

    Raises:
        TraceError: One does; the message names both lines.
    """
    seen: dict[str, int] = {}
    for job_id, line in job_ids:
        if job_id in seen:
            raise TraceError(path, f"job {job_id!r} stands in line {seen[job_id]} too; ids are unique", line=line)
        seen[job_id] = line
