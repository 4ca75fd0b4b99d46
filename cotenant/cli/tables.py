"""Plain aligned tables that fit 80 columns: no lines, one space of air, notes under their row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat, zip_longest

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP = 2
NARROWEST_CELL = 6
NARROWEST_SENTENCE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        title: Heading.
        right: Right-aligned, for numbers.
        shrinks: May be cut (an ellipsis in its middle: names differ at their ends) when the table is too wide.
        least: So narrow may one that shrinks become.
        wraps: Goes on in the next line where the table is too wide; for sentences, and for names that users type.
        goes_below: Stands under its row where the table is too wide; for what all rows can do without at a glance.
        leaves: The same where the narrowest table is too wide, lowest numbers first; 0 = never.
    """

    title: str
    right: bool = False
    shrinks: bool = False
    least: int = NARROWEST_CELL
    wraps: bool = False
    goes_below: bool = False
    leaves: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row.

    Attributes:
        cells: One text per column.
        styles: Column index -> rich style.
        note: Text under the row, wrapped to the full width.
    """

    cells: Sequence[str]
    styles: Sequence[tuple[int, str]] = ()
    note: str = ""


def render_table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> Text:
    """Lays a table out.

    Args:
        columns: Headings from left to right.
        rows: Cells in the same order.
        width: Columns of the terminal.
    """
    columns, rows = _with_notes_below(columns, rows, width)
    widths = _fit_widths(columns, rows, width)
    titles = _fold(columns, [column.title for column in columns], widths)
    lines = [_render_line(columns, cells, widths, {}, "bold") for cells in titles]
    for row in rows:
        folded = _fold(columns, row.cells, widths)
        lines += [_render_line(columns, cells, widths, dict(row.styles), "") for cells in folded]
        if row.note:
            lines += [Text(line, style="dim") for line in _wrap_note(row.note, width)]
    return Text("\n").join(lines)


def wrap_cells(text: str, width: int) -> list[str]:
    """Breaks a text into lines of at most `width` terminal cells: a Chinese character takes two of them."""
    lines: list[str] = []
    for gap, word in re.findall(r"(\s*)(\S+)", text):
        if lines and cell_len(lines[-1]) + len(gap) + cell_len(word) <= width:
            lines[-1] += " " * len(gap) + word
        else:
            lines += _chopped(word, width)
    return lines


def _chopped(word: str, width: int) -> Iterator[str]:
    """Yields the pieces of a word, more than one where it is longer than a line: behind a comma or slash if it can."""
    piece = ""
    for part in _breakable(word):
        if piece and cell_len(piece) + cell_len(part) > width:
            yield piece
            piece = ""
        for character in part:
            if piece and cell_len(piece) + cell_len(character) > width:
                yield piece
                piece = ""
            piece += character
    yield piece


def _breakable(word: str) -> list[str]:
    return re.findall(r"[^,/]+[,/]*|[,/]+", word)


def render_labelled(lines: Sequence[tuple[str, str]], width: int) -> Text:
    """Lays (label, text) lines out, long texts wrapped; an empty label continues the one above."""
    indent = max((len(label) for label, _ in lines), default=0) + GAP
    laid_out = []
    for label, text in lines:
        wrapped = wrap_cells(text, max(20, width - indent)) or [""]
        laid_out.append(Text.assemble((f"{label:<{indent}}", "bold"), wrapped[0]))
        laid_out += [Text(" " * indent + line) for line in wrapped[1:]]
    return Text("\n").join(laid_out)


def _with_notes_below(
    columns: Sequence[Column], rows: Sequence[Row], width: int
) -> tuple[Sequence[Column], Sequence[Row]]:
    """Takes the columns that may stand below out of a table that is too wide."""
    going = [column for column in columns if column.goes_below]
    if going and _table_width(_full_widths(columns, rows)) > width:
        columns, rows = _moved_below(columns, rows, going)
    leaving = sorted((column for column in columns if column.leaves), key=lambda column: column.leaves)
    least = dict(zip(columns, _least_widths(columns, rows), strict=True))
    going = []
    while leaving and _table_width([least[column] for column in columns if column not in going]) > width:
        going.append(leaving.pop(0))
    return _moved_below(columns, rows, going) if going else (columns, rows)


def _moved_below(
    columns: Sequence[Column], rows: Sequence[Row], going: Sequence[Column]
) -> tuple[Sequence[Column], Sequence[Row]]:
    stays = [index for index, column in enumerate(columns) if column not in going]
    below = [(index, column.title.lower()) for index, column in enumerate(columns) if column in going]
    places = {index: place for place, index in enumerate(stays)}

    def moved(row: Row) -> Row:
        notes = [f"{title}: {row.cells[index]}" for index, title in below if row.cells[index] not in ("", "-")]
        return Row(
            cells=[row.cells[index] for index in stays],
            styles=[(places[index], style) for index, style in row.styles if index in places],
            note="; ".join([*notes, row.note] if row.note else notes),
        )

    return [columns[index] for index in stays], [moved(row) for row in rows]


def _full_widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max([cell_len(column.title), *(cell_len(row.cells[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _least_widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        _least_width(column, [row.cells[index] for row in rows], width)
        for index, (column, width) in enumerate(zip(columns, _full_widths(columns, rows), strict=True))
    ]


def _least_width(column: Column, cells: Sequence[str], width: int) -> int:
    """Returns how narrow a column may become: a sentence as its longest word, up to a limit."""
    if column.wraps:
        pieces = [
            cell_len(piece) for text in (column.title, *cells) for word in text.split() for piece in _breakable(word)
        ]
        return max(NARROWEST_CELL, min(NARROWEST_SENTENCE, max(pieces, default=0)))
    return min(width, column.least) if column.shrinks else width


def _fit_widths(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int]:
    widths = _full_widths(columns, rows)
    least = _least_widths(columns, rows)
    while _table_width(widths) > width:
        candidates = [index for index in range(len(columns)) if widths[index] > least[index]]
        if not candidates:
            break
        widths[max(candidates, key=lambda index: widths[index])] -= 1
    return widths


def _fold(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yields a row line by line: a sentence that is too long goes on below."""
    folded = [
        wrap_cells(cell, width) if column.wraps else [cell]
        for column, cell, width in zip(columns, cells, widths, strict=True)
    ]
    yield from zip_longest(*folded, fillvalue="")


def _render_line(
    columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], styles: dict[int, str], default: str
) -> Text:
    line = Text()
    for index, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
        text = _pad(_cut(cell, width), width, right=column.right)
        line.append(text, style=styles.get(index, default))
        line.append(" " * GAP)
    line.rstrip()
    return line


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 3
    return set_cell_size(text, width - 1 - tail).rstrip() + "…" + _last_cells(text, tail)


def _last_cells(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[1:]
    return text


def _pad(text: str, width: int, *, right: bool) -> str:
    air = " " * (width - cell_len(text))
    return air + text if right else text + air


def _wrap_note(note: str, width: int) -> list[str]:
    indents = chain(["  └ "], repeat("    "))
    return [indent + line for indent, line in zip(indents, wrap_cells(note, max(16, width - 4)), strict=False)]
