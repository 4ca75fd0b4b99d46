"""Profiles as Parquet: the same columns and rules as CSV, needing pyarrow where it is used and nowhere else.

Every value goes through the text form that the CSV file would hold, so that there is one set of checks. Lists are
joined as in CSV; a whole number that a table library stored as a float, because the column has nulls, is one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.profile_cells import LIST_SEPARATOR, Column, columns, format_cell

SUFFIX = ".parquet"
MAX_ROWS = 5_000_000


class ParquetError(ValueError):
    """The file cannot be read as Parquet, or pyarrow is not installed; the message states which."""


def read_header(path: Path) -> list[str]:
    """The names of the columns, in file order.

    Raises:
        ParquetError: Not a Parquet file, or more than `MAX_ROWS` rows.
    """
    file = _open(path)
    if file.metadata.num_rows > MAX_ROWS:
        raise ParquetError(f"has {file.metadata.num_rows:,} rows, more than {MAX_ROWS:,}")
    return list(file.schema_arrow.names)


def read_records(path: Path, row_type: type[Any]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the rows as text cells, numbered as in the CSV file: the first row is line 2.

    Raises:
        ParquetError: The file is damaged.
    """
    kinds = {item.name: item for item in columns(row_type)}
    line = 1
    try:
        for batch in _open(path).iter_batches():
            for record in batch.to_pylist():
                line += 1
                yield line, {name: _as_text(value, kinds.get(name)) for name, value in record.items()}
    except (OSError, _arrow().ArrowException) as error:
        raise ParquetError(f"cannot be read: {error}") from error


def write_records(path: Path, records: Sequence[Mapping[str, Any]], row_type: type[Any]) -> None:
    """Writes values by column name.

    Raises:
        ParquetError: pyarrow is not installed.
    """
    arrow = _arrow()
    kinds = {int: arrow.int64(), float: arrow.float64(), str: arrow.string(), tuple: arrow.string()}
    schema = arrow.schema([(item.name, kinds[item.kind]) for item in columns(row_type)])
    plain = [
        {name: format_cell(value) if isinstance(value, tuple) else value for name, value in record.items()}
        for record in records
    ]
    _module("pyarrow.parquet").write_table(arrow.Table.from_pylist(plain, schema=schema), path)


def _as_text(value: Any, column: Column | None) -> str:  # noqa: ANN401 (whatever a Parquet cell holds)
    if value is None or value != value:  # noqa: PLR0124 (not a number is how table libraries write null)
        return ""
    if isinstance(value, list):
        return LIST_SEPARATOR.join(str(part) for part in value)
    if column is not None and column.kind is int and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return format_cell(value)


def _open(path: Path) -> Any:  # noqa: ANN401 (pyarrow is untyped)
    try:
        return _module("pyarrow.parquet").ParquetFile(path)
    except FileNotFoundError:
        raise
    except (OSError, _arrow().ArrowException) as error:
        raise ParquetError(f"is not a Parquet file: {error}") from error


def _arrow() -> Any:  # noqa: ANN401 (pyarrow is untyped)
    return _module("pyarrow")


def _module(name: str) -> Any:  # noqa: ANN401 (pyarrow is untyped)
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ParquetError("needs pyarrow, which is not installed here: pip install pyarrow, or use CSV") from None
