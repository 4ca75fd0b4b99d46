"""A published table: text cells with a place, so that whatever is wrong with one names file, line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from cotenant import profile_text
from predictor_service.errors import TrainingDataError

MAX_ROWS: Final = 1_000_000
MAX_TABLE_BYTES: Final = 1 << 30
_MAX_CELL_CHARACTERS: Final = 1_000_000
_LARGEST_NUMBER: Final = 1e18


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One line of a published table.

    Attributes:
        path: The file.
        line: Line in the uncompressed file, from 1; the header is line 1.
        cells: Text by column name.
    """

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """The text of a cell that may not be empty.

        Raises:
            TrainingDataError: It is.
        """
        return self.cells[name] or self._refuse(name, "is empty")

    def number(
        self, name: str, *, minimum: float = 0, above: float | None = None, maximum: float = _LARGEST_NUMBER
    ) -> float:
        """A finite number.

        Args:
            name: Column.
            minimum: The number must not be less.
            above: The number must be greater; None = no such bound.
            maximum: The number must not be greater.

        Raises:
            TrainingDataError: Not a number, or out of range.
        """
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            self._refuse(name, f"{text!r} is not a number")
        if not math.isfinite(value) or value > maximum:
            self._refuse(
                name, f"{text} is not finite" if maximum == _LARGEST_NUMBER else f"{text} is above {maximum:g}"
            )
        if above is not None and value <= above:
            self._refuse(name, f"{text} is not above {above:g}")
        if value < minimum:
            self._refuse(name, f"{text} is not at least {minimum:g}")
        return value

    def optional_number(self, name: str, *, maximum: float = _LARGEST_NUMBER) -> float | None:
        """A finite number of at least 0; None for an empty cell.

        Raises:
            TrainingDataError: Not a number, or out of range.
        """
        return self.number(name, maximum=maximum) if self.cells[name] else None

    def integer(self, name: str, *, minimum: int = 0) -> int:
        """A whole number.

        Raises:
            TrainingDataError: Not a whole number, or below `minimum`.
        """
        value = self.number(name)
        if value != int(value) or value < minimum:
            self._refuse(name, f"{self.cells[name]} is not a whole number of at least {minimum}")
        return int(value)

    def flag(self, name: str) -> bool:
        """A cell that is 0 or 1.

        Raises:
            TrainingDataError: It is neither.
        """
        return self.choice(name, ("0", "1")) == "1"

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """A cell that holds one of a few known texts.

        Raises:
            TrainingDataError: It holds another one.
        """
        text = self.cells[name]
        return text if text in choices else self._refuse(name, f"{text!r} is none of {', '.join(choices)}")

    def refusal(self, name: str, reason: str) -> TrainingDataError:
        """The error that states what is wrong with a cell, and where it is."""
        return TrainingDataError(
            f"{self.path}, line {self.line}, column {name}: {reason}",
            remedy="correct the file or fetch it again; its README states the units",
        )

    def _refuse(self, name: str, reason: str) -> NoReturn:
        raise self.refusal(name, reason)


def read_table(folder: Path, name: str, columns: str) -> Iterator[PublishedRow]:
    """Reads one published file, plain or gzip.

    Args:
        folder: Where the set lies.
        name: File name; with `.gz` appended it is looked for as well.
        columns: The names that the header must have, in any order, separated by blanks; others are refused.

    Yields:
        Its rows.

    Raises:
        TrainingDataError: The file is absent, unreadable, too large, or is another table.
    """
    yield from _read(folder, name, columns.split(), exact=True)


def read_columns(folder: Path, name: str, columns: Sequence[str]) -> Iterator[PublishedRow]:
    """Reads a table of which only some columns matter, whatever the others are called.

    Raises:
        TrainingDataError: As for `read_table`.
    """
    yield from _read(folder, name, columns, exact=False)


def _read(folder: Path, name: str, columns: Sequence[str], *, exact: bool) -> Iterator[PublishedRow]:
    path = _find(folder, name)
    text = io.StringIO(_read_text(path), newline="")
    csv.field_size_limit(_MAX_CELL_CHARACTERS)
    reader = csv.reader(text, strict=True)
    try:
        header = next(reader, [])
        _check_header(path, header, columns if exact else [*columns, *(set(header) - set(columns))])
        for count, cells in enumerate(reader):
            if len(cells) != len(header) or count >= MAX_ROWS:
                reason = f"{len(cells)} cells where the header has {len(header)}, or more than {MAX_ROWS:,} rows"
                raise TrainingDataError(f"{path}, line {reader.line_num}: {reason}", remedy="fetch the file again")
            yield PublishedRow(path, reader.line_num, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise TrainingDataError(f"{path}, line {reader.line_num}: {error}", remedy="fetch the file again") from error


def has_table(folder: Path, name: str) -> bool:
    """Whether a set has this file."""
    return any((folder / item).is_file() for item in (name, f"{name}.gz"))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise TrainingDataError(f"{folder} has no {name}", remedy="give the folder of the published set")


def _read_text(path: Path) -> str:
    """The whole text; read at once because the largest set has a few megabytes, and bounded because others lie."""
    try:
        return profile_text.read_text(path, bytes_max=MAX_TABLE_BYTES)
    except (OSError, profile_text.TextError) as error:
        raise TrainingDataError(f"{path} cannot be read: {error}", remedy="fetch the file again") from error


def _check_header(path: Path, header: Sequence[str], expected: Sequence[str]) -> None:
    missing = sorted(set(expected) - set(header))
    unknown = sorted(set(header) - set(expected))
    if missing or unknown or len(set(header)) != len(header):
        raise TrainingDataError(
            f"{path} is another table: missing columns {missing}, unknown columns {unknown}",
            remedy="give the folder of the published set as its README describes it",
        )
