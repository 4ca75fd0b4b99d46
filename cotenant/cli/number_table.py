"""Numbers that a user measured, from a CSV file with a line of column names or from standard input."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from cotenant.client_errors import InputError

ROWS_MAX = 100_000
STANDARD_INPUT = Path("-")


@dataclass(frozen=True, slots=True)
class NumberTable:
    """Rows of numbers.

    Attributes:
        source: Name of the file, for messages.
        columns: Values by column name, all as long.
        header: All names in the first line.
    """

    source: str
    columns: Mapping[str, Sequence[float]]
    header: Sequence[str]

    def column(self, *names: str) -> tuple[str, Sequence[float]]:
        """Returns the first column that is there, with its name.

        Args:
            names: In order of preference.

        Raises:
            InputError: None is there.
        """
        for name in names:
            if name in self.columns:
                return name, self.columns[name]
        raise InputError(
            f"{self.source} has no column {' or '.join(names)}",
            remedy=f"its first line names: {', '.join(self.header) or 'nothing'}",
        )


def read_numbers(path: Path, wanted: Sequence[str]) -> NumberTable:
    """Reads a file; columns that are not requested may hold anything.

    Args:
        path: A CSV file, `-` = standard input.
        wanted: Columns to read where they are there.

    Raises:
        InputError: It cannot be read, a wanted cell is no finite number, or there are more than `ROWS_MAX` rows.
    """
    name = "standard input" if path == STANDARD_INPUT else str(path)
    try:
        with nullcontext(sys.stdin) if path == STANDARD_INPUT else path.open(newline="", encoding="utf-8-sig") as file:
            return _read(csv.DictReader(file, skipinitialspace=True), name, wanted)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {name}: {cause}", remedy="give a CSV file with column names") from error


def _read(reader: csv.DictReader[str], name: str, wanted: Sequence[str]) -> NumberTable:
    columns: dict[str, list[float]] = {field: [] for field in reader.fieldnames or () if field in wanted}
    for number, row in enumerate(reader):
        if number >= ROWS_MAX:
            raise InputError(f"{name} has more than {ROWS_MAX:,} rows", remedy="leave out most of them")
        for field, values in columns.items():
            values.append(_number(row[field], f"{name}, line {reader.line_num}, {field}"))
    return NumberTable(name, columns, reader.fieldnames or ())


def _number(text: str | None, place: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{place}: {text!r} is no number", remedy="write a finite number in every row")
    return value
