"""A hold signals what the shim has started for its job, and nothing else, whatever it is asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cotenant_agent.keeper import job_hold, namespaces
from cotenant_agent.keeper.job_hold import JobGroups, JobHold
from cotenant_agent.keeper.job_processes import JobProcesses, start_ticks
from cotenant_agent.keeper.namespaces import Others, process_namespace

SLEEPER = [sys.executable, "-S", "-c", "import time\ntime.sleep(600)"]


class Recorder:
    """In the place of `os` in a module: what would be signalled is written down, and nobody is."""

    def __init__(self, **replaced: object) -> None:
        self.sent: list[tuple[int, int]] = []
        self.__dict__.update(replaced)

    def killpg(self, group: int, number: int) -> None:
        self.sent.append((group, number))

    kill = killpg

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(job_hold, "os", found)
    return found


@pytest.fixture(params=[True])
def leader(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process that leads a group of its own, or is in that of the tests."""
    process = subprocess.Popen(SLEEPER, start_new_session=request.param)
    yield process.pid
    process.kill()
    process.wait()


def groups_of(pid: int) -> JobGroups:
    groups = JobGroups()
    groups.add(pid)
    return groups


def test_a_group_that_was_started_for_the_job_is_signalled(recorder: Recorder, leader: int) -> None:
    assert groups_of(leader).signal(leader, signal.SIGSTOP)
    assert recorder.sent == [(leader, signal.SIGSTOP)]


@pytest.mark.parametrize("group", [-1, -2, 0, 1])
def test_no_number_that_stands_for_others_is_signalled_although_it_was_named(recorder: Recorder, group: int) -> None:
    recorder.__dict__["getpgid"] = lambda number: number
    groups = JobGroups()
    groups._leaders[group] = start_ticks(1)
    groups.signal_all(signal.SIGSTOP)
    assert recorder.sent == []


def test_the_keepers_own_group_is_not_signalled(recorder: Recorder, leader: int) -> None:
    recorder.__dict__["getpgrp"] = lambda: leader
    assert not groups_of(leader).signal(leader, signal.SIGSTOP)
    assert recorder.sent == []


def test_a_group_that_the_keeper_has_not_started_is_not_signalled(recorder: Recorder, leader: int) -> None:
    assert not JobGroups().signal(leader, signal.SIGSTOP)
    assert recorder.sent == []


@pytest.mark.parametrize("leader", [False], indirect=True)
def test_a_process_that_leads_no_group_is_not_signalled(recorder: Recorder, leader: int) -> None:
    assert not groups_of(leader).signal(leader, signal.SIGSTOP)
    assert recorder.sent == []


def test_a_group_whose_number_now_names_another_is_not_signalled(
    recorder: Recorder, leader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = groups_of(leader)
    monkeypatch.setattr(job_hold, "start_ticks", lambda pid: start_ticks(pid) + 1)
    assert not groups.signal(leader, signal.SIGSTOP)
    assert recorder.sent == []


def test_a_group_whose_leader_was_collected_is_not_signalled(recorder: Recorder) -> None:
    process = subprocess.Popen(SLEEPER, start_new_session=True)
    groups = groups_of(process.pid)
    process.kill()
    process.wait()
    assert not groups.signal(process.pid, signal.SIGSTOP)
    assert recorder.sent == []


class Members:
    """The processes of a job, of which the hold reaches all or not."""

    def __init__(self, *, is_within: bool = True) -> None:
        self.is_within = is_within
        self.asked: list[tuple[str, Collection[int]]] = []
        self.killed: list[tuple[str, str]] = []
        self.state_when_killed: Callable[[], str] = str

    def are_within(self, members_file: str, groups: Collection[int]) -> bool:
        self.asked.append((members_file, groups))
        return self.is_within

    def kill_members(self, members_file: str) -> None:
        self.killed.append((self.state_when_killed(), members_file))


def hold_of(leader: int, freeze_file: str = "", **facts: bool) -> tuple[JobHold, Members]:
    members = Members(**facts)
    found = JobHold(cast(JobProcesses, members), freeze_file)
    found.groups.add(leader)
    return found, members


def test_without_a_control_group_the_groups_are_stopped_again_and_again_and_let_go_once(
    recorder: Recorder, leader: int
) -> None:
    hold, members = hold_of(leader)
    assert [hold.hold(now_ms) for now_ms in (5_000, 5_100, 6_000)] == [True] * 3
    assert members.asked == [("", {leader})] * 2
    assert [hold.release(), hold.release()] == [True, True]
    assert recorder.sent == [(leader, signal.SIGSTOP)] * 3 + [(leader, signal.SIGCONT)]


def test_a_job_that_is_held_anew_is_looked_at_anew(recorder: Recorder, leader: int) -> None:
    hold, members = hold_of(leader)
    hold.hold(5_000)
    hold.release()
    members.is_within = False
    assert not hold.hold(5_100)


def test_a_control_group_is_frozen_and_nobody_is_signalled(recorder: Recorder, leader: int, tmp_path: Path) -> None:
    freeze_file = tmp_path / "cgroup.freeze"
    freeze_file.write_text("0")
    hold, members = hold_of(leader, str(freeze_file))
    assert hold.hold(5_000)
    assert freeze_file.read_text() == "1"
    assert members.asked == [(str(tmp_path / "cgroup.procs"), frozenset())]
    assert hold.release()
    assert freeze_file.read_text() == "0"
    assert recorder.sent == []


def test_a_control_group_that_is_gone_holds_nothing(recorder: Recorder, leader: int, tmp_path: Path) -> None:
    assert hold_of(leader, str(tmp_path / "gone" / "cgroup.freeze"))[0].release()


def test_a_freezer_of_version_1_is_used_too(recorder: Recorder, leader: int, tmp_path: Path) -> None:
    freeze_file = tmp_path / "freezer.state"
    freeze_file.write_text("THAWED")
    hold, members = hold_of(leader, str(freeze_file))
    assert hold.hold(5_000)
    assert freeze_file.read_text() == "FROZEN"
    assert members.asked == [(str(tmp_path / "cgroup.procs"), frozenset())]
    assert hold.release()
    assert freeze_file.read_text() == "THAWED"
    assert recorder.sent == []


@pytest.mark.parametrize(("name", "words"), [("freezer.state", "THAWED"), ("cgroup.freeze", "1")])
def test_what_the_freezer_of_version_1_keeps_is_killed_before_it_is_let_go_to_die(
    leader: int, tmp_path: Path, name: str, words: str
) -> None:
    freeze_file = tmp_path / name
    freeze_file.touch()
    hold, members = hold_of(leader, str(freeze_file))
    hold.hold(5_000)
    members.state_when_killed = freeze_file.read_text
    hold.let_die()
    killed = [("FROZEN", str(tmp_path / "cgroup.procs"))] if name == "freezer.state" else []
    assert (members.killed, freeze_file.read_text()) == (killed, words)


def test_a_job_with_a_process_elsewhere_is_not_held_whole(recorder: Recorder, leader: int) -> None:
    assert not hold_of(leader, is_within=False)[0].hold(5_000)


def test_what_a_collected_leader_left_in_its_group_is_not_held(recorder: Recorder, leader: int) -> None:
    """Its number is nobody's any more, and may be given away: the group is not signalled, so its members run."""
    hold, members = hold_of(leader)
    ended = subprocess.Popen(SLEEPER, start_new_session=True)
    hold.groups.add(ended.pid)
    ended.kill()
    ended.wait()
    hold.hold(5_000)
    assert members.asked == [("", {leader})]


@pytest.mark.parametrize("leader", [True, False], indirect=True)
def test_a_process_is_within_the_groups_that_it_is_in(leader: int) -> None:
    processes = JobProcesses(os.getpid(), [], {}, os.geteuid())
    processes._find = lambda: {leader: one} if (one := job_hold_look(leader)) else {}  # type: ignore[method-assign]
    assert processes.are_within("", {leader}) == (os.getpgid(leader) == leader)


def job_hold_look(pid: int) -> Any:
    return SimpleNamespace(group=int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[2]))


@pytest.mark.parametrize(
    ("pid", "own", "outer", "is_sent"),
    [
        (1, "pid:[2]", "pid:[1]", True),
        # The first process of a container is none of a namespace that the shim has made.
        (1, "pid:[1]", "pid:[1]", False),
        (77, "pid:[2]", "pid:[1]", False),
        (1, "", "pid:[1]", False),
        (1, "pid:[2]", "", False),
    ],
)
def test_all_others_are_signalled_by_the_first_process_of_a_namespace_of_its_own_only(
    monkeypatch: pytest.MonkeyPatch, pid: int, own: str, outer: str, is_sent: bool
) -> None:
    recorder = Recorder(getpid=lambda: pid)
    monkeypatch.setattr(namespaces, "os", recorder)
    monkeypatch.setattr(namespaces, "process_namespace", lambda: own)
    assert Others(outer).signal(signal.SIGSTOP) is is_sent
    assert recorder.sent == ([(-1, signal.SIGSTOP)] if is_sent else [])


def test_in_the_namespace_of_the_tests_nobody_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(namespaces, "os", recorder)
    assert process_namespace()
    assert not Others(process_namespace()).signal(signal.SIGSTOP)
    assert recorder.sent == []
