"""No process of a job outlives its shim, and a job sees no other's processes and nothing of the agent's folder.

As root, as a user with a user namespace of its own, and, where the kernel refuses both, what holds then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant_agent.isolation import isolation_means
from cotenant_agent.isolation.isolation_means import find_namespace_obstacle
from cotenant_agent.keeper import namespaces
from cotenant_agent.processes import LinuxProcesses
from cotenant_agent.system_clock import boot_ms
from tests.support.agent import find_processes, open_folder, wait_until
from tests.support.shim_bench import SHIM, Bench

NOBODY = 65534
DROP_FROM_BOUNDING_SET, SYS_ADMIN = 24, 21
AS_TESTS, UNPRIVILEGED, DOCKER = "as the tests' user", "as an unprivileged user", "as in default Docker"
# Every process of the job has the folder of the test in its command line; arguments: folder, what to do.
SLEEPER = "import pathlib, sys, time; pathlib.Path(sys.argv[1], 'up').touch(); time.sleep(600)"
ESCAPES = {
    "launcher": "subprocess.Popen(sleeper, start_new_session=True).wait()",
    "left launcher": "subprocess.Popen(sleeper, start_new_session=True); time.sleep(600)",
    "double fork": "os.fork() or (os.setsid(), os.fork() or os.execv(*run), os._exit(0)); time.sleep(600)",
    "no environment": "subprocess.Popen(sleeper, env={}, start_new_session=True).wait()",
    "killed parent": "os.fork() or os.fork() or (os.setsid(), os.kill(os.getppid(), 9), os.execv(*run))"
    "; time.sleep(600)",
    "workers in sessions": "[subprocess.Popen(sleeper, start_new_session=True) for _ in 'abc'][0].wait()",
}


IN_EVERY_RUN = {AS_TESTS: set(ESCAPES), UNPRIVILEGED: {"double fork", "workers in sessions"}, DOCKER: {"launcher"}}
"""Without a namespace every escape is left to the agent."""


class User:
    """Who runs the shims, in folders of their own."""

    def __init__(self, root: Path, uid: int, *, is_contained: bool) -> None:
        self.bench = Bench(root)
        self.uid = uid
        self._prepare = _give_up_powers if is_contained else None
        self.python, self.refusal = _probe_as(uid, root, self._prepare)
        kept = [str(root / "run" / "job.1")]
        self.wanted = None if self.refusal else {"covered": [str(root)], "kept": kept}

    def start(self, directory: Path) -> subprocess.Popen[bytes]:
        """Start a shim over everything that was made so far."""
        if os.geteuid() != self.uid:
            for path in (self.bench.root, *self.bench.root.rglob("*")):
                os.chown(path, self.uid, self.uid)
        argv = [self.python, *SHIM[1:], str(directory)]
        process = subprocess.Popen(
            argv, start_new_session=True, user=self.uid, group=self.uid, preexec_fn=self._prepare
        )
        self.bench.processes.append(process)
        return process

    def tell(self, directory: Path, name: str, **record: object) -> None:
        """Write a file for a shim that runs, as the agent does, in one step; whoever tests may let nobody else read."""
        arriving = directory / f"{name}.arriving"
        arriving.write_text(json.dumps(record))
        os.chown(arriving, self.uid, -1)
        arriving.replace(directory / name)

    def prepare(self, source: str, name: str = "job.1") -> Path:
        """Describe an attempt with as much isolation as this machine gives."""
        changes = {"namespaces": self.wanted, "argv": [self.python, "-S", "-c", source]}
        directory = self.bench.prepare(source, name=name, changes=changes)
        (self.bench.root / "run" / name).mkdir(parents=True, exist_ok=True)
        return directory

    def run(self, source: str) -> list[str]:
        """Run a job to its end; returns the lines that it printed."""
        directory = self.prepare(source)
        assert self.start(directory).wait(90) == 0
        return str(json.loads((directory / "exit.json").read_text())["log_tail"]).splitlines()


def _give_up_powers() -> None:
    """In a child: what default Docker takes from root."""
    namespaces.control_process(DROP_FROM_BOUNDING_SET, SYS_ADMIN)


def _probe_as(uid: int, directory: Path, prepare: Callable[[], None] | None) -> tuple[str, str]:
    """An interpreter that the user can run, and why its namespaces are refused."""
    for python in (sys.executable, "/usr/bin/python3"):
        probe = [python, "-I", "-S", "-E", str(namespaces.__file__), str(directory)]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                probe, user=uid, group=uid, capture_output=True, text=True, check=True, preexec_fn=prepare
            )
            return python, done.stdout.strip()
    pytest.skip(f"user {uid} can run no Python of this machine, or not read this folder")


@pytest.fixture(params=[AS_TESTS, UNPRIVILEGED, DOCKER])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    uid = NOBODY if request.param == UNPRIVILEGED and os.geteuid() == 0 else os.geteuid()
    with open_folder() as folder:
        (folder / "state").mkdir()
        found = User(folder / "state", uid, is_contained=request.param == DOCKER and os.geteuid() == 0)
        if request.param == DOCKER:
            found.wanted = None
        yield found
        for process in found.bench.processes:
            process.kill()
            process.wait()
        for pid in find_processes(str(folder)):
            with contextlib.suppress(ProcessLookupError):  # it may have ended since
                os.kill(pid, signal.SIGKILL)


def in_run_folder(user: User, source: str) -> Path:
    """Describe an attempt that works in its own folder, as jobs do without a folder of theirs."""
    directory = user.prepare(source)
    spec = json.loads((directory / "spec.json").read_text())
    spec["working_directory"] = str(user.bench.root / "run" / "job.1")
    (directory / "spec.json").write_text(json.dumps(spec))
    return directory


@pytest.mark.parametrize(
    ("user", "escape"),
    [
        pytest.param(name, escape, marks=[] if escape in always else [pytest.mark.endurance])
        for name, always in IN_EVERY_RUN.items()
        for escape in ESCAPES
    ],
    indirect=["user"],
)
def test_nothing_of_a_job_outlives_its_killed_shim(user: User, escape: str) -> None:
    folder = user.bench.root / "run" / "job.1"
    source = (
        f"import os, subprocess, sys, time\nsleeper = [sys.executable, '-S', '-c', {SLEEPER!r}, {str(folder)!r}]\n"
        f"run = sleeper[0], sleeper\n{ESCAPES[escape]}"
    )
    shim = user.start(in_run_folder(user, source))
    wait_until((folder / "up").exists, "what escapes is up")
    assert find_processes(str(folder))
    leader = json.loads((user.bench.root / "jobs" / "job.1" / "state.json").read_text())["job_pid"]
    shim.kill()
    wait_until(lambda: LinuxProcesses().identify(leader) is None, "the job's first process died with its shim")
    if user.wanted is None:
        # The agent finds the others by their group, their session or the marker in their environment, and ends them.
        assert find_processes(str(folder))
        return
    wait_until(lambda: not find_processes(str(folder)), "all of the job died with its shim")


def test_a_job_whose_shim_stands_still_ends_with_its_renewed_lease(user: User) -> None:
    """Others count on its end by then, and start it elsewhere."""
    if user.wanted is None:
        return
    directory = user.prepare("import time; time.sleep(600)")
    # Longer than a start takes on a busy machine; what keeps the lease looks again when it is over.
    user.tell(directory, "lease.json", deadline_boot_ms=boot_ms() + 10_000, grace_ms=200)
    shim = user.start(directory)
    wait_until((directory / "state.json").exists, "the job runs")
    leader = LinuxProcesses().identify(json.loads((directory / "state.json").read_text())["job_pid"])
    assert leader is not None
    deadline_ms = boot_ms() + 3_000
    user.tell(directory, "lease.json", deadline_boot_ms=deadline_ms, grace_ms=200)
    time.sleep(1.0)  # the shim looks many times a second
    os.kill(shim.pid, signal.SIGSTOP)
    wait_until(lambda: not LinuxProcesses().is_alive(leader), "the job has ended without its shim")
    assert boot_ms() >= deadline_ms + 200
    os.kill(shim.pid, signal.SIGCONT)
    wait_until((directory / "exit.json").exists, "the shim goes on, and writes the end down")


def test_a_job_sees_its_own_processes_only(user: User) -> None:
    lines = user.run("import os\nprint(os.getpid(), *sorted(name for name in os.listdir('/proc') if name.isdigit()))")
    assert (lines == ["2 1 2"]) == (user.wanted is not None)


def test_a_job_sees_of_the_agents_folder_only_its_own_and_writes_there_alone(user: User) -> None:
    root = user.bench.root
    source = f"""
import os
for folder, _, files in sorted(os.walk({str(root)!r})):
    print(os.path.relpath(folder, {str(root)!r}), *files)
for name in ("run/job.1/mine", "jobs/job.1/lease.json", "jobs/job.2/exit.json", "anything"):
    try:
        open(os.path.join({str(root)!r}, name), "w").write("0")
    except OSError as error:
        print(name, error.strerror)
"""
    victim = user.prepare("", name="job.2")
    (root / "run" / "job.2" / "progress.json").write_text("{}")
    directory = in_run_folder(user, source)
    assert user.start(directory).wait(90) == 0
    assert (root / "run" / "job.1" / "mine").read_text() == "0"
    log = str(json.loads((directory / "exit.json").read_text())["log_tail"]).splitlines()
    if user.wanted is not None:
        no_folder, read_only = os.strerror(2), os.strerror(30)
        assert log[:3] == [".", "run", "run/job.1"]
        assert log[3:] == [
            f"jobs/job.1/lease.json {no_folder}",
            f"jobs/job.2/exit.json {no_folder}",
            f"anything {read_only}",
        ]
    assert (victim / "exit.json").exists() == (user.wanted is None)


def test_a_job_cannot_take_its_view_off_or_end_its_namespaces_first_process(user: User) -> None:
    source = f"""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
print(libc.umount2({str(user.bench.root)!r}.encode(), 2), libc.umount2(b"/proc", 2))
print(libc.ptrace(16, 1, 0, 0))
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP):
    try:
        os.kill(1, number)
    except OSError:
        pass
print(os.path.exists({str(user.bench.root / "jobs")!r}))
"""
    expected = ["-1 -1", "-1", "False"] if user.wanted is not None else None
    assert expected is None or user.run(source) == expected


def test_the_end_of_a_job_is_told_by_its_own_code_although_another_process_collects_it(user: User) -> None:
    directory = user.prepare("held = b'x' * (64 << 20)\nraise SystemExit(7)")
    assert user.start(directory).wait(90) == 0
    record = json.loads((directory / "exit.json").read_text())
    assert (record["return_code"], record["killed"]) == (7, False)
    assert record["max_resident_bytes"] > 64 << 20


def test_a_job_that_ignores_its_stop_is_recorded_as_killed(user: User) -> None:
    folder = user.bench.root / "run" / "job.1"
    source = (
        "import signal, subprocess, sys\nsignal.signal(15, signal.SIG_IGN)\n"
        f"subprocess.run([sys.executable, '-S', '-c', {SLEEPER!r}, {str(folder)!r}], start_new_session=True)"
    )
    directory = user.prepare(source)
    user.start(directory)
    wait_until((folder / "up").exists, "its child is up")
    user.tell(directory, "stop.json", cause="cancelled", grace_ms=300)
    wait_until((directory / "exit.json").exists, "the attempt has ended")
    record = json.loads((directory / "exit.json").read_text())
    assert (record["return_code"], record["cause"], record["killed"]) == (-signal.SIGKILL, "cancelled", True)
    assert not find_processes(str(folder))


def test_a_view_that_cannot_be_made_starts_no_job_and_says_why_in_its_log(user: User) -> None:
    if user.wanted is not None:
        user.wanted = {**user.wanted, "kept": [str(user.bench.root / "run" / "nowhere")]}
    directory = user.prepare("print('ran')")
    code = user.start(directory).wait(90)
    log = (directory / "out.log").read_text()
    if user.wanted is None:
        assert (code, log) == (0, "ran\n")
        return
    # Without an exit record the attempt is lost, and is started again.
    assert code == 1
    assert log.startswith("cotenant: its view of the machine cannot be made: [Errno 2]")
    assert not (directory / "state.json").exists()
    assert not (directory / "exit.json").exists()
    # The first process of the namespace tells its shim why before it ends itself.
    wait_until(lambda: not find_processes(str(directory)), "nothing of it runs")


def test_the_state_names_the_job_as_this_machine_counts(user: User) -> None:
    directory = user.prepare("import time\ntime.sleep(600)")
    user.start(directory)
    wait_until((directory / "state.json").exists, "the job runs")
    state = json.loads((directory / "state.json").read_text())
    line = f"/proc/{state['job_pid']}/stat"
    assert int(Path(line).read_text().rpartition(")")[2].split()[1]) == state.get("init_pid", state["shim_pid"])


def test_root_without_the_power_to_administer_is_refused_with_the_reason(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has that power to give up")
    _, refusal = _probe_as(0, tmp_path, _give_up_powers)
    assert refusal.endswith("unshare: Operation not permitted")


def test_a_machine_that_refuses_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "namespaces.py"
    refusing.write_text("print('this machine refuses a process namespace: unshare: Operation not permitted')")
    monkeypatch.setattr(isolation_means, "NAMESPACES", refusing)
    assert find_namespace_obstacle().endswith("Operation not permitted")
    refusing.write_text("raise SystemExit(1)")
    assert "cannot be tried" in find_namespace_obstacle()
