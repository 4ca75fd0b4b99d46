"""What the agent relies on of processes: the real ones and the fake table behave alike."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.processes import LinuxProcesses, Processes, ProcessIdentity
from tests.support.agent import wait_until, write_script
from tests.support.fake_devices import FakeProcesses

_CATCHING = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\nwhile True:\n    time.sleep(1)\n"


@pytest.fixture(params=["linux", "memory"])
def processes(request: pytest.FixtureRequest) -> Processes:
    return LinuxProcesses() if request.param == "linux" else FakeProcesses()


@pytest.fixture
def sleeper(processes: Processes, tmp_path: Path) -> Iterator[ProcessIdentity]:
    script = write_script(tmp_path, "import time\ntime.sleep(600)\n", "sleep.py")
    identity = processes.spawn([sys.executable, script], tmp_path / "log")
    yield identity
    processes.send_signal(identity, signal.SIGKILL)
    wait_until(lambda: processes.identify(identity.pid) is None, "the sleeper is gone")
    processes.reap()


def test_a_living_process_is_itself(processes: Processes, sleeper: ProcessIdentity) -> None:
    assert processes.identify(sleeper.pid) == sleeper
    assert processes.is_alive(sleeper)
    assert processes.tree(sleeper.pid)[0] == sleeper.pid
    # In the instant of its exec a process has no memory yet.
    wait_until(lambda: processes.usage([sleeper.pid]).resident_bytes > 0, "the sleeper has memory")


def test_the_same_pid_with_another_start_time_is_another_process(
    processes: Processes, sleeper: ProcessIdentity
) -> None:
    other = ProcessIdentity(boot_id=sleeper.boot_id, pid=sleeper.pid, start_ticks=sleeper.start_ticks + 1)
    assert not processes.is_alive(other)
    assert not processes.send_signal(other, signal.SIGKILL)
    assert processes.is_alive(sleeper)


def test_the_same_pid_in_another_boot_is_another_process(processes: Processes, sleeper: ProcessIdentity) -> None:
    assert not processes.is_alive(
        ProcessIdentity(boot_id="yesterday", pid=sleeper.pid, start_ticks=sleeper.start_ticks)
    )


def test_a_killed_process_is_gone_although_its_parent_has_not_collected_it(
    processes: Processes, sleeper: ProcessIdentity
) -> None:
    assert processes.send_signal(sleeper, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(sleeper), "a zombie does not count as alive")
    assert processes.tree(sleeper.pid) == ()
    assert not processes.send_signal(sleeper, signal.SIGTERM)


def test_a_process_that_stands_still_is_alive_with_its_memory_and_can_be_killed(
    processes: Processes, sleeper: ProcessIdentity
) -> None:
    # One that is stopped before its first page is there would never have any.
    wait_until(lambda: processes.usage([sleeper.pid]).resident_bytes > 0, "it has memory")
    assert processes.send_signal(sleeper, signal.SIGSTOP)
    assert processes.is_alive(sleeper)
    assert processes.tree(sleeper.pid) == (sleeper.pid,)
    assert processes.usage([sleeper.pid]).resident_bytes > 0, "it keeps its memory"
    assert processes.send_signal(sleeper, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(sleeper), "a stopped process can be killed")


def test_whether_a_process_catches_a_signal_is_seen_from_outside(
    processes: Processes, sleeper: ProcessIdentity, tmp_path: Path
) -> None:
    script = write_script(tmp_path, _CATCHING, "catch.py")
    catching = processes.spawn([sys.executable, script], tmp_path / "log")
    wait_until(lambda: processes.catches(catching.pid, signal.SIGTERM), "the handler is installed")
    assert not processes.catches(sleeper.pid, signal.SIGTERM)
    processes.send_signal(catching, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(catching), "it is gone")
    processes.reap()
    assert not processes.catches(catching.pid, signal.SIGTERM)


def test_no_process_has_an_unused_pid(processes: Processes) -> None:
    assert processes.identify(4_194_305) is None
    assert processes.usage([4_194_305]).resident_bytes == 0


def test_what_forks_share_with_their_parent_counts_once(tmp_path: Path) -> None:
    processes = LinuxProcesses()
    lines = [
        "import os, time",
        "held = bytearray(b'x' * (64 << 20))",
        "[os.fork() for _ in range(1)]",
        "time.sleep(600)",
    ]
    leader = processes.spawn([sys.executable, write_script(tmp_path, "\n".join(lines), "fork.py")], tmp_path / "log")
    try:
        wait_until(lambda: len(processes.tree(leader.pid)) == 2, "it has forked")
        tree = processes.tree(leader.pid)
        assert all(processes.usage([pid]).resident_bytes > 64 << 20 for pid in tree)
        assert processes.usage(tree).resident_bytes < 96 << 20
    finally:
        for pid in reversed(processes.tree(leader.pid)):
            if (found := processes.identify(pid)) is not None:
                processes.send_signal(found, signal.SIGKILL)
        wait_until(lambda: processes.identify(leader.pid) is None, "it is gone")
        processes.reap()


def test_what_started_processes_hold_alike_counts_once(tmp_path: Path) -> None:
    processes = LinuxProcesses()
    lines = [
        "import os, subprocess, sys, time",
        "held = bytearray(b'x' * (64 << 20))",
        "ranks = sys.argv[1:] or [subprocess.Popen([sys.executable, __file__, rank],"
        " env={**os.environ, 'LOCAL_RANK': rank}) for rank in '01']",
        "more = bytearray(b'x' * (16 << 20)) if sys.argv[1:] == ['1'] else b''",
        "open(f'{__file__}.{os.getpid()}', 'w').close()",
        "time.sleep(600)",
    ]
    script = write_script(tmp_path, "\n".join(lines), "start.py")
    leader = processes.spawn([sys.executable, script], tmp_path / "log")
    try:
        wait_until(lambda: len(list(tmp_path.glob("start.py.*"))) == 3, "all hold what they hold")
        tree = processes.tree(leader.pid)
        alike_bytes = min(processes.usage([pid]).resident_bytes for pid in tree)
        beyond_bytes = processes.usage(tree, common_bytes=alike_bytes).resident_bytes - alike_bytes
        assert 15 << 20 < beyond_bytes < 24 << 20
        assert processes.usage(tree).resident_bytes > 3 * 64 << 20
        assert processes.usage(tree, common_bytes=1 << 40) == processes.usage(tree, common_bytes=1 << 50)
        assert processes.usage(tree, common_bytes=1 << 40).resident_bytes > 64 << 20
        assert processes.local_ranks(tree) == ((tree[1],), (tree[2],))
        assert processes.local_ranks([leader.pid]) == ()
    finally:
        for pid in reversed(processes.tree(leader.pid)):
            if (found := processes.identify(pid)) is not None:
                processes.send_signal(found, signal.SIGKILL)
        wait_until(lambda: processes.identify(leader.pid) is None, "it is gone")
