"""What a stop signals: launchers, their children in any group, helpers, and no other process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.agent import wait_until
from tests.support.shim_bench import Bench

# Leaves a file when it is asked to end, as a training script its checkpoint; arguments: folder, name.
TRAINER = """
import os, pathlib, signal, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
def leave(*_):
    with (folder / f"{name}.checkpoint").open("a") as file:
        file.write("written\\n")
    sys.exit(85)
signal.signal(signal.SIGTERM, leave)
(folder / f"{name}.up").write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""
START_TRAINER = "subprocess.Popen([sys.executable, '-S', '-c', TRAINER, FOLDER, {name!r}], start_new_session={own})"


ANYWHERE = pytest.mark.parametrize("bench", ["without"], indirect=True)
"""For what takes seconds and is the same in a namespace."""


def source_of(bench: Bench, *lines: str) -> str:
    """A program that knows the trainer's text and the folder of the test."""
    head = f"import os, signal, subprocess, sys, time\nTRAINER, FOLDER = {TRAINER!r}, {str(bench.root / 'jobs')!r}"
    return "\n".join([head, *lines])


def starts(name: str, *, own_session: bool) -> str:
    return START_TRAINER.format(name=name, own=own_session)


def wait_for(bench: Bench, *names: str) -> None:
    for name in names:
        wait_until((bench.root / "jobs" / f"{name}.up").exists, f"{name} is up")


def checkpoints(bench: Bench) -> dict[str, int]:
    """How often each process wrote its checkpoint."""
    files = (bench.root / "jobs").glob("*.checkpoint")
    return {file.stem: len(file.read_text().splitlines()) for file in files}


@pytest.mark.parametrize("handler", ["", "signal.signal(signal.SIGTERM, lambda *_: None)"])
@pytest.mark.parametrize("own_session", [True, False])
def test_a_child_of_a_launcher_checkpoints_before_it_is_killed(bench: Bench, handler: str, own_session: bool) -> None:
    source = source_of(bench, handler, f"sys.exit({starts('child', own_session=own_session)}.wait())")
    directory = bench.prepare(source)
    bench.start(directory)
    wait_for(bench, "child")
    record = bench.stop(directory)
    assert checkpoints(bench) == {"child": 1}
    # A launcher that handles the signal hands on the code of its child; another one is ended by it.
    assert (record["return_code"], record["killed"]) == (85 if handler else -signal.SIGTERM, False)


def test_a_grandchild_whose_parents_have_left_checkpoints_too(bench: Bench) -> None:
    middle = f"import os, subprocess, sys\nTRAINER, FOLDER = {TRAINER!r}, {str(bench.root / 'jobs')!r}\n"
    middle += starts("grandchild", own_session=True)
    source = source_of(bench, f"subprocess.run([sys.executable, '-S', '-c', {middle!r}])", "time.sleep(600)")
    directory = bench.prepare(source)
    bench.start(directory)
    wait_for(bench, "grandchild")
    bench.stop(directory)
    assert checkpoints(bench) == {"grandchild": 1}


def test_a_shell_that_starts_two_programs_lets_both_checkpoint(bench: Bench) -> None:
    folder = str(bench.root / "jobs")
    lines = f'"$0" -S -c "$1" {folder} one & setsid "$0" -S -c "$1" {folder} two & wait'
    directory = bench.prepare("", changes={"argv": ["/bin/bash", "-c", lines, sys.executable, TRAINER]})
    bench.start(directory)
    wait_for(bench, "one", "two")
    bench.stop(directory)
    assert checkpoints(bench) == {"one": 1, "two": 1}


def test_a_child_that_ignores_the_stop_is_killed_after_the_grace_in_its_own_session(bench: Bench) -> None:
    deaf = "import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += "pathlib.Path(sys.argv[1], 'deaf.up').write_text('')\ntime.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-S', '-c', {deaf!r}, FOLDER], start_new_session=True).wait()"
    directory = bench.prepare(source_of(bench, start))
    bench.start(directory)
    wait_for(bench, "deaf")
    assert bench.stop(directory, grace_ms=300)["cause"] == "stopped"


# Two helpers as data loaders are: a fork with the handler of the training process, and a program without one.
WITH_HELPERS = """
import pathlib
folder = pathlib.Path(FOLDER)
def leave(*_):
    helpers = [fork, program.pid]
    alive = [pid for pid in helpers if os.waitpid(pid, os.WNOHANG) == (0, 0)]
    (folder / f"{os.getpid()}.checkpoint").write_text("written")
    (folder / "alive").write_text(str(len(alive)))
    os._exit(85)
fork = 0
signal.signal(signal.SIGTERM, leave)
program = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
fork = os.fork()
if fork == 0:
    while True:
        time.sleep(0.05)
time.sleep(0.1)
(folder / "trainer.up").write_text("")
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("launcher", ["", "bash"])
def test_helpers_of_a_program_that_handles_the_stop_live_until_it_has_ended(bench: Bench, launcher: str) -> None:
    trainer = source_of(bench, WITH_HELPERS)
    argv = [sys.executable, "-S", "-c", trainer]
    if launcher:
        argv = ["/bin/bash", "-c", '"$@"; true', "launcher", *argv]
    directory = bench.prepare("", changes={"argv": argv})
    bench.start(directory)
    wait_for(bench, "trainer")
    bench.stop(directory, grace_ms=5_000)
    assert (bench.root / "jobs" / "alive").read_text() == "2"
    assert len(checkpoints(bench)) == 1


@ANYWHERE
def test_a_program_that_begins_to_handle_the_stop_later_is_signalled_then(bench: Bench) -> None:
    slow = TRAINER.replace("signal.signal(", "(folder / f'{name}.up').write_text('')\ntime.sleep(2)\nsignal.signal(", 1)
    source = source_of(
        bench, "signal.signal(signal.SIGTERM, lambda *_: None)", starts("slow", own_session=True) + ".wait()"
    )
    directory = bench.prepare(source.replace(repr(TRAINER), repr(slow)))
    bench.start(directory)
    wait_for(bench, "slow")
    bench.stop(directory)
    assert checkpoints(bench) == {"slow": 1}


def start_elsewhere(bench: Bench, name: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A trainer that is no descendant of the shim, as one that a launcher started through ssh."""
    argv = [sys.executable, "-S", "-c", TRAINER, str(bench.root / "jobs"), name]
    process = subprocess.Popen(argv, env=environment, start_new_session=True)
    wait_for(bench, name)
    return process


def test_a_bearer_of_the_marker_is_signalled_and_waited_for_and_no_other_process_is(bench: Bench) -> None:
    mark, other = ({"COTENANT_PROGRESS": str(bench.root / "run" / name)} for name in ("job.1", "job.2"))
    directory = bench.prepare("import time\ntime.sleep(600)", changes={"environment": mark})
    other_job = bench.prepare(source_of(bench, TRAINER_HERE), name="job.2", changes={"environment": other})
    bench.start(directory)
    bench.start(other_job)
    own, foreign = start_elsewhere(bench, "own", mark), start_elsewhere(bench, "foreign", other)
    wait_for(bench, "other_job")
    try:
        assert bench.stop(directory)["return_code"] == -signal.SIGTERM
        assert own.wait(90) == 85
        assert foreign.poll() is None
        assert checkpoints(bench) == {"own": 1}
    finally:
        own.kill()
        foreign.kill()
        foreign.wait()


TRAINER_HERE = "os.execv(sys.executable, [sys.executable, '-S', '-c', TRAINER, FOLDER, 'other_job'])"


def test_a_bearer_of_the_marker_that_ignores_the_stop_is_killed_after_the_grace(bench: Bench) -> None:
    mark = {"COTENANT_PROGRESS": str(bench.root / "run" / "job.1")}
    directory = bench.prepare("import time\ntime.sleep(600)", changes={"environment": mark})
    bench.start(directory)
    deaf = subprocess.Popen([sys.executable, "-S", "-c", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
                             "print(flush=True)\ntime.sleep(600)"], env=mark, stdout=subprocess.PIPE)  # fmt: skip
    assert deaf.stdout is not None
    deaf.stdout.readline()
    try:
        bench.stop(directory, grace_ms=300)
        assert deaf.wait(90) == -signal.SIGKILL
    finally:
        deaf.kill()
        deaf.stdout.close()


def test_members_of_the_control_group_are_signalled_and_a_number_without_a_process_here_is_skipped(
    bench: Bench,
) -> None:
    members = bench.root / "cgroup.procs"
    up = bench.root / "jobs" / "job.up"
    source = f"import pathlib, time\npathlib.Path({str(up)!r}).write_text('')\ntime.sleep(600)"
    directory = bench.prepare(source, changes={"cgroup_procs_files": [str(members)]})
    member = start_elsewhere(bench, "member", {})
    bench.start(directory)
    wait_for(bench, "job")
    members.write_text(f"0\n999999999\n{member.pid}\n")
    try:
        bench.stop(directory)
        assert member.wait(90) == 85
        assert checkpoints(bench) == {"member": 1}
    finally:
        member.kill()


@ANYWHERE
def test_processes_that_are_started_while_the_stop_is_signalled_do_not_keep_it_from_ending(bench: Bench) -> None:
    source = source_of(
        bench,
        "def more(*_):",
        f"    {starts('later', own_session=True)}",
        f"    {starts('latest', own_session=False)}",
        "signal.signal(signal.SIGTERM, more)",
        starts("first", own_session=True),
        "while True: time.sleep(0.05)",
    )
    directory = bench.prepare(source)
    bench.start(directory)
    wait_for(bench, "first")
    assert bench.stop(directory, grace_ms=4_000)["killed"] is True
    assert checkpoints(bench) == {"first": 1, "later": 1, "latest": 1}
