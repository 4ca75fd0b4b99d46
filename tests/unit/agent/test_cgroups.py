"""Control groups over directories that look like the kernel's, and over the real ones where they may be used."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant_agent.isolation import cgroups
from cotenant_agent.isolation.cgroups import ControlGroups, detect, name_agent


class FakeKernel:
    """A mounted hierarchy: new groups get the files that `create_files` names."""

    def __init__(self, tmp_path: Path, membership: str) -> None:
        self.root = tmp_path / "cgroup"
        self.root.mkdir()
        self.membership = tmp_path / "membership"
        self.membership.write_text(membership)

    def detect(self) -> ControlGroups:
        return detect("n", self.root, self.membership)


def test_a_machine_without_control_groups_enforces_nothing(tmp_path: Path) -> None:
    groups = FakeKernel(tmp_path, "").detect()
    assert groups.enforcements == ()
    files = groups.create("job.1", memory_bytes=1 << 20)
    assert (files.procs_files, files.kill_file, files.oom_files) == ((), "", ())
    groups.kill("job.1")
    groups.remove("job.1")


def test_agents_of_one_node_name_have_groups_of_their_own_and_keep_them(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "one")
    one, other = name_agent("n", tmp_path / "one"), name_agent("n", tmp_path / "other")
    assert one != other
    assert name_agent("n", tmp_path / "link") == one
    assert name_agent("m", tmp_path / "one") != one


def test_only_files_that_are_really_there_count(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, "0::/\n4:memory:/\n")
    (kernel.root / "cgroup.controllers").write_text("")
    (kernel.root / "cgroup.procs").write_text("")
    assert kernel.detect().enforcements == ()
    assert not (kernel.root / "cotenant-n").exists()


def test_limits_are_written_in_the_words_of_each_version(tmp_path: Path) -> None:
    unified, memory = tmp_path / "v2", tmp_path / "v1"
    for directory, names in ((unified, ["cpu.max", "pids.max"]), (memory, ["memory.limit_in_bytes"])):
        (directory / "job.1").mkdir(parents=True)
        for name in names:
            (directory / "job.1" / name).write_text("")
    groups = ControlGroups(unified=unified, memory=memory, cpu=unified, pids=unified)
    files = groups.create("job.1", memory_bytes=1000, cpu_cores=1.5, tasks_max=77)
    assert (unified / "job.1" / "pids.max").read_text() == "77"
    assert groups.enforcements == ("cgroup_kill", "cgroup_memory", "cgroup_cpu", "cgroup_pids")
    assert (unified / "job.1" / "cpu.max").read_text() == "150000 100000"
    assert (memory / "job.1" / "memory.limit_in_bytes").read_text() == "1000"
    assert files.procs_files == (str(unified / "job.1" / "cgroup.procs"), str(memory / "job.1" / "cgroup.procs"))
    assert files.kill_file == str(unified / "job.1" / "cgroup.kill")
    assert files.oom_files == (str(memory / "job.1" / "memory.oom_control"),)


def test_a_group_that_is_busy_for_a_moment_is_removed_later(tmp_path: Path) -> None:
    parent = tmp_path / "v2"
    groups = ControlGroups(unified=parent)
    groups.create("job.1")
    still_in = parent / "job.1" / "a process that has not left yet"
    still_in.mkdir()
    groups.remove("job.1")
    assert (parent / "job.1").exists()
    still_in.rmdir()
    groups.create("job.2")
    groups.remove("job.2")
    assert list(parent.iterdir()) == []
    groups.remove_parents()
    assert not parent.exists()


def test_groups_that_stay_busy_are_left_behind_without_an_error(tmp_path: Path) -> None:
    parent = tmp_path / "v2"
    groups = ControlGroups(unified=parent)
    groups.create("job.1")
    (parent / "job.1" / "a process of another user").mkdir()
    groups.remove("job.1")
    groups.remove_parents()
    assert (parent / "job.1").exists()


def test_the_real_group_kills_processes_that_left_every_session() -> None:
    groups = detect(f"test-{os.getpid()}")
    if groups.unified is None:
        groups.remove_parents()
        pytest.skip("this machine does not let the tests make version-2 control groups")
    files = groups.create("job.1")
    source = f"import time\nopen({files.procs_files[0]!r}, 'w').write('0')\nprint('in', flush=True)\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-S", "-c", source], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        groups.kill("job.1")
        assert process.wait(90) == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdout is not None:
            process.stdout.close()
        groups.remove("job.1")
        groups.remove_parents()
    assert not groups.unified.exists()


def test_what_stands_still_in_a_group_is_killed_before_it_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ControlGroups(freezer=tmp_path / "freezer")
    groups.create("job.1")
    (tmp_path / "freezer" / "job.1" / "freezer.state").touch()
    done: list[str] = []
    monkeypatch.setattr(cgroups, "_kill_members", lambda procs_file, sweeps=50: done.append(f"kill {sweeps}"))
    monkeypatch.setattr(cgroups, "try_write", lambda path, words: done.append(words))
    groups.clear("job.1")
    assert done == ["kill 1", "THAWED", "kill 50"]


def test_what_is_left_in_a_group_is_killed_in_every_version_and_others_are_not(tmp_path: Path) -> None:
    parent = tmp_path / "v1"
    groups = ControlGroups(memory=parent)
    groups.create("job.1")
    (parent / "probe").mkdir()
    assert groups.left_over_names() == ("job.1",)
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    member, other = subprocess.Popen(sleeping), subprocess.Popen(sleeping)
    procs = parent / "job.1" / "cgroup.procs"
    procs.write_text(f"0\n999999999\n{member.pid}\n")
    try:
        groups.clear("job.1")
        assert member.wait(90) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (member, other):
            process.kill()
            process.wait()


def test_a_fork_bomb_ends_at_its_bound_and_leaves_no_group_behind() -> None:
    groups = detect(f"test-{os.getpid()}")
    if groups.pids is None:
        groups.remove_parents()
        pytest.skip("this machine does not let the tests bound processes by control groups")
    files = groups.create("job.1", tasks_max=20)
    source = (
        f"import os, sys, time\nfor path in {list(files.procs_files)!r}: open(path, 'w').write('0')\n"
        "try:\n    for _ in range(200):\n        if os.fork() == 0: time.sleep(600)\n"
        "except BlockingIOError:\n    print('refused', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", source], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"refused\n"
        assert len((groups.pids / "job.1" / "cgroup.procs").read_text().splitlines()) == 20
    finally:
        groups.clear("job.1")
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        groups.remove_parents()
    assert not groups.pids.exists()
