"""Graphs of the zoo as stripped ONNX, by the same registry call that the measurement uses."""

from __future__ import annotations

import logging
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from cotenant.graph_file import graph_sha256, read_graph
from cotenant_profiler.errors import GraphExportError
from cotenant_profiler.training_loop import SEED
from cotenant_profiler.zoo.registry import find


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph without weights.

    Attributes:
        content: The ONNX file.
        sha256: Its hash, which is its name everywhere.
    """

    content: bytes
    sha256: str


def export_graph(name: str) -> Graph:
    """Return the graph of the architecture called `name`, with a symbolic batch dimension.

    `optimize=False` keeps BatchNorm in the graph: the default folds it away, and with it the memory of its inputs.

    Raises:
        UnknownArchitectureError: The zoo has no such architecture.
        GraphExportError: The exporter failed.
    """
    architecture = find(name)
    torch.manual_seed(SEED)
    network = architecture.build().eval()
    example = architecture.make_batch(2)[0]
    # One line per operator of torchvision that is not installed: nothing that a reader could act on.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    dynamic_shapes = ({0: torch.export.Dim("batch", min=1)},)
    try:
        with warnings.catch_warnings():
            # The exporter warns of deprecated functions that it calls itself, of the views of its weights that a
            # recurrent layer keeps, and of gradients that it looks for there.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "The tensor attributes .* were assigned during export", UserWarning)
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor", UserWarning)
            program = torch.onnx.export(
                network, (example,), dynamo=True, optimize=False, dynamic_shapes=dynamic_shapes, verbose=False
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise GraphExportError(f"{name}: {error}") from error
    if program is None:
        raise GraphExportError(f"{name}: the exporter returned nothing")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        program.save(str(path), external_data=True)
        content = read_graph(path)
    return Graph(content, graph_sha256(content))
