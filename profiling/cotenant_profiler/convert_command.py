"""convert: an exported program of torch as an ONNX file without weights, for environments that have no onnxscript."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import onnx
import torch

from cotenant.capture.reasons import COMPLEX_NUMBERS
from cotenant.graph_file import read_graph, strip_weights
from cotenant.graph_parameters import BUFFER_PREFIX
from cotenant_profiler.errors import ProfilerError
from cotenant_profiler.stand_ins import put_stand_ins

BATCH = "batch"
_FLOAT_BYTES = 4
_TOLD_CHARACTERS = 500
_STATISTICS_PLACES = (3, 4)
"""Inputs of a batch normalization that are its running statistics."""
_EXTREMES = (torch.ops.aten.amax.default, torch.ops.aten.amin.default)
_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("convert")
@click.argument("export", type=_PATH)
@click.option("--out", type=_PATH, required=True, help="The ONNX file.")
@click.option("--held-bytes", type=click.IntRange(min=0), default=0, help="What the job holds besides, as a buffer.")
def convert_command(export: Path, out: Path, held_bytes: int) -> None:
    """Write EXPORT, which `torch.export.save` has written (.pt2), as an ONNX file without weights."""
    try:
        content = with_held(convert(export), held_bytes)
    except Exception as error:  # whatever torch raises about a foreign file
        raise ProfilerError(f"cannot convert {export.name}: {_cause(error)}") from error
    out.write_bytes(content)


def _cause(error: Exception) -> str:
    """What torch's page of advice is about: the first line of the error that it was raised from."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:  # foreign code may raise in a circle
        causes.append(cause)
    lines = [line.strip() for line in str(causes[-1]).splitlines()]
    return next(filter(None, lines), type(causes[-1]).__name__)[:_TOLD_CHARACTERS]


def convert(export: Path) -> bytes:
    """Returns the graph of an exported program without its weights; its one symbolic dimension is called `batch`.

    Raises:
        Exception: Whatever torch has against it.
    """
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        exported = torch.export.load(export)
        _copy_for_certain(exported)
        _name_all_dimensions(exported)
        put_stand_ins(exported)
        program = _exported_to_onnx(exported)
        if program is None:
            raise ProfilerError("torch.onnx.export returned nothing")
        _name_batch(program)
        signature = exported.graph_signature
        _name_untrained(program, (*signature.buffers, *signature.lifted_tensor_constants, *_frozen_weights(exported)))
        path = Path(folder) / "graph.onnx"
        program.save(str(path), external_data=True)
        return read_graph(path)


def _copy_for_certain(exported: torch.export.ExportedProgram) -> None:
    """Makes a copy of what is to be contiguous, whether or not it was when it was exported.

    Attention with a mask that learns, as T5's, is laid out otherwise by the kernel that the conversion takes: there a
    copy that was left out is missed by what comes next.
    """
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.contiguous.default:
            node.target = torch.ops.aten.clone.default
            node.kwargs = {"memory_format": torch.contiguous_format, **node.kwargs}


def _name_all_dimensions(exported: torch.export.ExportedProgram) -> None:
    """Names the dimensions of which an extreme is taken: ONNX's translation has no default."""
    for node in exported.graph.nodes:
        if node.target in _EXTREMES and len(node.args) == 1 and "dim" not in node.kwargs:
            node.kwargs = {"dim": list(range(node.args[0].meta["val"].dim())), **node.kwargs}


def _exported_to_onnx(exported: torch.export.ExportedProgram) -> torch.onnx.ONNXProgram | None:
    try:
        return torch.onnx.export(exported, dynamo=True, optimize=False, verbose=False)
    except torch.onnx.OnnxExporterError:
        # Which of its operators is missed first says little: none is there for what the network computes with.
        if _has_complex_numbers(exported):
            raise ProfilerError(COMPLEX_NUMBERS) from None
        raise


def _has_complex_numbers(exported: torch.export.ExportedProgram) -> bool:
    values = (node.meta.get("val") for node in exported.graph.nodes)
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def with_held(graph: bytes, held_bytes: int) -> bytes:
    """Returns a graph with one more buffer, that no operator takes.

    Args:
        graph: As of `convert`.
        held_bytes: Size of the buffer; 0 = the graph stays as it is.
    """
    if not held_bytes:
        return graph
    model = onnx.load_from_string(graph)
    size = -(-held_bytes // _FLOAT_BYTES)
    model.graph.initializer.add(name=f"{BUFFER_PREFIX}held", data_type=onnx.TensorProto.FLOAT, dims=[size])
    return strip_weights(model.SerializeToString())


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


def _name_untrained(program: torch.onnx.ONNXProgram, names: Iterable[str]) -> None:
    """Tells what is not trained from weights; statistics of batch normalization are known by their places."""
    graph = program.model.graph
    for name in names:
        value = graph.initializers.get(name)
        if value is None or any(_takes_statistics(use.node.op_type, use.idx) for use in value.uses()):
            continue
        del graph.initializers[name]
        value.name = f"{BUFFER_PREFIX}{name}"
        if value.const_value is not None:
            value.const_value.name = value.name
        graph.initializers[value.name] = value


def _takes_statistics(operator: str, place: int) -> bool:
    return operator == "BatchNormalization" and place in _STATISTICS_PLACES
