"""The parent's side of a measuring process."""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Protocol

from cotenant_profiler import system_clock
from cotenant_profiler.errors import OutOfMemoryError, WorkerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.measured_device import WorkerPlace

START_TIMEOUT_MS = 120_000
ANSWER_BYTES_MAX = 1 << 16
SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Freed memory stays with the process, as PyTorch keeps it on a GPU. Otherwise the allocator hands it back and fetches
# it again in some steps and not in others, and equal steps take 5.6 or 9.5 ms.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}

_RETURN_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10), "MALLOC_TRIM_THRESHOLD_": "0"}


def allocator_environment(keeps_freed_memory: bool | None) -> Mapping[str, str]:
    """Return what tells a worker's allocator what to do with freed memory; None = what it does by itself."""
    if keeps_freed_memory is None:
        return {}
    return _KEEP_FREED_MEMORY if keeps_freed_memory else _RETURN_FREED_MEMORY


class WorkerProcess(Protocol):
    """What is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Takes commands."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Gives answers."""

    def poll(self) -> int | None:
        """Return its exit code; None = it has none yet."""

    def kill(self) -> None:
        """End it."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit code when it has ended."""


class WorkerClient:
    """Starts a worker on a device and talks to it, one command at a time.

    Args:
        place: How it gets onto the device.
        keeps_freed_memory: Whether freed memory stays with the process; None = as in any script.
    """

    def __init__(self, place: WorkerPlace, *, keeps_freed_memory: bool | None = True) -> None:
        command = [sys.executable, "-m", "cotenant_profiler.worker", *place.arguments]
        self._process: WorkerProcess = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **SINGLE_THREAD, **allocator_environment(keeps_freed_memory), **place.environment},
            # A Ctrl-C is for the campaign, which then ends its workers in order.
            start_new_session=True,
        )
        self._received = b""

    @classmethod
    def of(cls, process: WorkerProcess) -> WorkerClient:
        """Return the client of a worker that was started already."""
        client = cls.__new__(cls)
        client._process, client._received = process, b""
        return client

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, do: str, **arguments: object) -> None:
        """Send a command without waiting for the answer."""
        values = {key: _plain(value) for key, value in arguments.items()}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerError(f"worker {self.pid} is gone (exit code {self._process.poll()})") from error

    def receive(self, timeout_ms: float = START_TIMEOUT_MS) -> dict[str, Any]:
        """Return the answer to the oldest command.

        Raises:
            OutOfMemoryError: The job does not fit on the device.
            WorkerError: The worker refused the command, ended, or was silent for `timeout_ms`.
        """
        answer: dict[str, Any] = json.loads(self._read_line(timeout_ms))
        if answer.get("out_of_memory"):
            raise OutOfMemoryError(answer["error"])
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def ask(self, do: str, timeout_ms: float = START_TIMEOUT_MS, **arguments: object) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.send(do, **arguments)
        return self.receive(timeout_ms)

    def _read_line(self, timeout_ms: float) -> bytes:
        assert self._process.stdout is not None
        deadline_ns = system_clock.now_ns() + round(1e6 * timeout_ms)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                remaining_ns = deadline_ns - system_clock.now_ns()
                if remaining_ns <= 0 or len(self._received) > ANSWER_BYTES_MAX:
                    raise WorkerError(f"worker {self.pid} gave no answer within {timeout_ms:.0f} ms")
                if selector.select(remaining_ns / 1e9):
                    self._receive_bytes()
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _receive_bytes(self) -> None:
        assert self._process.stdout is not None
        received = os.read(self._process.stdout.fileno(), 4096)
        if not received:
            raise WorkerError(f"worker {self.pid} ended (exit code {self._process.wait(timeout=5)})")
        self._received += received

    def close(self) -> None:
        """End the worker; returns when it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _plain(value: object) -> object:
    return dataclasses.asdict(value) if isinstance(value, JobSpec) else value
