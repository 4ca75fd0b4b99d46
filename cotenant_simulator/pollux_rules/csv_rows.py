"""Small CSV tables without quoting, read in one pass and checked by name."""

from __future__ import annotations

from pathlib import Path

from cotenant_simulator.pollux_rules.errors import PolluxRulesError

FILE_BYTES_MAX = 64 * 2**20


def read_lines(path: Path, error: type[PolluxRulesError]) -> tuple[list[str], list[str]]:
    """Return the column names and the lines of a table.

    Args:
        path: A comma-separated file with one line of column names.
        error: What to raise.

    Raises:
        PolluxRulesError: The file cannot be read, is empty, or is larger than 64 MiB.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise error(f"{path} is larger than {FILE_BYTES_MAX} bytes; this is not a table of this family")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path} cannot be read: {problem}") from problem
    if not lines:
        raise error(f"{path} is empty; a line of column names is expected")
    return [name.strip() for name in lines[0].split(",")], [line for line in lines[1:] if line.strip()]


def read_rows(path: Path, columns: tuple[str, ...], error: type[PolluxRulesError]) -> list[tuple[str, ...]]:
    """Return the named columns of every row as text.

    Args:
        path: See `read_lines`.
        columns: The wanted columns, in the wanted order; others are ignored.
        error: What to raise.

    Raises:
        PolluxRulesError: As `read_lines`; or a column is missing; or a row has another number of fields.
    """
    names, lines = read_lines(path, error)
    missing = [column for column in columns if column not in names]
    if missing:
        raise error(f"{path} has no column {', '.join(missing)}; it has {', '.join(names)}")
    positions = [names.index(column) for column in columns]
    rows = []
    for number, line in enumerate(lines, start=2):
        fields = line.split(",")
        if len(fields) != len(names):
            raise error(f"{path}, row {number}: {len(fields)} fields, but there are {len(names)} columns")
        rows.append(tuple(fields[position].strip() for position in positions))
    return rows


def group_lines(path: Path, columns: tuple[str, ...], error: type[PolluxRulesError]) -> dict[str, list[str]]:
    """Return lines by everything before their last three fields, unparsed: most groups of a large table are never used.

    Args:
        path: See `read_lines`.
        columns: Exactly the columns that the file must have, in this order.
        error: What to raise.

    Raises:
        PolluxRulesError: As `read_lines`; or the columns differ.
    """
    names, lines = read_lines(path, error)
    if tuple(names) != columns:
        raise error(f"{path} must have the columns {', '.join(columns)}; it has {', '.join(names)}")
    groups: dict[str, list[str]] = {}
    for line in lines:
        key, *fields = line.rsplit(",", 3)
        if len(fields) != 3:
            raise error(f"{path}: the row {line!r} has too few fields")
        groups.setdefault(key, []).append(line)
    return groups
