"""Measured profiles from wherever they lie: a data-set folder, or one CSV or Parquet file in our schema."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from cotenant import profile_parquet
from cotenant.profile_schema import PairRow, ProfileSchemaError, SoloRow, read_rows
from predictor_service.errors import GraphError, TrainingDataError
from predictor_service.features.graph_description import GraphDescription, describe_graph

FILE_BYTES_MAX: Final = 1 << 30
SUFFIXES: Final = (".csv", profile_parquet.SUFFIX)

Row = TypeVar("Row", SoloRow, PairRow)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredProfiles:
    """Rows of one file or folder.

    Attributes:
        name: Of the folder, or of the file without its suffix.
        solo: Rows of jobs alone.
        pairs: Rows of co-located jobs.
        graphs: Descriptions by graph hash, where the folder has graphs.
        sha256: Hash over everything that was read.
    """

    name: str
    solo: tuple[SoloRow, ...]
    pairs: tuple[PairRow, ...]
    graphs: Mapping[str, GraphDescription] = field(default_factory=dict)
    sha256: str = ""


def read_profiles(path: Path) -> MeasuredProfiles:
    """Reads a data-set folder, or one file of it with the solo rows in the same folder.

    Args:
        path: A folder with solo.csv and pairs.csv, or either with the suffix .parquet, or one such file by any name.

    Raises:
        TrainingDataError: It is not there, too large, breaks the schema, or a graph's content does not match its name.
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
    except (ProfileSchemaError, profile_parquet.ParquetError, GraphError, OSError) as error:
        raise TrainingDataError(str(error), remedy="correct the file, or measure again") from error
    digest.update("".join(sorted(graphs)).encode())
    name = path.name if path.is_dir() else path.stem
    return MeasuredProfiles(name=name, solo=solo, pairs=pairs, graphs=graphs, sha256=digest.hexdigest())


def _find(folder: Path, kind: str) -> Path | None:
    return next((folder / f"{kind}{suffix}" for suffix in SUFFIXES if (folder / f"{kind}{suffix}").is_file()), None)


def _files_of(path: Path) -> dict[str, Path | None]:
    """Which of the two files this one is by its columns, and the other one of the same folder."""
    if not path.is_file():
        raise TrainingDataError(f"{path} does not exist", remedy="give a CSV or Parquet file, or a data-set folder")
    names = set(_header(path))
    if "victim_job_key" in names:
        return {"solo": _find(path.parent, "solo"), "pairs": path}
    if "job_key" in names and "architecture" in names:
        return {"solo": path, "pairs": None}
    raise TrainingDataError(
        f"{path} has the columns of neither solo nor pairs rows",
        remedy="write it in the profile schema; `cotenant datasets import` does so for known public sets",
    )


def _header(path: Path) -> list[str]:
    if path.suffix == profile_parquet.SUFFIX:
        return profile_parquet.read_header(path)
    try:
        # A byte order mark, which spreadsheets write, is no part of the first column's name.
        with path.open(encoding="utf-8-sig", newline="") as file:
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
    return tuple(read_rows(path, row_type))


def _read_graphs(folder: Path, wanted: set[str | None]) -> dict[str, GraphDescription]:
    graphs = {}
    for path in sorted(folder.glob("*.onnx")) if folder.is_dir() else ():
        if path.stem not in wanted:
            continue
        description = describe_graph(path.read_bytes())
        if description.graph_sha256 != path.stem:
            raise TrainingDataError(f"{path} is not the graph that its name states", remedy="export it again")
        graphs[path.stem] = description
    return graphs
