"""Tasks of an array: from indexes such as 1-20%4, or from the rows of a file."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.array_terms import INDEX_MAX, TASKS_MAX, VALUE_NAME
from cotenant.client_errors import InputError
from cotenant.counted_nouns import agreed
from cotenant.profile_text import TextError, read_text
from cotenant.v1 import scheduling_pb2

FILE_LIMIT_BYTES = 1024 * 1024
_PART = re.compile(r"([0-9]{1,30})(?:-([0-9]{1,30})(?::([0-9]{1,30}))?)?")
_REMEDY = "write it like 1-20, 1-20%4 for four at once, 0-90:10 or 1,5,9"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTasks:
    """What makes an array of a job.

    Attributes:
        running_max: Tasks that may run at once; 0 = any number.
    """

    tasks: Sequence[scheduling_pb2.ArrayTask]
    running_max: int = 0


def read_array(text: str) -> tuple[list[int], int]:
    """Reads indexes and, behind %, how many tasks may run at once.

    Raises:
        InputError: Neither, an index twice, or too many.
    """
    indexes_text, has_limit, limit_text = text.strip().partition("%")
    if has_limit and not re.fullmatch(r"[0-9]{1,4}", limit_text):
        raise InputError(f"{text!r} is not an array", remedy=_REMEDY)
    limit = int(limit_text) if has_limit else 0
    if has_limit and not 1 <= limit <= TASKS_MAX:
        raise InputError(f"{limit} tasks at once are not possible", remedy=f"1 to {TASKS_MAX} behind the %")
    indexes = [index for part in indexes_text.split(",") for index in _read_part(part, text)] if indexes_text else []
    if len(set(indexes)) != len(indexes):
        raise InputError(f"{text!r} has an index twice", remedy=_REMEDY)
    return indexes, limit


def _read_part(part: str, text: str) -> range:
    match = _PART.fullmatch(part.strip())
    first, last, step = (int(one) if one else None for one in match.groups()) if match else (None, None, None)
    if first is None or step == 0:
        raise InputError(f"{text!r} is not an array", remedy=_REMEDY)
    found = range(first, (first if last is None else last) + 1, step or 1)
    # Not by its length, which is no number of the machine for any numbers.
    if not found or found[-1] > INDEX_MAX or len(found) > TASKS_MAX:
        raise InputError(f"{part.strip()!r} is not 1 to {TASKS_MAX} indexes up to {INDEX_MAX}", remedy=_REMEDY)
    return found


def make_tasks(array: str | None, sweep: Path | None, spec: scheduling_pb2.JobSpec) -> ArrayTasks:
    """Returns the tasks that flags ask for.

    Args:
        array: Indexes and limit; with a sweep only the limit.
        sweep: A file with one task per row.
        spec: What the tasks have in common; every column of the sweep must be used in it.

    Raises:
        InputError: They make no array.
    """
    indexes, limit = read_array(array) if array is not None else ([], 0)
    if sweep is not None and indexes:
        raise InputError("--array names tasks that --sweep names too", remedy="leave one out, or --array %4")
    tasks = [scheduling_pb2.ArrayTask(index=index) for index in indexes]
    if sweep is not None:
        tasks = _sweep_tasks(sweep, spec)
    if not 1 <= len(tasks) <= TASKS_MAX:
        raise InputError(f"an array of {len(tasks)} tasks is not possible", remedy=f"1 to {TASKS_MAX}; {_REMEDY}")
    return ArrayTasks(tasks=tasks, running_max=limit)


def _sweep_tasks(path: Path, spec: scheduling_pb2.JobSpec) -> list[scheduling_pb2.ArrayTask]:
    rows = read_sweep(path)
    texts = [*spec.command, *spec.environment.values()]
    for name in rows[0]:
        if not any(f"{{{name}}}" in text for text in texts):
            raise InputError(
                f"{path}: the column {name!r} is used nowhere",
                remedy=f"write {{{name}}} into the command or a variable, or leave the column out",
            )
    return [scheduling_pb2.ArrayTask(index=index, values=row) for index, row in enumerate(rows, start=1)]


def read_sweep(path: Path) -> list[dict[str, str]]:
    """Reads one job per row: CSV with a header, or a JSON list of objects.

    Raises:
        InputError: Not readable, of another form, without rows, or with too many.
    """
    try:
        text = read_text(path, bytes_max=FILE_LIMIT_BYTES)
        rows = _json_rows(path, text) if path.suffix.lower() == ".json" else _csv_rows(path, text)
    except TextError as error:
        remedy = f"text in UTF-8 of {FILE_LIMIT_BYTES} bytes at most, a row for each of 1 to {TASKS_MAX} jobs"
        raise InputError(f"{path} {error}", remedy=remedy) from error
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise InputError(
            f"cannot read {path}: {error}", remedy="a CSV with a header, or a JSON list of objects"
        ) from error
    if not 1 <= len(rows) <= TASKS_MAX:
        raise InputError(f"{path} has {len(rows)} rows", remedy=f"1 to {TASKS_MAX} rows, one for each job")
    wrong = [name for name in rows[0] if not VALUE_NAME.fullmatch(name)]
    if wrong or not rows[0]:
        raise InputError(f"{path}: {wrong[0][:64] if wrong else ''!r} is not a name", remedy="letters, digits and _")
    return rows


def _csv_rows(path: Path, text: str) -> list[dict[str, str]]:
    lines = [line for line in csv.reader(io.StringIO(text)) if line]
    header = [name.strip() for name in lines[0]] if lines else []
    if len(set(header)) != len(header):
        raise InputError(f"{path} has a column twice", remedy="give every column a name of its own")
    if len(header) == 1 and re.search(r"[;\t]", header[0]):
        raise InputError(f"{path}: {header[0][:64]!r} is one column", remedy="part columns by commas, and write 0.1")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise InputError(
                agreed(f"{path}: row {number} has {len(line)} cell(s), the header {len(header)}"), remedy="correct it"
            )
    return [dict(zip(header, line, strict=True)) for line in lines[1:]]


def _json_rows(path: Path, text: str) -> list[dict[str, str]]:
    content = json.loads(text, object_pairs_hook=lambda pairs: _object(path, pairs))
    rows = content if isinstance(content, list) else []
    if not rows or not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        raise InputError(f"{path} is not a list of objects with the same names", remedy='[{"lr": 0.1}, {"lr": 0.01}]')
    return [{name: _json_text(path, value) for name, value in row.items()} for row in rows]


def _object(path: Path, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InputError(f"{path} has a name twice in one object", remedy="give every value a name of its own")
    return found


def _json_text(path: Path, value: Any) -> str:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InputError(f"{path}: {str(value)[:60]!r} is neither a text nor a number", remedy="write one value per name")
