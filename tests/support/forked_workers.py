"""Workers that are forks of the process that has collected: `pytest --workers 4`.

Importing and collecting takes ten seconds of a core, which workers that begin from nothing spend each. A fork has it
all, and of a test it only has to tell what came of it. Every worker runs whole files, one after the other; it asks for
the next file before the last test of the present one, so that what both share is set up once.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from tests.support.shared_folders import share_folders
from tests.support.worker_lanes import next_file

Files = Mapping[str, Sequence[pytest.Item]]
_LOOK_EVERY_S: Final = 2.0
"""How often a worker that has died without a word is looked for."""
_ENDS_WITHIN_S: Final = 30.0
LOADED: Final = {"torch": ("torch._dynamo", "torch.export", "torch.onnx._internal.exporter._core")}
"""By what tests have imported: what it imports itself when it first trains or exports, for seconds in every worker."""


@dataclass
class Worker:
    """One worker, seen from the process that has collected.

    Attributes:
        number: Every second one takes files first that wait.
        pid: Its process.
        connection: Over which it asks and tells.
        files: What it runs, and what it will run then; empty = nothing is left.
        last: The last test of which it told.
    """

    number: int
    pid: int
    connection: Connection
    files: list[str] = field(default_factory=list)
    last: str = ""


@dataclass
class WorkerPool:
    """All workers of a run.

    Args:
        session: Has collected.
        files: Their tests, in the order in which they were collected.
    """

    session: pytest.Session
    files: Files
    _left: list[str] = field(init=False)
    _workers: list[Worker] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._left = list(self.files)

    def run(self, count: int) -> None:
        """Runs all files in so many workers.

        Args:
            count: Fewer where there are fewer files.

        Raises:
            pytest.Session.Failed: More tests failed than may.
        """
        load_ahead()
        share_folders(self.session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
        try:
            for number in range(min(count, len(self.files))):
                self._start(number)
            while self._workers and not self.session.shouldfail:
                ready = multiprocessing.connection.wait([one.connection for one in self._workers], _LOOK_EVERY_S)
                for worker in [one for one in self._workers if one.connection in ready]:
                    self._hear(worker)
                for worker in [] if ready else self._workers[:]:
                    self._look_after(worker)
        finally:
            self._end()
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)

    def _start(self, number: int) -> None:
        ours, theirs = multiprocessing.connection.Pipe()
        base = self.session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *(one.connection for one in self._workers)):
                connection.close()
            _work(self.session, self.files, theirs, base / f"worker-{number}")
        theirs.close()
        self._workers.append(Worker(number, pid, ours))

    def _hear(self, worker: Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if message is None:
            self._give(worker)
            return
        config = self.session.config
        for data in message:
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            worker.last = report.nodeid
            config.hook.pytest_runtest_logreport(report=report)

    def _give(self, worker: Worker) -> None:
        chosen = next_file(self._left, takes_waiting_first=worker.number % 2 == 0) if self._left else ""
        if chosen:
            self._left.remove(chosen)
        worker.files = [*worker.files[-1:], chosen]
        with contextlib.suppress(OSError):
            worker.connection.send(chosen)

    def _look_after(self, worker: Worker) -> None:
        """A program that a test has left may hold the connection of a worker that has died."""
        if os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) and not worker.connection.poll():
            self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        file, *following = worker.files or [""]
        if following and worker.last == self.files[file][-1].nodeid:
            file, following = following[0], []
        if status == 0 and not file:
            return
        if not worker.files:
            raise RuntimeError(f"worker {worker.number} ended with {status} before it ran a test")
        self._left += filter(None, following)
        story = f"worker {worker.number} ended with {status} in {file}, after {worker.last or 'none of its tests'}"
        report = pytest.TestReport(file, (file, None, file), {}, "failed", story, "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        if self._left:
            self._start(worker.number)

    def _end(self) -> None:
        """Whoever still works is asked to end, and killed when it does not."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGINT)
        deadline_s = time.monotonic() + _ENDS_WITHIN_S
        for worker in self._workers:
            while not os.waitpid(worker.pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline_s:
                    os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.05)


def load_ahead() -> None:
    """Import once what every worker would."""
    for name in [name for needing, names in LOADED.items() if needing in sys.modules for name in names]:
        # Another version may have it elsewhere.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def files_of(items: Sequence[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Returns tests by their files."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(item.nodeid.partition("::")[0], []).append(item)
    return found


class Teller:
    """Tells of each test when it is over; a plug-in of the worker."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps a report until the test has been taken down."""
        hook = self._config.hook
        self._reports.append(hook.pytest_report_to_serializable(config=self._config, report=report))
        if report.when == "teardown":
            self._connection.send(self._reports)
            self._reports = []


class SilentReporter:
    """Stands where others look for the terminal: a timeout writes its stacks there."""

    def __init__(self, writer: Any) -> None:
        self._tw = writer


def _work(session: pytest.Session, files: Files, connection: Connection, folder: Path) -> NoReturn:
    """Be a worker: run files until there are no more, and end without what the first process does at its end."""
    status = 1
    try:
        _begin(session.config, connection, folder)
        _run_files(session, files, connection)
        status = 0
    finally:
        with contextlib.suppress(Exception):
            session._setupstate.teardown_exact(None)
        connection.close()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _begin(config: pytest.Config, connection: Connection, folder: Path) -> None:
    """Have files, folders and reports of one's own."""
    capture, manager = config.pluginmanager.getplugin("capturemanager"), config.pluginmanager
    if capture is not None:
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    reporter = manager.unregister(name="terminalreporter")
    if reporter is not None:
        manager.register(SilentReporter(reporter._tw), "terminalreporter")
    folder.mkdir(mode=0o700, exist_ok=True)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    manager.register(Teller(config, connection))


def _run_files(session: pytest.Session, files: Files, connection: Connection) -> None:
    file = _ask(connection)
    while file:
        items = files[file]
        for item, following in itertools.pairwise(items):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        file = _ask(connection)
        session.config.hook.pytest_runtest_protocol(item=items[-1], nextitem=files[file][0] if file else None)


def _ask(connection: Connection) -> str:
    """Returns the next file; empty = none is left."""
    connection.send(None)
    return str(connection.recv())
