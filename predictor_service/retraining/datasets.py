"""Measured datasets: folders with solo.csv, pairs.csv and, where they are known, the graphs that the jobs ran."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from cotenant.profile_schema import PairRow, ProfileSchemaError, SoloRow, read_rows
from predictor_service.errors import GraphError, TrainingDataError
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.learning.graph_tables import hash_tables
from predictor_service.learning.profile_files import (
    MeasuredProfiles,
    check_references,
    find_rows_file,
    find_sidecar,
    read_sidecar,
    refers_to_tables,
)
from predictor_service.profile_store.rows import own_names
from predictor_service.registry.manifest import hash_group

_KINDS: Final = ("solo", "pairs")
COLLECTED: Final = "collected"
"""Campaign of what was measured of running jobs."""
PUBLIC: Final = "public"
"""Folder of the sets that others published, below the folder of data sets."""

Dataset = MeasuredProfiles
"""One folder, read and checked; its hash is over the names and contents of all files that were read."""


def find_datasets(root: Path) -> list[Path]:
    """Folders below `root` that have the layout of a dataset, by name; `root` alone where it is one itself."""
    if _is_dataset(root):
        return [root]
    return sorted(folder for folder in root.iterdir() if _is_dataset(folder)) if root.is_dir() else []


def _is_dataset(folder: Path) -> bool:
    return find_rows_file(folder, "solo") is not None


def read_datasets(root: Path) -> list[Dataset]:
    """Reads every dataset below a folder, by name.

    Raises:
        TrainingDataError: There is none, or one is broken.
    """
    folders = find_datasets(root)
    if not folders:
        raise TrainingDataError(
            f"{root} holds no dataset",
            remedy="a dataset is a folder with solo.csv, and pairs.csv if any; `cotenant datasets import` writes one",
        )
    return [read_dataset(folder) for folder in folders]


def fingerprint(hashes: Mapping[str, str]) -> str:
    """Hash of several datasets; their names do not matter.

    Args:
        hashes: Hash of each by name.
    """
    return hashlib.sha256("".join(sorted(hashes.values())).encode()).hexdigest()


def hash_datasets(root: Path) -> dict[str, str]:
    """Hash of every dataset below a folder by name, without describing a graph; see `Dataset.sha256`.

    Raises:
        TrainingDataError: A file cannot be read.
    """
    try:
        return {folder.name: _hash_folder(folder) for folder in find_datasets(root)}
    except OSError as error:
        raise TrainingDataError(f"{root}: {error}", remedy="correct or remove the dataset") from error


def list_seen_groups(datasets: Iterable[Dataset]) -> dict[str, tuple[str, ...]]:
    """Groups at every level of holding out, each as `hash_group`, that a model trained on datasets has seen."""
    seen: dict[str, set[str]] = defaultdict(set)
    for dataset in datasets:
        for row in dataset.solo:
            for level, name in _solo_groups(row):
                seen[level].add(hash_group(name))
        for pair in dataset.pairs:
            seen["random_pair"].add(hash_group("|".join(sorted((pair.victim_job_key, *pair.other_job_keys)))))
    return {level: tuple(sorted(names)) for level, names in sorted(seen.items())}


def _solo_groups(row: SoloRow) -> Iterator[tuple[str, str]]:
    yield "job", row.job_key
    yield "random_pair", row.job_key
    yield "architecture", row.architecture
    yield "family", row.family
    yield "device", row.device
    if row.campaign == COLLECTED and row.graph_sha256:
        # An export of the same measurements knows no family that another data set gave them.
        architecture, family = own_names(row.graph_sha256)
        yield "architecture", architecture
        yield "family", family


def read_dataset(folder: Path) -> Dataset:
    """Reads one folder.

    Raises:
        TrainingDataError: A file breaks the schema, or a graph cannot be described or does not match its name.
    """
    graphs = {}
    files = {kind: find_rows_file(folder, kind) for kind in _KINDS}
    try:
        solo = read_rows(files["solo"], SoloRow) if files["solo"] else []
        pairs = read_rows(files["pairs"], PairRow) if files["pairs"] else []
        check_references(solo)
        for path in sorted((folder / "graphs").glob("*.onnx")):
            graphs[path.stem] = describe_graph(path.read_bytes())
            if graphs[path.stem].graph_sha256 != path.stem:
                raise TrainingDataError(f"{path} is not the graph that its name states", remedy="export it again")
        sha256 = _hash_folder(folder)
    except (ProfileSchemaError, GraphError, OSError) as error:
        raise TrainingDataError(f"{folder.name}: {error}", remedy="correct or remove the dataset") from error
    return Dataset(
        name=folder.name,
        solo=tuple(solo),
        pairs=tuple(pairs),
        graphs=graphs,
        graph_figures=read_sidecar(folder),
        sha256=sha256,
    )


def _rows_files(folder: Path) -> list[Path]:
    return [path for kind in _KINDS if (path := find_rows_file(folder, kind)) is not None]


def _hash_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    sidecar = find_sidecar(folder)
    graphs = sorted((folder / "graphs").glob("*.onnx"))
    for path in (*graphs, *_rows_files(folder), *([sidecar] if sidecar else [])):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    if any(refers_to_tables(path) for path in _rows_files(folder)):
        digest.update(hash_tables())
    return digest.hexdigest()
