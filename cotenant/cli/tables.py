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
        shrinks: May be cut (with an ellipsis) when the table is too wide.
        keeps_end: Is cut at its beginning; for names whose end tells them apart.
        wraps: Goes on in the next line where the table is too wide; for sentences.
    """

    title: str
    right: bool = False
    shrinks: bool = False
    keeps_end: bool = False
    wraps: bool = False


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
    widths = _fit_widths(columns, rows, width)
    lines = [_render_line(columns, [column.title for column in columns], widths, {}, "bold")]
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
    """Yields the pieces of a word, more than one where it is longer than a line."""
    piece = ""
    for character in word:
        if piece and cell_len(piece) + cell_len(character) > width:
            yield piece
            piece = ""
        piece += character
    yield piece


def render_labelled(lines: Sequence[tuple[str, str]], width: int) -> Text:
    """Lays (label, text) lines out, long texts wrapped; an empty label continues the one above."""
    indent = max((len(label) for label, _ in lines), default=0) + GAP
    laid_out = []
    for label, text in lines:
        wrapped = wrap_cells(text, max(20, width - indent)) or [""]
        laid_out.append(Text.assemble((f"{label:<{indent}}", "bold"), wrapped[0]))
        laid_out += [Text(" " * indent + line) for line in wrapped[1:]]
    return Text("\n").join(laid_out)


def _fit_widths(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int]:
    widths = [
        max([cell_len(column.title), *(cell_len(row.cells[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        candidates = [
            index
            for index, column in enumerate(columns)
            if widths[index] > (NARROWEST_SENTENCE if column.wraps else NARROWEST_CELL if column.shrinks else width)
        ]
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
        text = _pad(_cut(cell, width, keeps_end=column.keeps_end), width, right=column.right)
        line.append(text, style=styles.get(index, default))
        line.append(" " * GAP)
    line.rstrip()
    return line


def _cut(text: str, width: int, *, keeps_end: bool) -> str:
    if cell_len(text) <= width:
        return text
    return "…" + set_cell_size(text[::-1], width - 1)[::-1] if keeps_end else set_cell_size(text, width - 1) + "…"


def _pad(text: str, width: int, *, right: bool) -> str:
    air = " " * (width - cell_len(text))
    return air + text if right else text + air


def _wrap_note(note: str, width: int) -> list[str]:
    indents = chain(["  └ "], repeat("    "))
    return [indent + line for indent, line in zip(indents, wrap_cells(note, max(16, width - 4)), strict=False)]
