"""convert: an exported program of torch as an ONNX file without weights, for environments that have no onnxscript."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import torch

from cotenant.graph_file import read_graph
from cotenant.graph_parameters import BUFFER_PREFIX
from cotenant_profiler.errors import ProfilerError

BATCH = "batch"
_RUNNING_STATISTICS = (3, 4)
_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("convert")
@click.argument("export", type=_PATH)
@click.option("--out", type=_PATH, required=True, help="The ONNX file.")
def convert_command(export: Path, out: Path) -> None:
    """Write EXPORT, which `torch.export.save` has written (.pt2), as an ONNX file without weights."""
    try:
        content = convert(export)
    except Exception as error:  # whatever torch raises about a foreign file
        raise ProfilerError(f"cannot convert {export.name}: {str(error)[:2000]}") from error
    out.write_bytes(content)


def convert(export: Path) -> bytes:
    """Returns the graph of an exported program without its weights; its one symbolic dimension is called `batch`.

    Raises:
        Exception: Whatever torch has against it.
    """
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        exported = torch.export.load(export)
        program = torch.onnx.export(exported, dynamo=True, optimize=False, verbose=False)
        if program is None:
            raise ProfilerError("torch.onnx.export returned nothing")
        _name_batch(program)
        signature = exported.graph_signature
        _name_buffers(program, (*signature.buffers, *signature.lifted_tensor_constants, *_frozen_weights(exported)))
        path = Path(folder) / "graph.onnx"
        program.save(str(path), external_data=True)
        return read_graph(path)


def _name_batch(program: torch.onnx.ONNXProgram) -> None:
    """Gives the symbol of the inputs its meaning: an export that was loaded has lost it."""
    graph = program.model.graph
    symbols = {str(size) for value in graph.inputs for size in value.shape or () if not isinstance(size, int)}
    if len(symbols) != 1:
        return
    symbol = symbols.pop()
    values = [*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)]
    for value in values:
        if value.shape is not None:
            for index, size in enumerate(value.shape):
                if not isinstance(size, int) and str(size) == symbol:
                    value.shape[index] = BATCH


def _frozen_weights(exported: torch.export.ExportedProgram) -> list[str]:
    """The weights that no gradient reaches, as under an adapter; a network without any other is not one that trains."""
    weights = {name: exported.state_dict[name] for name in exported.graph_signature.parameters}
    frozen = [name for name, weight in weights.items() if not weight.requires_grad]
    return frozen if len(frozen) < len(weights) else []


def _name_buffers(program: torch.onnx.ONNXProgram, names: Iterable[str]) -> None:
    """Tells what is not trained from weights; statistics of batch normalization are known by their places."""
    graph = program.model.graph
    for name in names:
        value = graph.initializers.get(name)
        if value is None or any(_holds_statistics(use.node.op_type, use.idx) for use in value.uses()):
            continue
        del graph.initializers[name]
        value.name = f"{BUFFER_PREFIX}{name}"
        if value.const_value is not None:
            value.const_value.name = value.name
        graph.initializers[value.name] = value


def _holds_statistics(op_type: str, place: int) -> bool:
    return op_type == "BatchNormalization" and place in _RUNNING_STATISTICS
