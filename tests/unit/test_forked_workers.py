"""A worker of pytest-xdist that is forked has imported what it will collect, and ends as one that execnet starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import execnet
import pytest
from execnet import gateway_io

from tests.support.forked_workers import fork_workers

COLLECTED = "tests/unit/test_worker_lanes.py"
MODULE = COLLECTED.removesuffix(".py").replace("/", ".")
FACTS = f"""
import os, sys
channel.send(({MODULE!r} in sys.modules, os.getpid(), os.getppid(), os.getcwd()))
"""


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[execnet.Group]:
    """What starts workers; other tests start theirs as before."""
    monkeypatch.setattr(gateway_io, "create_io", gateway_io.create_io)
    fork_workers([COLLECTED])
    group = execnet.Group()
    yield group
    group.terminate(timeout=30)


def test_workers_are_forked_from_one_process_that_has_imported_their_tests(group: execnet.Group) -> None:
    gateways = [group.makegateway("popen") for _ in range(2)]
    (one_has_it, one, parent, folder), (other_has_it, other, other_parent, _) = (
        gateway.remote_exec(FACTS).receive() for gateway in gateways
    )
    assert (one_has_it, other_has_it) == (True, True)
    assert len({one, other, parent, os.getpid()}) == 4
    assert parent == other_parent
    assert Path(folder) == Path.cwd()
    group.terminate(timeout=30)
    assert not [pid for pid in (one, other) if Path(f"/proc/{pid}").exists()]


def test_another_python_is_started_as_before(group: execnet.Group) -> None:
    gateway = group.makegateway(f"popen//python={sys.executable}")
    assert gateway.remote_exec(FACTS).receive()[2] == os.getpid()
