"""When the shim ends a job whose lease is over: at an instant that others can count on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.keeper import deadline_watch, shim
from cotenant_agent.keeper.deadline_watch import HELD_MS_MAX, Deadline, tell_deadline
from cotenant_agent.keeper.shim_records import Records
from cotenant_agent.leases import Lease

DEADLINE_MS, GRACE_MS = 50_000, 20_000


class SilentProcesses:
    """A job that hears of nothing."""

    def __init__(self, *_: object) -> None:
        self.signals = 0

    def ask_to_stop(self) -> bool:
        self.signals += 1
        return True

    def hold(self, *_: object) -> bool:
        return True

    def let_go(self) -> None:
        pass


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> shim.AttemptSupervisor:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shim, "JobProcesses", SilentProcesses)
    # It would collect what other tests of this process have started.
    monkeypatch.setattr(shim.AttemptSupervisor, "_finished", lambda _: False)
    (tmp_path / "lease.json").write_text(json.dumps({"deadline_boot_ms": DEADLINE_MS, "grace_ms": GRACE_MS}))
    return shim.AttemptSupervisor({"log_limit_bytes": 4096, "environment": {}}, Records())


def test_the_grace_of_a_lease_counts_from_its_deadline_also_after_a_standstill(
    supervisor: shim.AttemptSupervisor,
) -> None:
    supervisor._look_for_stop(DEADLINE_MS + 60_000)
    assert (supervisor._cause, supervisor._kill_at_ms) == ("fenced", DEADLINE_MS + GRACE_MS)


@pytest.mark.parametrize("content", [None, '{"deadline_boot'])
def test_a_lease_that_cannot_be_read_any_more_holds_as_it_was_last_read(
    supervisor: shim.AttemptSupervisor, tmp_path: Path, content: str | None
) -> None:
    supervisor._look_for_stop(DEADLINE_MS - 1)
    assert supervisor._kill_at_ms is None
    (tmp_path / "lease.json").unlink()
    if content is not None:
        (tmp_path / "lease.json").write_text(content)
    supervisor._look_for_stop(DEADLINE_MS)
    assert supervisor._cause == "fenced"


def test_a_lease_that_is_older_than_one_that_was_read_changes_nothing(
    supervisor: shim.AttemptSupervisor, tmp_path: Path
) -> None:
    supervisor._look_for_stop(1)
    (tmp_path / "lease.json").write_text(json.dumps({"deadline_boot_ms": DEADLINE_MS - 10_000, "grace_ms": 1}))
    assert supervisor._lease.left_ms(DEADLINE_MS - 1) == 1
    assert supervisor._lease.end_left_ms(DEADLINE_MS) == GRACE_MS


@pytest.mark.parametrize(("now_ms", "words"), [(DEADLINE_MS - 1, b"g"), (DEADLINE_MS, b"")])
def test_a_job_whose_lease_is_over_before_it_begins_does_not_begin(
    supervisor: shim.AttemptSupervisor, monkeypatch: pytest.MonkeyPatch, now_ms: int, words: bytes
) -> None:
    monkeypatch.setattr(shim, "boot_ms", lambda: now_ms)
    waiting, go = os.pipe()
    supervisor._let_begin(go)
    assert os.read(waiting, 1) == words
    os.close(waiting)


def test_a_stop_with_a_long_grace_does_not_outlive_the_lease_and_its_grace(
    supervisor: shim.AttemptSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stop.json").write_text(json.dumps({"cause": "preempted", "grace_ms": 600_000}))
    killed: list[int] = []
    monkeypatch.setattr(supervisor, "_is_time_to_look", lambda _: False)
    for now_ms in (DEADLINE_MS, DEADLINE_MS + GRACE_MS - 1, DEADLINE_MS + GRACE_MS):
        monkeypatch.setattr(shim, "boot_ms", lambda now_ms=now_ms: now_ms)
        monkeypatch.setattr(supervisor, "_kill_everything", lambda now_ms=now_ms: killed.append(now_ms))
        supervisor._supervise()
    assert killed == [DEADLINE_MS + GRACE_MS]


def set_clocks(monkeypatch: pytest.MonkeyPatch, boot_ms: int, *, slept_ms: int) -> None:
    """Let the clock that stands still in sleep lie so far behind that of the boot."""
    for module in (shim, deadline_watch):
        monkeypatch.setattr(module, "boot_ms", lambda: boot_ms)
        monkeypatch.setattr(module, "awake_ms", lambda: boot_ms - slept_ms)


@pytest.fixture
def shared_sleep(supervisor: shim.AttemptSupervisor, tmp_path: Path) -> shim.AttemptSupervisor:
    """The scheduler counts on the clock of this machine."""
    lease = {"deadline_boot_ms": DEADLINE_MS, "deadline_awake_ms": DEADLINE_MS, "grace_ms": GRACE_MS}
    (tmp_path / "lease.json").write_text(json.dumps(lease))
    return supervisor


@pytest.mark.parametrize(("awake_ms", "cause"), [(DEADLINE_MS - 1, ""), (DEADLINE_MS, "fenced")])
def test_a_lease_stands_still_while_the_machine_of_job_and_scheduler_sleeps(
    shared_sleep: shim.AttemptSupervisor, monkeypatch: pytest.MonkeyPatch, awake_ms: int, cause: str
) -> None:
    slept_ms = 300_000
    set_clocks(monkeypatch, awake_ms + slept_ms, slept_ms=slept_ms)
    shared_sleep._look_for_stop(awake_ms + slept_ms)
    assert shared_sleep._cause == cause
    assert shared_sleep._kill_at_ms == (awake_ms + slept_ms + GRACE_MS if cause else None)


def test_a_stop_does_not_outlive_a_lease_that_slept_and_its_grace(
    shared_sleep: shim.AttemptSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_ms = DEADLINE_MS + GRACE_MS + 300_000
    found = []
    for now_ms in (over_ms - 1, over_ms):
        set_clocks(monkeypatch, now_ms, slept_ms=300_000)
        found.append(shared_sleep._lease.end_left_ms(now_ms) <= 0)
    assert found == [False, True]


def test_ranks_are_not_silent_while_their_machine_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Real ones are all that this process has started, for other tests too.
    monkeypatch.setattr(shim, "JobProcesses", SilentProcesses)
    (tmp_path / "ended_parts.json").write_text(json.dumps({"parts": 1}))
    spec = {"log_limit_bytes": 4096, "environment": {}, "is_part": True, "ranks_silent_ms": 60_000}
    supervisor = shim.AttemptSupervisor(spec, Records())
    causes = []
    for boot_ms, slept_ms in ((1_000, 0), (301_000, 290_000), (351_001, 290_000)):
        set_clocks(monkeypatch, boot_ms, slept_ms=slept_ms)
        supervisor._look_for_silent_ranks(boot_ms)
        causes.append(supervisor._cause)
    assert causes == ["", "", "ranks_silent"]


def test_a_lease_does_not_stand_still_with_processes_of_a_machine_that_did_not_sleep(
    shared_sleep: shim.AttemptSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler may have stood still, or have started the job elsewhere: nothing here tells."""
    set_clocks(monkeypatch, DEADLINE_MS + 60_000, slept_ms=0)
    shared_sleep._look_for_stop(DEADLINE_MS + 60_000)
    assert (shared_sleep._cause, shared_sleep._kill_at_ms) == ("fenced", DEADLINE_MS + GRACE_MS)


@pytest.mark.parametrize(("awake", "words"), [({"deadline_awake_ms": 40_000}, b"70000 60000\n"), ({}, b"70000 0\n")])
def test_what_ends_the_namespace_leaves_the_grace_by_either_clock(
    supervisor: shim.AttemptSupervisor, tmp_path: Path, awake: dict[str, int], words: bytes
) -> None:
    (tmp_path / "lease.json").write_text(json.dumps({"deadline_boot_ms": DEADLINE_MS, "grace_ms": GRACE_MS, **awake}))
    told, supervisor._lease.lifeline = os.pipe()
    supervisor._lease.left_ms(0)
    assert os.read(told, 100) == words
    os.close(told)
    os.close(supervisor._lease.lifeline)


@pytest.mark.parametrize(("stored", "prolongs"), [(None, True), (9, True), (10, False), (11, False)])
def test_a_lease_is_never_shortened(stored: int | None, prolongs: bool) -> None:
    record = None if stored is None else Lease(deadline_boot_ms=stored, grace_ms=1).record("i")
    assert Lease(deadline_boot_ms=10, grace_ms=1).prolongs(record) is prolongs


class WatchBench:
    """A watch over the deadline of a namespace, its clock, and what it does; it signals nobody."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.done: list[object] = []
        self.may_signal = True
        monkeypatch.setattr(os, "_exit", self._exit)
        monkeypatch.setattr(signal, "setitimer", lambda _, seconds: self.done.append(seconds))
        reading, self.writing = os.pipe()
        os.set_blocking(reading, False)
        self.descriptors = reading, self.writing
        self.watch = deadline_watch._Watch(reading, self._signal_others)

    def _exit(self, code: int) -> None:
        self.done.append(f"exit {code}")
        raise SystemExit(code)

    def _signal_others(self, number: int) -> bool:
        self.done.append(signal.Signals(number).name)
        return self.may_signal

    def look(self, now_ms: int, *, slept_ms: int = 0) -> list[object]:
        """What it does at this instant of the boot clock."""
        set_clocks(self.monkeypatch, now_ms, slept_ms=slept_ms)
        self.done.clear()
        with contextlib.suppress(SystemExit):
            self.watch.look()
        return list(self.done)

    def tell(self, deadline_ms: int) -> None:
        tell_deadline(self.writing, Deadline(boot_ms=deadline_ms, awake_ms=deadline_ms))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchBench]:
    bench = WatchBench(monkeypatch)
    yield bench
    for descriptor in bench.descriptors:
        os.close(descriptor)


@pytest.mark.parametrize(("slept_ms", "does"), [(300_000, [0.5]), (299_000, ["exit 1"])])
def test_what_ends_the_namespace_counts_by_the_same_clock(
    watched: WatchBench, slept_ms: int, does: list[object]
) -> None:
    watched.tell(DEADLINE_MS - 1_000)
    watched.tell(DEADLINE_MS)
    assert watched.look(DEADLINE_MS + 300_000 - 500, slept_ms=slept_ms) == does


def test_what_ends_the_namespace_holds_what_stood_still_with_it_until_a_newer_deadline(watched: WatchBench) -> None:
    watched.tell(DEADLINE_MS)
    woke_ms = DEADLINE_MS + 1_000
    for now_ms in (woke_ms, woke_ms + HELD_MS_MAX):
        assert watched.look(now_ms) == ["SIGSTOP", 0.1]
    watched.tell(woke_ms + 60_000)
    assert watched.look(woke_ms + HELD_MS_MAX) == ["SIGCONT", 30.0]
    assert watched.look(woke_ms + HELD_MS_MAX + 1_000) == [29.0]


def test_what_is_held_in_a_namespace_ends_where_no_newer_deadline_comes(watched: WatchBench) -> None:
    watched.tell(DEADLINE_MS)
    woke_ms = DEADLINE_MS + 200_000
    assert watched.look(woke_ms) == ["SIGSTOP", 0.1]
    assert watched.look(woke_ms + HELD_MS_MAX + 999) == ["SIGSTOP", 0.1]
    assert watched.look(woke_ms + HELD_MS_MAX + 1_000) == ["exit 1"]


def test_a_namespace_ends_at_its_deadline_where_its_first_process_did_not_stand_still(watched: WatchBench) -> None:
    watched.tell(DEADLINE_MS)
    assert watched.look(DEADLINE_MS) == ["exit 1"]


def test_a_namespace_whose_processes_cannot_be_held_ends(watched: WatchBench) -> None:
    watched.may_signal = False
    watched.tell(DEADLINE_MS)
    assert watched.look(DEADLINE_MS + 200_000) == ["SIGSTOP", "exit 1"]
