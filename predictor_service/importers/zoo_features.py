"""Features of the architectures that public sets name, read from their graphs: datasets/zoo_features.

The graphs are those that `python -m cotenant_profiler export` writes; the table is rebuilt from them by `cotenant
datasets features --graphs`. They are read as a user's job is, by `describe_graph`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from predictor_service.errors import GraphError, TrainingDataError
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.importers.published_table import read_columns
from predictor_service.settings import default_datasets_dir

FILE_NAME: Final = "features.csv"
_KEY_COLUMNS: Final = ("architecture", "graph_sha256")
_LINES: Final = {
    "forward_macs": "forward_macs",
    "forward_flops": "forward_flops",
    "traffic_bytes": "traffic_bytes",
    "activation_bytes_saved": "saved_for_backward_bytes",
    "input_bytes": "input_bytes",
    "output_bytes": "output_bytes",
    "reserved_bytes": "reserved_bytes",
}


@dataclass(frozen=True, slots=True)
class ZooFeatures:
    """The table: features by architecture."""

    by_architecture: Mapping[str, Mapping[str, float]]

    @classmethod
    def load(cls, folder: Path | None = None) -> ZooFeatures:
        """Reads the table that comes with the program; without one, nothing is known.

        Raises:
            TrainingDataError: The table is damaged.
        """
        return _load(folder or default_datasets_dir() / "zoo_features")

    def of(self, architecture: str | None) -> Mapping[str, float] | None:
        """Features of an architecture of the zoo; None when the table lacks it."""
        return self.by_architecture.get(architecture or "")


@cache
def _load(folder: Path) -> ZooFeatures:
    rows = read_columns(folder, FILE_NAME, _KEY_COLUMNS) if (folder / FILE_NAME).is_file() else ()
    return ZooFeatures(
        {
            row.text("architecture"): {
                name: row.number(name, minimum=-math.inf) for name in row.cells if name not in _KEY_COLUMNS
            }
            for row in rows
        }
    )


def describe_folder(graphs: Path, folder: Path) -> int:
    """Describes every ARCHITECTURE.onnx of a folder and writes the table.

    Args:
        graphs: Folder of graphs.
        folder: Gets features.csv; created where needed.

    Returns:
        Rows written.

    Raises:
        TrainingDataError: There is no graph, or one cannot be described; names it.
    """
    rows = []
    for path in sorted(graphs.glob("*.onnx")):
        try:
            graph = describe_graph(path.read_bytes())
        except (GraphError, OSError) as error:
            raise TrainingDataError(f"{path}: {error}", remedy="export it again or remove it") from error
        rows.append({"architecture": path.stem, "graph_sha256": graph.graph_sha256, **described_features(graph)})
    if not rows:
        raise TrainingDataError(f"{graphs} has no .onnx file", remedy="export the zoo there first")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE_NAME).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def described_features(graph: GraphDescription) -> dict[str, float]:
    """The features of a graph by the names that traced models have, where both know them.

    Returns:
        Counts, and bytes of the exported types; `_per_sample` and `_constant` are the parts of a line over the batch.
    """
    one, two = graph.at_batch(1), graph.at_batch(2)
    features: dict[str, float] = {
        "parameters": one.parameters,
        "parameter_bytes": one.parameter_bytes,
        "buffer_bytes": one.buffer_bytes,
        "depth": one.depth,
        "nodes": one.nodes,
        "recurrent_steps": one.recurrent_steps,
        "widest_activation_bytes_per_sample": two.widest_activation_bytes - one.widest_activation_bytes,
    }
    for scalar, name in _LINES.items():
        features[f"{name}_per_sample"] = graph.scalars[scalar].per_sample
    for scalar in ("traffic_bytes", "activation_bytes_saved"):
        features[f"{_LINES[scalar]}_constant"] = graph.scalars[scalar].constant
    features.update({f"{family.value}_nodes": count for family, count in one.operator_counts.items()})
    return features
