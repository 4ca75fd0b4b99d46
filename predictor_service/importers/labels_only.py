"""A set as it is shipped: measured columns, and where the figures of a row's graph are, but not the figures.

A row's figures are looked for in the tables that come with the program and replaced by a reference where a table gives
exactly them; what no table gives goes to `graph_features.csv`, once for each job. Reading gives back every figure.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cotenant import profile_text
from cotenant.profile_schema import SoloRow
from predictor_service.errors import TrainingDataError
from predictor_service.importers.imported_set import ImportedSet, write_set
from predictor_service.learning.graph_tables import KEYS, REFERENCE, SIDECAR, join_figures, load_table

_SUFFIX: Final = f".csv{profile_text.SUFFIX}"
_GRAPH: Final = "graph."
# What depends on the row's batch is compared after joining.
_AT_BATCH: Final = ("step_peak_bytes", "counted_memory_bytes")

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """A set without its figures of graphs.

    Attributes:
        imported: Rows whose features name the line of a table, or none.
        figures: Of graphs that no table has, by job key.
    """

    imported: ImportedSet
    figures: Mapping[str, Figures]


def split_figures(imported: ImportedSet) -> LabelledSet:
    """Moves figures of graphs out of the rows.

    Raises:
        TrainingDataError: Two rows of one job have different figures.
    """
    known = _index_tables()
    rows: list[SoloRow] = []
    figures: dict[str, Figures] = {}
    for row in imported.solo:
        features: dict[str, Any] = json.loads(row.features_json or "{}")
        graph = {name.removeprefix(_GRAPH): float(features.pop(name)) for name in list(features) if _is_figure(name)}
        reference = _find_reference(row, graph, known)
        if reference:
            features[REFERENCE] = reference
        elif graph and figures.setdefault(row.job_key, graph) != graph:
            raise TrainingDataError(f"two runs of the job of {row.run_id} differ in their graph", remedy="report it")
        rows.append(dataclasses.replace(row, features_json=_write(features)))
    return LabelledSet(imported=dataclasses.replace(imported, solo=rows), figures=figures)


def write_labels(folder: Path, imported: ImportedSet) -> list[Path]:
    """Writes a dataset folder of compressed files without figures of graphs; see `write_set`."""
    labelled = split_figures(imported)
    files = write_set(folder, labelled.imported, _SUFFIX)
    if not labelled.figures:
        return files
    path = folder / f"{SIDECAR}{profile_text.SUFFIX}"
    try:
        _write_figures(path, labelled.figures)
    except OSError as error:
        raise TrainingDataError(str(error), remedy="name a folder that can be written") from error
    return sorted([*files, path])


def _is_figure(name: str) -> bool:
    return name.startswith(_GRAPH)


def _write(features: Mapping[str, Any]) -> str | None:
    return json.dumps(features, separators=(",", ":"), sort_keys=True) if features else None


def _index_tables() -> dict[frozenset[tuple[str, float]], list[str]]:
    index: dict[frozenset[tuple[str, float]], list[str]] = {}
    for table in KEYS:
        for key, figures in load_table(table).items():
            index.setdefault(_identity(figures), []).append(f"{table}/{key}")
    return index


def _identity(figures: Figures) -> frozenset[tuple[str, float]]:
    return frozenset((name, value) for name, value in figures.items() if not name.startswith(_AT_BATCH))


def _find_reference(row: SoloRow, graph: Figures, known: Mapping[frozenset[tuple[str, float]], Sequence[str]]) -> str:
    """The line that gives exactly these figures, by the row's own name where several do; empty for none."""
    lines = known.get(_identity(graph), ()) if graph else ()
    own = [line for line in lines if row.architecture.split(".")[0] in line.split("/")]
    for line in (*own, *lines):
        if dict(join_figures(line, row.sub_batch, row.optimizer)) == graph:
            return line
    return ""


def _write_figures(path: Path, figures: Mapping[str, Figures]) -> None:
    names = sorted({name for each in figures.values() for name in each})
    with profile_text.open_to_write(path, is_packed=True) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job_key", *names])
        writer.writerows(_lines(figures, names))


def _lines(figures: Mapping[str, Figures], names: Sequence[str]) -> Iterator[list[str]]:
    for key, each in figures.items():
        yield [key, *(f"{each[name]:.17g}" if name in each else "" for name in names)]
