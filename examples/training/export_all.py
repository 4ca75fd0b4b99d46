"""Writes the stripped graphs of all example trainings: python -m examples.training.export_all FOLDER."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from cotenant.graph_file import read_graph
from examples.training.graph_export import export_graph
from examples.training.tasks import TASKS


def main() -> None:
    """Write FOLDER/<task>.onnx for every task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, task in TASKS.items():
        example = task.generate(torch.Generator().manual_seed(0)).inputs[:2]
        path = folder / f"{name}.onnx"
        export_graph(task.build(), example, path)
        stripped = read_graph(path)
        path.write_bytes(stripped)
        path.with_name(path.name + ".data").unlink(missing_ok=True)
        print(f"{path}: {len(stripped)} bytes")


if __name__ == "__main__":
    main()
