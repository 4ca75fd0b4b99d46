"""Graph files as the command line takes them in."""

from __future__ import annotations

from pathlib import Path

from cotenant.client_errors import InputError
from cotenant.graph_file import GraphFileError, read_graph


def load_graph(path: Path) -> bytes:
    """Returns an ONNX file without its weights.

    Raises:
        InputError: Not readable or not an ONNX file.
    """
    try:
        return read_graph(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", remedy="check the path") from error
    except GraphFileError as error:
        raise InputError(str(error), remedy="export it with torch.onnx.export (see the README)") from error
