"""Programs that tests start over and over, forked from a process that has loaded them.

Loading takes four fifths of the CPU time of a start, and tests start schedulers and agents two hundred times, and the
command line a hundred times. What runs
is the program's own main module with its arguments, environment and folder, in a process of its own, which is stopped
and killed as any other; only its parent and its command line are those of the process that it was forked from. What a
test starts differently (`up`, the demo, other environments) is loaded anew, and so is all that benchmarks start.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol

LOADED: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "services": {
        "scheduler_service": ["scheduler_service.commands.main"],
        "cotenant_agent": ["cotenant_agent.commands"],
        "cotenant": ["cotenant.cli.submit_command"],
        "tests.support.undisturbed_agent": ["cotenant_agent.devices.measurement_windows"],
    },
    "predictors": {"predictor_service": ["predictor_service.commands.serve"]},
    # The first optimizer of a process imports what compiles networks, for as long as torch itself takes.
    "trainings": {"examples.training.train": ["torch._dynamo", "examples.training.tasks"]},
    # Those of pytest-xdist, whose process imports the tests before.
    "workers": {"tests.support.worker_program": []},
}
"""By the process that has loaded them: the programs, and what their main modules import."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_REQUEST_BYTES_MAX: Final = 1 << 17
_NUMBER: Final = struct.Struct("i")
_END_S: Final = 10.0
_IMPORTS_DEPEND_ON: Final = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")


class Process(Protocol):
    """What tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its id."""

    def poll(self) -> int | None:
        """Returns how it ended, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end."""

    def send_signal(self, number: int, /) -> None:
        """Sends a signal, unless it has ended."""

    def terminate(self) -> None:
        """Sends SIGTERM."""

    def kill(self) -> None:
        """Sends SIGKILL."""


@dataclass
class ForkedProcess:
    """A program that was forked; its end is told over a socket, since another process is its parent."""

    pid: int
    arguments: Sequence[str]
    _ended: socket.socket
    _status: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        return self._status if self._status is not None else self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._status if self._status is not None else self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(list(self.arguments), timeout or 0.0)
        return status

    def _look(self, timeout_s: float | None) -> int | None:
        self._ended.settimeout(timeout_s)
        try:
            told = self._ended.recv(_NUMBER.size)
        except (BlockingIOError, TimeoutError):
            return None
        self._ended.close()
        self._status = _NUMBER.unpack(told)[0] if told else -signal.SIGKILL
        return self._status

    def send_signal(self, number: int, /) -> None:
        # It is collected by its parent: it may have ended since.
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Loader:
    """The process that has loaded some programs, seen from the one that runs tests.

    Args:
        name: Which, see `LOADED`.
        collected: Arguments of a pytest whose tests it imports before; none = it imports no tests.
    """

    def __init__(self, name: str, collected: Sequence[str] = ()) -> None:
        self._programs = LOADED[name]
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.loaded_programs", name, str(theirs.fileno()), *collected]
            self.process = subprocess.Popen(command, cwd=_ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._lock = threading.Lock()
        self._environment = {name: os.environ.get(name) for name in _IMPORTS_DEPEND_ON}
        self._started: list[ForkedProcess] = []
        atexit.register(self.end)

    def can_start(self, program: str, environment: Mapping[str, str]) -> bool:
        """Tells whether a program would import here what it imports in that environment."""
        return program in self._programs and all(
            environment.get(name) == value for name, value in self._environment.items()
        )

    def start(
        self, program: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], files: list[int]
    ) -> ForkedProcess:
        """Starts a program; the files are its standard input, output and errors."""
        ours, theirs = socket.socketpair()
        request = json.dumps([program, list(arguments), str(folder), dict(environment)]).encode()
        told = b""
        with theirs, self._lock, contextlib.suppress(ConnectionError):
            socket.send_fds(self._channel, [request], [theirs.fileno(), *files])
            told = self._channel.recv(_NUMBER.size)
        if not told:
            ours.close()
            raise AssertionError(f"the process that loads programs has ended: {self.process.wait(_END_S)}")
        pid = _NUMBER.unpack(told)[0]
        self._started = [one for one in self._started if one.poll() is None]
        self._started.append(ForkedProcess(pid, arguments, ours))
        return self._started[-1]

    def living(self, *texts: str) -> list[int]:
        """Returns the programs that run with all of the texts in their arguments."""
        wanted = [one for one in self._started if all(text in "\0".join(one.arguments) for text in texts)]
        return [one.pid for one in wanted if one.poll() is None]

    def end(self) -> None:
        """Ends it with all that it has started."""
        for one in self._started:
            one.kill()
            one.wait()
        self._channel.close()
        self.process.wait()


_LOADERS: dict[str, Loader] = {}
"""Of this process; every worker has its own."""


def _loader_of(program: str) -> Loader | None:
    for name, programs in LOADED.items():
        if program in programs:
            _LOADERS[name] = _LOADERS.get(name) or Loader(name)
            return _LOADERS[name]
    return None


_IS_ON = False


def load_once() -> None:
    """Let programs be forked from now on."""
    global _IS_ON
    _IS_ON = True


def load_program(program: str) -> None:
    """Start the process that forks a program, if it was not: later it would be one that a test has left behind."""
    if _IS_ON:
        _loader_of(program)


def start_program(
    program: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    output: IO[bytes] | None,
    errors: IO[bytes],
) -> Process:
    """Starts a program as `python -m PROGRAM ARGUMENTS` does, without input.

    Args:
        program: A package.
        arguments: Its own.
        folder: In which it runs.
        environment: All of its environment.
        output: Where it writes; None = where this process does.
        errors: Where it writes errors.
    """
    found = _loader_of(program) if _IS_ON else None
    if found is not None and found.can_start(program, environment):
        with Path(os.devnull).open("rb") as nothing:
            files = [nothing.fileno(), output.fileno() if output is not None else 1, errors.fileno()]
            return found.start(program, arguments, folder, environment, files)
    command = [sys.executable, "-m", program, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
    )


def run_program(
    program: str, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Starts a program and waits for its end, as `subprocess.run` does.

    Args:
        program: A package.
        arguments: Its own.
        folder: In which it runs.
        environment: All of its environment.
        timeout_s: It is killed when it takes longer.

    Raises:
        subprocess.TimeoutExpired: It took longer.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_program(
            program, arguments, folder=folder, environment=environment, output=output, errors=errors
        )
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
            process.wait()
        for file in (output, errors):
            file.seek(0)
        printed, told = (file.read().decode(errors="replace") for file in (output, errors))
    return subprocess.CompletedProcess([program, *arguments], status, printed, told)


def living_programs(*texts: str) -> list[int]:
    """Returns the forked programs that run with all of the texts in their arguments."""
    return [pid for one in _LOADERS.values() for pid in one.living(*texts)]


def _serve(name: str, channel: int) -> None:
    """Fork what is asked for, and tell of each end, until the asking process is gone; returns in a child as well."""
    for module in itertools.chain.from_iterable(LOADED[name].values()):
        importlib.import_module(module)
    # A search for garbage, at the latest at a program's end, would write into all that it shares with this process.
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=channel)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    ends: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([channel, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _tell_ends(ends)
        if channel not in ready:
            continue
        request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 4)
        if not request:
            return
        end = socket.socket(fileno=files[0])
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for one in (requests, end, *ends.values()):
                one.close()
            os.close(reading)
            os.close(writing)
            _become(files[1:], *json.loads(request))
        for descriptor in files[1:]:
            os.close(descriptor)
        ends[pid] = end
        requests.send(_NUMBER.pack(pid))


def _tell_ends(ends: dict[int, socket.socket]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        # A test may have let go of its program.
        with ends.pop(pid) as end, contextlib.suppress(OSError):
            end.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(files: Sequence[int], program: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the program; its main module ends this process as it ends its own."""
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    if sys.argv[3:]:
        # Programs of the product are forked from a process that knows nothing of pytest.
        importlib.import_module("tests.support.forked_workers").import_tests(sys.argv[3:])
    _serve(sys.argv[1], int(sys.argv[2]))
