"""Imports the framework, then forks measuring processes: python -m cotenant_profiler.framework_server.

Importing torch, and what it imports for the first optimizer, takes three CPU seconds: ten seconds of a third of a core,
for each of the six measuring processes of a calibration. Here it is done once.

    start {allocator} with two files   fork a worker that reads and writes them   -> {pid} or {refused}
    end {pid}                          kill it and wait for its end               -> {exit_code}

No operator runs in this process and no GPU is initialised: neither pools of threads nor contexts survive a fork. A
worker holds the file pages that this process held, and counts memory from where a fresh process does, so that its
figures are those of a fresh one. It never outlives this process, nor this process the one that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from cotenant_profiler import framework_baseline, worker
from cotenant_profiler.file_pages import present_pages, read_pages

REQUEST_BYTES_MAX: Final = 4096
_FILES: Final = 2
_IMPORTED_BY_OPTIMIZERS: Final = "torch._dynamo"
_MALLOPT: Final = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Parameters of mallopt(3) by the variables that set them when a process starts."""
_SIGNAL_AT_DEATH_OF_PARENT: Final = 1
_THREADS: Final = Path("/proc/self/task")


class FrameworkServer:
    """Carries out requests that come over a socket.

    Args:
        connection: Its end of a pair of sequenced packets; closed by the other side, it ends the server.
        arguments: Of every worker.
    """

    def __init__(self, connection: socket.socket, arguments: Sequence[str]) -> None:
        self._connection = connection
        self._arguments = arguments
        self._workers: set[int] = set()
        self._pages: Sequence[range] = ()
        self._refusal = ""
        try:
            self._pages = present_pages()
        except OSError as error:
            self._refusal = f"the kernel does not tell which pages of files are in memory ({error})"

    def serve(self) -> None:
        """Answer requests until the connection is closed."""
        while True:
            message, files, _, _ = socket.recv_fds(self._connection, REQUEST_BYTES_MAX, _FILES)
            if not message:
                return
            request = json.loads(message)
            answer = self._end(request["pid"]) if request["do"] == "end" else self._start(request["allocator"], files)
            self._connection.send(json.dumps(answer).encode())

    def _start(self, allocator: dict[str, str], files: Sequence[int]) -> dict[str, Any]:
        refusal = self._refusal or why_not_fork()
        own_pid = os.getpid()
        pid = None if refusal else os.fork()
        if pid == 0:
            self._become_worker(own_pid, allocator, files)
        for file in files:
            os.close(file)
        if pid is None:
            return {"refused": refusal}
        self._workers.add(pid)
        return {"pid": pid}

    def _become_worker(self, parent_pid: int, allocator: dict[str, str], files: Sequence[int]) -> None:
        """Never returns."""
        exit_code = 1
        try:
            _die_with(parent_pid)
            os.setsid()
            self._connection.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            _set_allocator(allocator)
            read_pages(self._pages)
            worker.main(self._arguments)
            exit_code = 0
        finally:
            os._exit(exit_code)

    def _end(self, pid: int) -> dict[str, Any]:
        if pid not in self._workers:
            return {"exit_code": None}
        self._workers.remove(pid)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return {"exit_code": os.waitstatus_to_exitcode(status)}


def why_not_fork(own_threads: Path = _THREADS) -> str:
    """Return what a forked process would not survive; empty when there is nothing.

    Args:
        own_threads: Folder with one entry per thread of this process.
    """
    threads = len(list(own_threads.iterdir()))
    if threads > 1:
        return f"importing the framework started {threads - 1} threads"
    has_context = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return "importing the framework initialised a GPU" if has_context else ""


def _die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _set_allocator(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        ctypes.CDLL(None).mallopt(_MALLOPT[name], int(value))


def main() -> None:
    """Serve the connection that was handed over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connection", type=int, required=True, help="number of the open socket")
    parser.add_argument("--core", type=int, required=True, help="the only core that it and its workers may use")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    with framework_baseline.importing_ahead():
        importlib.import_module(_IMPORTED_BY_OPTIMIZERS)
    with socket.socket(fileno=options.connection) as connection:
        FrameworkServer(connection, ("--core", str(options.core))).serve()


if __name__ == "__main__":
    main()
