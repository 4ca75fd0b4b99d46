"""The store as files in the profile schema: one table, or a data-set folder that every reader of profiles accepts."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant.profile_parquet import ParquetError
from cotenant.profile_schema import PairRow, SoloRow, write_rows
from predictor_service.errors import InvalidRequestError, StoreFullError
from predictor_service.profile_store.measurement_window import MeasurementWindow
from predictor_service.profile_store.rows import ProfileRows, make_rows

SUFFIXES: Final = (".csv", ".parquet")
BOUND: Final = "its graph has dimensions that a data set cannot bind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written, and how many windows became no row, by reason."""

    solo: int
    pairs: int
    graphs: int
    left_out: Mapping[str, int]


def export_table(windows: Sequence[MeasurementWindow], path: Path, kind: str) -> Exported:
    """Writes the rows of one kind.

    Args:
        windows: What to write.
        path: Ends in .csv or .parquet; replaced when it is there.
        kind: solo | pairs.

    Raises:
        InvalidRequestError: The file cannot be written there, or Parquet is not installed.
        StoreFullError: The disk is full.
    """
    rows = make_rows(windows)
    if kind == "solo":
        _write(path, rows.solo, SoloRow)
        return Exported(solo=len(rows.solo), pairs=0, graphs=0, left_out=rows.left_out)
    _write(path, rows.pairs, PairRow)
    return Exported(solo=0, pairs=len(rows.pairs), graphs=0, left_out=rows.left_out)


def export_folder(windows: Sequence[MeasurementWindow], folder: Path, graphs_folder: Path) -> Exported:
    """Writes solo.csv, pairs.csv and the graphs that are still kept.

    Args:
        windows: What to write.
        folder: Made when absent; must be empty or an earlier export.
        graphs_folder: Where the service keeps graphs by hash.

    Raises:
        InvalidRequestError: The folder cannot be written, or holds something else.
        StoreFullError: The disk is full.
    """
    free = [item for item in windows if not any(job.settings.dimension_bindings for job in (item.job, *item.others))]
    rows = make_rows(free)
    _make(folder)
    _write(folder / "solo.csv", rows.solo, SoloRow)
    _write(folder / "pairs.csv", rows.pairs, PairRow)
    left_out = rows.left_out + Counter({BOUND: len(windows) - len(free)})
    graphs = _copy_graphs(rows, graphs_folder, folder / "graphs")
    return Exported(solo=len(rows.solo), pairs=len(rows.pairs), graphs=graphs, left_out=left_out)


def _make(folder: Path) -> None:
    try:
        (folder / "graphs").mkdir(parents=True, exist_ok=True)
        unexpected = sorted({path.name for path in folder.iterdir()} - {"solo.csv", "pairs.csv", "graphs"})
    except OSError as error:
        raise InvalidRequestError(
            f"{folder} cannot be made ({error.strerror})", remedy="name another folder"
        ) from error
    if unexpected:
        raise InvalidRequestError(f"{folder} holds {unexpected[0]} as well", remedy="name a new or an empty folder")


def _write(path: Path, rows: Sequence[SoloRow] | Sequence[PairRow], row_type: type[SoloRow] | type[PairRow]) -> None:
    try:
        write_rows(path, rows, row_type)  # type: ignore[type-var]
    except ParquetError as error:
        raise InvalidRequestError(f"{path.name} {error}", remedy="write .csv") from error
    except OSError as error:
        path.with_name(f".{path.name}.partial").unlink(missing_ok=True)
        raise StoreFullError(
            f"{path} was not written ({error.strerror})", remedy="make room, or name another"
        ) from error


def _copy_graphs(rows: ProfileRows, source: Path, target: Path) -> int:
    names = {f"{row.graph_sha256}.onnx" for row in rows.solo}
    kept = [name for name in sorted(names) if (source / name).is_file()]
    try:
        for name in kept:
            shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise StoreFullError(f"{target} was not written ({error.strerror})", remedy="make room") from error
    return len(kept)
