"""The blocks of parameters of a graph: the floating-point tensors that training changes, by name and size."""

from __future__ import annotations

from math import prod
from typing import Final

from cotenant.graph_file import floating_tensors

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""How normalisation layers name what they count; no optimizer changes it."""
_PARAMETERS_MAX = 10**12
BUFFER_PREFIX: Final = "buffer:"
"""How graphs that were read off scripts name what a network keeps and does not train: tables of angles, masks."""


def parameter_blocks(stripped: bytes) -> dict[str, int]:
    """Returns the number of parameters of each block of a graph, by its name.

    Single numbers, such as the constants that exporters write, statistics of normalisation layers and other buffers are
    left out.

    Args:
        stripped: What `cotenant.graph_file.read_graph` returned.

    Raises:
        GraphFileError: It is no ONNX model.
    """
    sizes = {name: prod(shape) for name, shape in floating_tensors(stripped) if shape and _is_parameter(name)}
    return {name: size for name, size in sizes.items() if 1 < size <= _PARAMETERS_MAX}


def _is_parameter(name: str) -> bool:
    return bool(name) and not name.endswith(_STATISTICS) and not name.startswith(BUFFER_PREFIX)
