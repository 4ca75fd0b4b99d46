"""Measured datasets: folders with solo.csv, pairs.csv and the graphs that the jobs ran."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant.profile_schema import PairRow, ProfileSchemaError, SoloRow, read_rows
from predictor_service.errors import GraphError, TrainingDataError
from predictor_service.features.graph_description import GraphDescription, describe_graph

_FILES: Final = ("solo.csv", "pairs.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One folder, read and checked.

    Attributes:
        name: Name of the folder.
        solo: Rows of jobs alone.
        pairs: Rows of jobs side by side.
        graphs: Descriptions by graph hash.
        sha256: Hash over the names and contents of all files that were read.
    """

    name: str
    solo: tuple[SoloRow, ...]
    pairs: tuple[PairRow, ...]
    graphs: Mapping[str, GraphDescription]
    sha256: str


def find_datasets(root: Path) -> list[Path]:
    """Folders below `root` that have the layout of a dataset, by name."""
    if not root.is_dir():
        return []
    return sorted(
        folder
        for folder in root.iterdir()
        if all((folder / name).is_file() for name in _FILES) and (folder / "graphs").is_dir()
    )


def read_dataset(folder: Path) -> Dataset:
    """Reads one folder.

    Raises:
        TrainingDataError: A file breaks the schema, or a graph cannot be described or is not what its name says.
    """
    digest = hashlib.sha256()
    graphs = {}
    try:
        solo = read_rows(folder / "solo.csv", SoloRow)
        pairs = read_rows(folder / "pairs.csv", PairRow)
        for path in sorted((folder / "graphs").glob("*.onnx")):
            content = path.read_bytes()
            digest.update(path.name.encode() + hashlib.sha256(content).digest())
            graphs[path.stem] = describe_graph(content)
            if graphs[path.stem].graph_sha256 != path.stem:
                raise TrainingDataError(f"{path} is not the graph that its name says", remedy="export it again")
    except (ProfileSchemaError, GraphError, OSError) as error:
        raise TrainingDataError(f"{folder.name}: {error}", remedy="correct or remove the dataset") from error
    for name in _FILES:
        digest.update(name.encode() + hashlib.sha256((folder / name).read_bytes()).digest())
    return Dataset(name=folder.name, solo=tuple(solo), pairs=tuple(pairs), graphs=graphs, sha256=digest.hexdigest())
