"""A worker process: describes one graph after the other under limits that the kernel enforces.

Started by the pool as `python -m predictor_service.features.graphs.extraction_worker SOCKET MEMORY_LIMIT_BYTES
TIMEOUT_S`. It ends when the pool closes its side, so a pool that crashes leaves no worker behind.
"""

from __future__ import annotations

import gc
import math
import resource
import signal
import socket
import sys

import onnx_shape_inference  # noqa: F401 (loaded before limits of memory and time hold, which it would count against)

from predictor_service.errors import ExtractionCrashedError, GraphLimitError, PredictorError
from predictor_service.features.graphs.extraction_messages import (
    DESCRIPTION,
    ERROR,
    LAST_ERROR,
    READY,
    decode_request,
    encode_error,
    receive_frame,
    send_frame,
)
from predictor_service.features.graphs.graph_description import describe_graph


def main(arguments: list[str]) -> int:
    """Serves until the pool closes its side.

    Args:
        arguments: File descriptor of the socket, memory limit in bytes, seconds of CPU time per graph.

    Returns:
        The exit status.
    """
    descriptor, memory_limit_bytes, timeout_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    # Ctrl-C in a terminal is the pool's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))
    # What the libraries made at import stays: the collector need not look at it for every graph.
    gc.freeze()
    with socket.socket(fileno=descriptor) as connection:
        try:
            send_frame(connection, READY)
            _serve(connection, timeout_s, memory_limit_bytes)
        except ConnectionError:  # the pool hung up in the middle of an answer
            return 1
    return 0


def _serve(connection: socket.socket, timeout_s: float, memory_limit_bytes: int) -> None:
    while request := receive_frame(connection):
        _allow_cpu_time(timeout_s)
        answer = _answer(request, memory_limit_bytes)
        send_frame(connection, answer)
        if answer[:1] == LAST_ERROR:
            return


def _answer(request: bytes, memory_limit_bytes: int) -> bytes:
    try:
        data, bindings = decode_request(request)
        return DESCRIPTION + describe_graph(data, bindings).to_json().encode()
    except PredictorError as error:
        return ERROR + encode_error(error)
    except MemoryError:
        too_large = GraphLimitError(
            f"the graph needs more than {memory_limit_bytes >> 20} MiB to be understood",
            remedy="export a smaller part of the model",
            details={"limit": "memory_bytes", "maximum": str(memory_limit_bytes)},
        )
        return LAST_ERROR + encode_error(too_large)
    except Exception as error:  # a bug in this program: the request fails, the service goes on
        crash = ExtractionCrashedError(
            f"describing the graph failed with {type(error).__name__}: {error}", remedy="please report this graph"
        )
        return LAST_ERROR + encode_error(crash)


def _allow_cpu_time(timeout_s: float) -> None:
    """Ends the process by signal should it compute on after its pool has ended."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    allowed_s = math.ceil(usage.ru_utime + usage.ru_stime + timeout_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (allowed_s, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
