"""What holds for every test."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from typing import Final

import pytest
from execnet.xspec import XSpec
from hypothesis import settings
from xdist.remote import Producer

from tests.support.cases import case_count
from tests.support.forked_workers import fork_workers
from tests.support.loaded_programs import load_once
from tests.support.quick_exports import remember_operators
from tests.support.quick_trees import ask_once_per_boosting, remember_parameter_names
from tests.support.shared_folders import share_folders
from tests.support.worker_lanes import LaneScheduling, refuse_alone

# A test that computes longer on a loaded machine is no wrong test. Where a test says no number itself, `make test-all`
# draws four times as many examples.
settings.register_profile("cotenant", deadline=None, max_examples=50)
settings.register_profile("test-all", deadline=None, max_examples=200)
settings.load_profile("cotenant")
# A shell starts what it runs in the background with Ctrl-C ignored, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# OpenMP's threads spin while they wait for each other, so workers that share cores burn several times their work.
# Read when torch, scikit-learn or xgboost is first imported, which no plugin does; programs of tests inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# OpenBLAS's spin too and know no such policy: on products as small as ours two take thrice the time of one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# gRPC's handlers run in every fork of a process with its threads, and now and then abort there (signal 6 or 11), before
# the program begins: so ends what a test starts as another user, for which Python forks instead of calling vfork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Agents that a test starts would measure their devices for up to a minute; those about calibration ask for it.
os.environ.setdefault("COTENANT_AGENT_CALIBRATE", "false")
load_once()


_OBJECTS_BEFORE_A_SEARCH: Final = 10_000
"""Records are in no cycles: of a simulated run a twentieth was spent on looking for them after every 700 objects."""
_LEVEL = logging.getLogger().level
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LISTED_AFTER_S: Final = 60.0
"""A run that takes so much time says which files took it."""
_FILES_LISTED: Final = 60
_FOLDERS_LISTED: Final = 12
_TAKEN_S: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects without a search for garbage: what thousands of modules define stays, and no later search sees it."""
    gc.disable()
    try:
        return (yield)
    finally:
        remember_parameter_names()
        ask_once_per_boosting()
        remember_operators()
        gc.freeze()
        gc.set_threshold(_OBJECTS_BEFORE_A_SEARCH, 20, 20)
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Lets all workers of a run share what is dear to make."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        share_folders()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    """Lets all workers be forked from a process that has imported the tests once, where there are several."""
    if len(specs) > 1:
        fork_workers([str(argument) for argument in config.invocation_params.args])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LaneScheduling:
    """Distributes files as `worker_lanes` says."""
    return LaneScheduling(config, log)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Refuses a test of `make test` that needs the machine to itself."""
    refuse_alone(items)


def pytest_report_collectionfinish(items: Sequence[pytest.Item]) -> str:
    """Says how many cases the tests run (see `tests.support.cases`)."""
    return f"{sum(case_count(getattr(item, 'function', None), _chosen(item)) for item in items)} cases"


def _chosen(item: pytest.Item) -> dict[str, object]:
    call = getattr(item, "callspec", None)
    return {} if call is None else dict(call.params)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds up what the files take; with workers, this is asked of the process that started them."""
    file = report.nodeid.partition("::")[0]
    _TAKEN_S[file] = _TAKEN_S.get(file, 0.0) + report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the folders and files that took longest, waits and fixtures included: who saves time begins there."""
    if sum(_TAKEN_S.values()) < _LISTED_AFTER_S:
        return
    terminalreporter.section(f"longest of {sum(_TAKEN_S.values()):.0f} s in {len(_TAKEN_S)} files")
    folders: defaultdict[str, float] = defaultdict(float)
    for file, taken_s in _TAKEN_S.items():
        folders[file.rpartition("/")[0]] += taken_s
    for taken, most in ((folders, _FOLDERS_LISTED), (_TAKEN_S, _FILES_LISTED)):
        for name in sorted(taken, key=lambda one: -taken[one])[:most]:
            terminalreporter.write_line(f"{taken[name]:7.1f} s {name}")


@pytest.fixture(scope="session", autouse=True)
def bystanders() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The newest is a process that tests have nothing to do with; it ends with this one, which it reads from."""
    started = [_start_bystander()]
    yield started
    for process in started:
        process.communicate()


@pytest.fixture(autouse=True)
def bystander_lives(bystanders: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """A test that signals all that descends from this process would end programs of others, named by no failure."""
    yield
    if bystanders[-1].poll() is not None:
        bystanders.append(_start_bystander())
        pytest.fail("this test has ended a process that it did not start")


def _start_bystander() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A program that a test runs in this process handles its end in its own way; that of the tests' is another."""
    handlers = {number: signal.getsignal(number) for number in _ENDS}
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A program that a test runs in this process starts its own logging; the next test sees none of it."""
    root = logging.getLogger()
    handlers, hooks = list(root.handlers), (sys.excepthook, threading.excepthook)
    # A fixture of a whole module may have run one before.
    root.setLevel(_LEVEL)
    logging.disable(logging.NOTSET)
    yield
    root.handlers[:] = handlers
    root.setLevel(_LEVEL)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks
