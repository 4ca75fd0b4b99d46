"""The pool's side of one worker process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from cotenant.system_clock import steady_s
from predictor_service.errors import ExtractionCrashedError, ExtractionTimeoutError
from predictor_service.features.graphs.extraction_messages import (
    DESCRIPTION,
    LAST_ERROR,
    READY,
    decode_error,
    encode_request,
    receive_frame,
    send_frame,
)
from predictor_service.features.graphs.graph_description import GraphDescription

_START_TIMEOUT_S: Final = 60.0
_MODULE: Final = "predictor_service.features.graphs.extraction_worker"
_WORKER_ENVIRONMENT: Final = {
    # One thread per worker: the stacks of more would count against the memory limit.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    # Freed memory stays in the worker: giving it back after every graph costs a third of the time of the next one.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
}


class ExtractionProcess:
    """A running worker; used by one thread at a time, killed by any.

    Attributes:
        healthy: Whether it can take another graph.
    """

    def __init__(self, *, memory_limit_bytes: int, timeout_s: float) -> None:
        self.healthy = True
        self._timeout_s = timeout_s
        self._connection, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(memory_limit_bytes), str(timeout_s)]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **_WORKER_ENVIRONMENT},
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait_until_ready(self) -> bool:
        """Waits until the worker has loaded its libraries; false when it exited or took too long."""
        try:
            self._connection.settimeout(_START_TIMEOUT_S)
            return receive_frame(self._connection) == READY
        except OSError:
            return False

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def describe(self, data: bytes, bindings: Mapping[str, int]) -> GraphDescription:
        """Has one graph described.

        Raises:
            PredictorError: What the worker reported.
            ExtractionTimeoutError: No answer in time; the worker is not healthy any more.
            ExtractionCrashedError: The worker exited; it is not healthy any more.
        """
        deadline_s = steady_s() + self._timeout_s
        shorten_timeout = self._timeout_until(deadline_s)
        try:
            shorten_timeout()
            send_frame(self._connection, encode_request(data, bindings))
            answer = receive_frame(self._connection, shorten_timeout)
        except TimeoutError:
            self.healthy = False
            raise self._timeout_error() from None
        except OSError:
            answer = b""
        if not answer:
            self.healthy = False
            raise self._death()
        self.healthy = answer[:1] != LAST_ERROR
        if answer[:1] == DESCRIPTION:
            return GraphDescription.from_json(answer[1:].decode())
        raise decode_error(answer[1:])

    def kill(self) -> None:
        """Ends the process at once and takes its exit status, so that no zombie is left."""
        self.healthy = False
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._connection.close()

    def _timeout_until(self, deadline_s: float) -> Callable[[], None]:
        def shorten() -> None:
            self._connection.settimeout(max(deadline_s - steady_s(), 0.001))

        return shorten

    def _timeout_error(self) -> ExtractionTimeoutError:
        return ExtractionTimeoutError(
            f"describing the graph took longer than {self._timeout_s:g} s",
            remedy="export a smaller part of the model, or raise the extraction timeout",
            details={"timeout_s": f"{self._timeout_s:g}"},
        )

    def _death(self) -> ExtractionTimeoutError | ExtractionCrashedError:
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            status = 0
        if status == -signal.SIGXCPU:
            return self._timeout_error()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return ExtractionCrashedError(
            f"the worker that described the graph {how}",
            remedy="the graph is probably too large for the extraction memory limit",
        )
