"""Rows as CSV or Parquet, for other programs: columns with their units, an empty cell where there is no value."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.extras import missing_extra_line
from cotenant_simulator.errors import InputError

Rows = Sequence[Mapping[str, Any]]


def as_csv(rows: Rows, columns: Mapping[str, type]) -> str:
    """Return the rows with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: row[name] for name in columns} for row in rows)
    return text.getvalue()


def as_parquet(rows: Rows, columns: Mapping[str, type]) -> bytes:
    """Return the bytes of a Parquet file.

    Raises:
        InputError: pyarrow is not installed.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        told = missing_extra_line("cotenant_simulator", error).removeprefix("error: ")
        raise InputError(f"{told}; or -o csv") from error
    kinds = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    table = arrow.Table.from_pylist([{name: row[name] for name in columns} for row in rows], schema=schema)
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()
