"""Writes the graph of a network as ONNX without its weights: what `cotenant submit --graph` wants."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn


def export_graph(network: nn.Module, example: Tensor, path: Path) -> None:
    """Write `network` to `path` with a symbolic batch dimension.

    Two arguments matter. `optimize=False`: otherwise the exporter folds BatchNorm away and the memory that its inputs
    need in training cannot be seen. `external_data=True`: the weights go to a second file, `<path>.data`, and stay at
    home. `cotenant` looks there once, for the small whole numbers that shapes depend on; after that it may be deleted.

    Args:
        network: The network; exported as if for inference, training is derived from it.
        example: An input, samples in dimension 0, at least 2 of them.
        path: The .onnx file to be written.
    """
    program = torch.onnx.export(
        network.eval(),
        (example,),
        dynamo=True,
        optimize=False,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        verbose=False,
    )
    if program is None:
        raise RuntimeError(f"torch.onnx.export returned nothing for {type(network).__name__}")
    program.save(str(path), external_data=True)
