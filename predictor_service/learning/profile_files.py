"""Measured profiles from wherever they lie: a data-set folder, or one CSV or Parquet file in our schema."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow
import pyarrow.parquet

from cotenant.profile_schema import PairRow, ProfileSchemaError, SoloRow, columns, parse_row, read_rows
from predictor_service.errors import GraphError, TrainingDataError
from predictor_service.features.graph_description import GraphDescription, describe_graph

FILE_BYTES_MAX: Final = 1 << 30
SUFFIXES: Final = (".csv", ".parquet")

Row = TypeVar("Row", SoloRow, PairRow)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredProfiles:
    """Rows of one file or folder.

    Attributes:
        name: Of the folder, or of the file without its suffix.
        solo: Rows of jobs alone.
        pairs: Rows of jobs side by side.
        graphs: Descriptions by graph hash, where the folder has graphs.
        sha256: Hash over everything that was read.
    """

    name: str
    solo: tuple[SoloRow, ...]
    pairs: tuple[PairRow, ...]
    graphs: Mapping[str, GraphDescription] = field(default_factory=dict)
    sha256: str = ""


def read_profiles(path: Path) -> MeasuredProfiles:
    """Reads a data-set folder, or one file of it with the solo rows that lie beside it.

    Args:
        path: A folder with solo.csv and pairs.csv, or either with the suffix .parquet, or one such file by any name.

    Raises:
        TrainingDataError: It is not there, too large, breaks the schema, or a graph is not what its name says.
    """
    folder = path if path.is_dir() else path.parent
    try:
        if path.is_dir():
            files = {kind: _find(folder, kind) for kind in ("solo", "pairs")}
            if not any(files.values()):
                raise TrainingDataError(
                    f"{path} holds neither solo nor pairs", remedy="a data set is a folder with solo.csv and pairs.csv"
                )
        else:
            files = _files_of(path)
        solo = _read(files["solo"], SoloRow)
        pairs = _read(files["pairs"], PairRow)
        graphs = _read_graphs(folder / "graphs", {row.graph_sha256 for row in solo})
        found = [file for file in files.values() if file is not None]
        digest = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in found))
    except (ProfileSchemaError, GraphError, OSError) as error:
        raise TrainingDataError(str(error), remedy="correct the file, or measure again") from error
    digest.update("".join(sorted(graphs)).encode())
    name = path.name if path.is_dir() else path.stem
    return MeasuredProfiles(name=name, solo=solo, pairs=pairs, graphs=graphs, sha256=digest.hexdigest())


def _find(folder: Path, kind: str) -> Path | None:
    return next((folder / f"{kind}{suffix}" for suffix in SUFFIXES if (folder / f"{kind}{suffix}").is_file()), None)


def _files_of(path: Path) -> dict[str, Path | None]:
    """Which of the two files this one is by its columns, and the other one beside it."""
    if not path.is_file():
        raise TrainingDataError(f"{path} does not exist", remedy="give a CSV or Parquet file, or a data-set folder")
    names = set(_header(path))
    if "victim_job_key" in names:
        return {"solo": _find(path.parent, "solo"), "pairs": path}
    if "job_key" in names and "step_ms_mean" in names:
        return {"solo": path, "pairs": None}
    raise TrainingDataError(
        f"{path} has the columns of neither solo nor pairs rows",
        remedy="write it in the profile schema; `cotenant datasets import` does so for known public sets",
    )


def _header(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return [str(name) for name in _parquet(path).column_names]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [name.strip('"') for name in file.readline(100_000).rstrip("\r\n").split(",")]
    except UnicodeDecodeError as error:
        raise TrainingDataError(f"{path} is not text ({error})", remedy="give a CSV or Parquet file") from error


def _read(path: Path | None, row_type: type[Row]) -> tuple[Row, ...]:
    if path is None:
        return ()
    if path.stat().st_size > FILE_BYTES_MAX:
        raise TrainingDataError(
            f"{path} has {path.stat().st_size:,} bytes, at most {FILE_BYTES_MAX:,} are read", remedy="split it"
        )
    if path.suffix == ".parquet":
        return _read_parquet(path, row_type)
    try:
        return tuple(read_rows(path, row_type))
    except UnicodeDecodeError as error:
        raise TrainingDataError(f"{path} is not UTF-8 ({error})", remedy="save it as UTF-8") from error


def _read_parquet(path: Path, row_type: type[Row]) -> tuple[Row, ...]:
    table = _parquet(path)
    whole = {item.name for item in columns(row_type) if item.kind is int}
    cells = ({name: _text(value, name in whole) for name, value in record.items()} for record in table.to_pylist())
    return tuple(parse_row(row, row_type, f"{path}, row {number}") for number, row in enumerate(cells))


def _parquet(path: Path) -> Any:  # noqa: ANN401 (the library has no types)
    try:
        return pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise TrainingDataError(f"{path} is no Parquet file ({error})", remedy="write it again") from error


def _text(value: object, whole: bool) -> str:
    """A cell as CSV would hold it; an integer column with nulls may have become a column of floats."""
    if value is None or (isinstance(value, float) and value != value):  # noqa: PLR0124 (the test for NaN)
        return ""
    if isinstance(value, list):
        return "|".join(str(part) for part in value)
    return str(int(value)) if whole and isinstance(value, float) and value.is_integer() else str(value)


def _read_graphs(folder: Path, wanted: set[str | None]) -> dict[str, GraphDescription]:
    graphs = {}
    for path in sorted(folder.glob("*.onnx")) if folder.is_dir() else ():
        if path.stem not in wanted:
            continue
        description = describe_graph(path.read_bytes())
        if description.graph_sha256 != path.stem:
            raise TrainingDataError(f"{path} is not the graph that its name says", remedy="export it again")
        graphs[path.stem] = description
    return graphs
