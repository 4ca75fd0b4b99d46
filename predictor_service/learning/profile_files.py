"""Measured profiles from wherever they lie: a data-set folder, or one CSV or Parquet file in our schema."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from cotenant import profile_parquet, profile_text
from cotenant.profile_schema import PairRow, ProfileSchemaError, SoloRow, read_rows
from predictor_service.errors import GraphError, TrainingDataError
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.learning.graph_tables import (
    REFERENCE,
    SIDECAR,
    Figures,
    find_figures,
    hash_tables,
    read_figures,
)

FILE_BYTES_MAX: Final = 1 << 30
SUFFIXES: Final = (".csv", f".csv{profile_text.SUFFIX}", profile_parquet.SUFFIX)

_MARK: Final = f'"{REFERENCE}"'

Row = TypeVar("Row", SoloRow, PairRow)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredProfiles:
    """Rows of one file or folder.

    Attributes:
        name: Of the folder, or of the file without its suffix.
        solo: Rows of jobs alone.
        pairs: Rows of co-located jobs.
        graphs: Descriptions by graph hash, where the folder has graphs.
        graph_figures: Figures of graphs by job key, where the folder has a table of them instead.
        sha256: Hash over everything that was read.
    """

    name: str
    solo: tuple[SoloRow, ...]
    pairs: tuple[PairRow, ...]
    graphs: Mapping[str, GraphDescription] = field(default_factory=dict)
    graph_figures: Mapping[str, Figures] = field(default_factory=dict)
    sha256: str = ""


def read_profiles(path: Path) -> MeasuredProfiles:
    """Reads a data-set folder, or one file of it with the solo rows in the same folder.

    Args:
        path: A folder with solo.csv and pairs.csv, or either with the suffix .csv.gz or .parquet, or one such file by
            any name.

    Raises:
        TrainingDataError: It is not there, too large, breaks the schema, or a graph's content does not match its name.
    """
    folder = path if path.is_dir() else path.parent
    try:
        if path.is_dir():
            files = {kind: find_rows_file(folder, kind) for kind in ("solo", "pairs")}
            if not any(files.values()):
                raise TrainingDataError(
                    f"{path} holds neither solo nor pairs", remedy="a data set is a folder with solo.csv and pairs.csv"
                )
        else:
            files = _files_of(path)
        solo = _read(files["solo"], SoloRow)
        pairs = _read(files["pairs"], PairRow)
        graphs = _read_graphs(folder / "graphs", {row.graph_sha256 for row in solo})
        figures = read_sidecar(folder)
        found = [file for file in (*files.values(), find_sidecar(folder)) if file is not None]
        digest = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in found))
        if check_references(solo):
            digest.update(hash_tables())
    except (ProfileSchemaError, profile_parquet.ParquetError, GraphError, OSError) as error:
        raise TrainingDataError(str(error), remedy="correct the file, or measure again") from error
    digest.update("".join(sorted(graphs)).encode())
    name = path.name if path.is_dir() else path.stem
    return MeasuredProfiles(
        name=name, solo=solo, pairs=pairs, graphs=graphs, graph_figures=figures, sha256=digest.hexdigest()
    )


def find_sidecar(folder: Path) -> Path | None:
    """The folder's table of figures of graphs; None where it has none."""
    return next(
        (path for ending in ("", profile_text.SUFFIX) if (path := folder / f"{SIDECAR}{ending}").is_file()), None
    )


def read_sidecar(folder: Path) -> dict[str, Figures]:
    """Reads that table; see `graph_tables.read_figures`."""
    path = find_sidecar(folder)
    return {} if path is None else dict(read_figures(path, ("job_key",)))


def check_references(rows: Iterable[SoloRow]) -> bool:
    """Whether rows refer to tables of figures.

    Raises:
        TrainingDataError: A reference names nothing; the message names the row.
    """
    references: dict[str, str] = {}
    for row in rows:
        if row.features_json and _MARK in row.features_json:
            references.setdefault(str(json.loads(row.features_json).get(REFERENCE)), row.run_id)
    for reference, run_id in references.items():
        try:
            find_figures(reference)
        except TrainingDataError as error:
            raise TrainingDataError(f"run {run_id[:100]}: {error.message}", remedy=error.remedy) from error
    return bool(references)


def refers_to_tables(path: Path) -> bool:
    """The same by the text of a file of rows alone, without checking them; false where it is Parquet or no text.

    Raises:
        OSError: It cannot be read.
    """
    if path.suffix == profile_parquet.SUFFIX:
        return False
    try:
        with profile_text.open_to_read(path) as file:
            return any(REFERENCE in line for line in file)
    except profile_text.TextError:
        return False


def find_rows_file(folder: Path, kind: str) -> Path | None:
    """The file of a kind of rows in any of the forms that are read; None where there is none.

    Raises:
        TrainingDataError: The rows are there plain and compressed: one of them is older, and nothing says which.
    """
    plain, packed = (folder / f"{kind}{suffix}" for suffix in SUFFIXES[:2])
    if plain.is_file() and packed.is_file():
        raise TrainingDataError(f"{folder} has both {plain.name} and {packed.name}", remedy="remove the older one")
    return next((folder / f"{kind}{suffix}" for suffix in SUFFIXES if (folder / f"{kind}{suffix}").is_file()), None)


def _files_of(path: Path) -> dict[str, Path | None]:
    """Which of the two files this one is by its columns, and the other one of the same folder."""
    if not path.is_file():
        raise TrainingDataError(f"{path} does not exist", remedy="give a CSV or Parquet file, or a data-set folder")
    names = set(_header(path))
    if "victim_job_key" in names:
        return {"solo": find_rows_file(path.parent, "solo"), "pairs": path}
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
        with profile_text.open_to_read(path) as file:
            return [name.strip('"') for name in file.readline(100_000).rstrip("\r\n").split(",")]
    except profile_text.TextError as error:
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
