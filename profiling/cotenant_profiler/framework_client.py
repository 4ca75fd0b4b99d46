"""Measuring processes that are forked from one that has imported the framework, seen from who wants them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, Final

from cotenant_profiler.errors import ForkRefusedError, WorkerError
from cotenant_profiler.worker_client import SINGLE_THREAD, WorkerClient, allocator_environment

_SERVER: Final = "cotenant_profiler.framework_server"
_ANSWER_BYTES_MAX: Final = 4096
_ENDING_S_MAX: Final = 10.0


class FrameworkClient:
    """Imports the framework once, in a process of its own, and has workers of a stand-in core forked from it.

    It ends with the process that started it, and its workers with it. One that was silent for too long is ended.

    Args:
        arguments: How its workers get onto the device, as in `WorkerPlace`: a core. GPUs are not forked onto: their
            hosts are fast, and no process that was forked can use a context from before.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", _SERVER, "--connection", str(theirs.fileno()), *arguments]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **SINGLE_THREAD},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def start(self, timeout_ms: float, *, keeps_freed_memory: bool | None = True) -> WorkerClient:
        """Return a worker as soon as the framework is imported, which the first one waits for.

        Args:
            timeout_ms: How long that may take.
            keeps_freed_memory: See `WorkerClient`.

        Raises:
            ForkRefusedError: Nothing can be forked there; the message says why.
            WorkerError: The process ended, or was silent for `timeout_ms`.
        """
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        try:
            request = {"do": "start", "allocator": allocator_environment(keeps_freed_memory)}
            answer = self._ask(request, timeout_ms / 1e3, [theirs_in, theirs_out])
            if "refused" in answer:
                raise ForkRefusedError(answer["refused"])
        except WorkerError:
            os.close(ours_out)
            os.close(ours_in)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return WorkerClient.of(_ForkedProcess(self, answer["pid"], ours_out, ours_in))

    def end(self, pid: int) -> int | None:
        """End a worker; return its exit code when it is gone, None where the server knows it no more."""
        with contextlib.suppress(WorkerError):
            exit_code = self._ask({"do": "end", "pid": pid}, _ENDING_S_MAX)["exit_code"]
            return None if exit_code is None else int(exit_code)
        return None

    def close(self) -> None:
        """End the process and, by the kernel, its workers; returns when it is gone."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def __enter__(self) -> FrameworkClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: dict[str, Any], timeout_s: float, files: Sequence[int] = ()) -> dict[str, Any]:
        try:
            self._connection.settimeout(max(timeout_s, 1e-3))
            socket.send_fds(self._connection, [json.dumps(request).encode()], files)
            told = self._connection.recv(_ANSWER_BYTES_MAX)
        except TimeoutError as error:
            # A late answer would be taken for that to the next request.
            self.close()
            raise WorkerError(f"the framework was not imported within {timeout_s:.1f} s") from error
        except OSError as error:
            raise WorkerError(f"the process that imports the framework is gone: {error}") from error
        if not told:
            raise WorkerError(f"the process that imports the framework ended (exit code {self._process.wait()})")
        answer: dict[str, Any] = json.loads(told)
        return answer


class _ForkedProcess:
    """What `WorkerClient` uses of a process; to ask for its exit status ends it."""

    def __init__(self, server: FrameworkClient, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self._server = server
        self._exit_code: int | None = None
        self._is_ended = False

    def poll(self) -> int | None:
        if not self._is_ended:
            self._exit_code, self._is_ended = self._server.end(self.pid), True
        return self._exit_code

    def kill(self) -> None:
        self.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        return self.poll()
