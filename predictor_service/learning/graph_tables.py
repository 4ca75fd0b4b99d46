"""Figures of graphs that a data set does not carry in its rows, joined when they are read.

A row refers to a table that comes with the program by `graph_of` among its features, e.g. "zoo_features/resnet50" or
"timm_features/resnet50/3x224x224". What no table knows lies next to the rows in `graph_features.csv`: a job's key and
its figures. Either way a label is stored once, and a figure of a graph once for all its batches.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from cotenant import profile_text
from predictor_service.errors import TrainingDataError
from predictor_service.features.graphs.batch_figures import PEAK, features_at_batch
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.settings import default_datasets_dir

REFERENCE: Final = "graph_of"
"""Name of a feature whose text says where the figures of the row's graph are."""
SIDECAR: Final = "graph_features.csv"
TABLE_BYTES_MAX: Final = 1 << 28
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "timm_features": ("model", "input_shape"),
    "zoo_features": ("architecture",),
}
"""Columns that name a line, by table."""
_NO_FIGURES: Final = frozenset({"is_default", "graph_sha256"})
_SEPARATOR: Final = "/"

Figures = Mapping[str, float]


@cache
def load_table(name: str) -> Mapping[str, Figures]:
    """Reads a table that comes with the program; an absent one is empty.

    Args:
        name: One of `KEYS`.

    Returns:
        Figures by the texts of the line's key columns, joined by "/".

    Raises:
        TrainingDataError: The table is damaged.
    """
    path = _table_path(name)
    return dict(read_figures(path, KEYS[name])) if path.is_file() else {}


def _table_path(name: str) -> Path:
    return default_datasets_dir() / name / "features.csv"


def hash_tables() -> bytes:
    """Hash of the tables that rows can refer to: with other figures another version is learned."""
    digest = hashlib.sha256()
    for name in KEYS:
        path = _table_path(name)
        digest.update(name.encode() + (hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""))
    return digest.digest()


def find_figures(reference: str) -> Figures:
    """The line that a reference names.

    Raises:
        TrainingDataError: There is no such table or line.
    """
    name, _, key = reference.partition(_SEPARATOR)
    figures = load_table(name).get(key) if name in KEYS else None
    if figures is None:
        raise TrainingDataError(
            f"{REFERENCE} {reference[:100]!r} names no line of {', '.join(sorted(KEYS))}",
            remedy="import the set again, or name a table and its key, e.g. zoo_features/resnet50",
        )
    return figures


def join_figures(reference: str, batch: int, optimizer: str) -> Figures:
    """Figures of a row's graph.

    Args:
        reference: As `REFERENCE` has it.
        batch: Samples held at a time.
        optimizer: Where its numbers per parameter are known, tabulated peaks give way to the one at the batch.

    Raises:
        TrainingDataError: There is no such table or line.
    """
    figures = find_figures(reference)
    if optimizer in OPTIMIZER_SLOTS and any(name.startswith(PEAK) for name in figures):
        return features_at_batch(figures, batch, optimizer_slots=OPTIMIZER_SLOTS[optimizer])
    return figures


def read_figures(path: Path, key_columns: tuple[str, ...]) -> Iterator[tuple[str, Figures]]:
    """Reads a table of figures, plain or gzip.

    Args:
        path: CSV file with a header; every column but the keys holds numbers, an empty cell is an absent figure.
        key_columns: Must be there.

    Yields:
        Key, joined by "/", and figures of each line.

    Raises:
        TrainingDataError: It cannot be read, lacks a key, names one twice, or holds what is no finite number.
    """
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=""), strict=True)
    if not set(key_columns) <= set(reader.fieldnames or ()):
        raise _refusal(path, 1, f"lacks a column of {', '.join(key_columns)}")
    seen: set[str] = set()
    try:
        for line in reader:
            key = _SEPARATOR.join(line[name] or "" for name in key_columns)
            if key in seen or None in line or None in line.values():
                raise _refusal(path, reader.line_num, "names a line again" if key in seen else "has other cells")
            seen.add(key)
            yield key, _numbers(path, reader.line_num, line, key_columns)
    except csv.Error as error:
        raise _refusal(path, reader.line_num, str(error)) from error


def _numbers(path: Path, number: int, line: Mapping[str, str], key_columns: tuple[str, ...]) -> Figures:
    figures = {}
    for name, cell in line.items():
        if name in key_columns or name in _NO_FIGURES or not cell:
            continue
        try:
            figures[name] = float(cell)
        except ValueError:
            raise _refusal(path, number, f"{name}: {cell[:40]!r} is not a number") from None
        if not math.isfinite(figures[name]):
            raise _refusal(path, number, f"{name}: {cell[:40]} is not finite")
    return figures


def _read_text(path: Path) -> str:
    try:
        return profile_text.read_text(path, bytes_max=TABLE_BYTES_MAX)
    except (OSError, profile_text.TextError) as error:
        raise TrainingDataError(f"{path} cannot be read: {error}", remedy="import the set again") from error


def _refusal(path: Path, line: int, reason: str) -> TrainingDataError:
    return TrainingDataError(f"{path}, line {line}: {reason}", remedy="import the set again, or remove the file")
