"""Workers of pytest-xdist that are forked from one process which has imported all tests of the run.

Importing tests, and the libraries that these use, takes three quarters of the CPU time of a worker's start, and every
worker would do it again. What it collects, it still collects itself: its modules are there already.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests.support.loaded_programs import Loader, Process
from tests.support.quick_exports import load_exporter

PROGRAM: Final = "tests.support.worker_program"
_ERRORS: Final = 2
_ONLY_COLLECT: Final = (
    "--collect-only",
    "--quiet",
    "--numprocesses=0",
    "--dist=no",
    "-pno:cacheprovider",
    "--capture=no",
)


class _WorkerPipes(Popen2IO):
    """What execnet asks of a process that it has started."""

    def __init__(self, loader: Loader, execmodel: Any) -> None:
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        files = [theirs_in, theirs_out, _ERRORS]
        self._process: Process = loader.start(PROGRAM, (), Path.cwd(), os.environ, files)
        os.close(theirs_in)
        os.close(theirs_out)
        super().__init__(os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb"), execmodel)

    def wait(self) -> int | None:
        """Waits for the end of the worker."""
        return self._process.wait()

    def kill(self) -> None:
        """Ends it."""
        self._process.kill()


def fork_workers(arguments: Sequence[str]) -> None:
    """Let execnet fork workers from now on where it would start Python for them.

    Args:
        arguments: Those of pytest: what is collected before the first worker is forked.
    """
    loader = Loader("workers", (*arguments, *_ONLY_COLLECT))
    start = gateway_io.create_io

    def fork(spec: Any, execmodel: Any) -> Any:
        return _WorkerPipes(loader, execmodel) if spec.popen and not spec.python else start(spec, execmodel)

    # Nothing that execnet promises: a version that calls another function only starts its workers slowly.
    vars(gateway_io)["create_io"] = fork


def import_tests(arguments: Sequence[str]) -> None:
    """Import the test modules that pytest would collect; one that cannot be imported is left to the workers.

    Args:
        arguments: Those of pytest.
    """
    with _nothing_printed():
        pytest.main(list(arguments))
        if "torch" in sys.modules:
            # Whatever makes an optimizer imports what compiles networks, for as long as torch itself takes.
            importlib.import_module("torch._dynamo")
            load_exporter()


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """Nothing is printed meanwhile by whatever keeps `sys.stderr`, as handlers of logs do: workers use it later."""
    printed = {number: os.dup(number) for number in (1, _ERRORS)}
    with Path(os.devnull).open("w") as nothing:
        for number in printed:
            os.dup2(nothing.fileno(), number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, kept in printed.items():
            os.dup2(kept, number)
            os.close(kept)
