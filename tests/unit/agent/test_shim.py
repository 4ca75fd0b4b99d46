"""The shim alone, as a process, with a directory and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.processes import LinuxProcesses
from cotenant_agent.progress_reading.log_reading import LogReader, read_tail
from cotenant_agent.storage.state_directory import AttemptDirectory
from cotenant_agent.system_clock import boot_ms
from tests.support.agent import find_processes, wait_until
from tests.support.shim_bench import Bench, running_shims


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running_shims(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("source", "code"), [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 11)", -11)]
)
def test_exit_codes_and_signals_are_recorded(bench: Bench, source: str, code: int) -> None:
    record = bench.run(source)
    assert (record["return_code"], record["cause"]) == (code, "")


def test_a_program_that_cannot_be_executed_says_so_in_the_log(bench: Bench) -> None:
    record = bench.run("", argv=["/nowhere/program"])
    assert record["return_code"] == 127
    assert "cannot start /nowhere/program" in str(record["log_tail"])


def test_a_job_sees_its_environment_its_directory_and_nothing_of_the_shim(bench: Bench) -> None:
    record = bench.run(
        "import os, sys\nleads = os.getsid(0) == os.getpid()\n"
        "print(os.environ['MARK'], os.getcwd(), sys.stdin.read() == '', len(os.listdir('/proc/self/fd')), leads)"
    )
    assert str(record["log_tail"]).split() == ["kept", str(bench.root), "True", "4", "True"]


def test_a_job_stays_on_its_cores(bench: Bench) -> None:
    core = max(os.sched_getaffinity(0))
    record = bench.run("import os\nprint(os.sched_getaffinity(0))", cpu_cores=[core])
    assert record["log_tail"] == f"{{{core}}}\n"


def test_a_working_directory_behind_a_link_is_refused(bench: Bench) -> None:
    (bench.root / "link").symlink_to("/tmp")
    record = bench.run("print('has run')", working_directory=str(bench.root / "link"))
    assert record["return_code"] == 127
    assert "has run" not in str(record["log_tail"])


def test_an_attempt_is_started_at_most_once(bench: Bench) -> None:
    directory = bench.prepare("import time\nprint('up', flush=True)\ntime.sleep(1)")
    first = bench.start(directory)
    wait_until((directory / "state.json").exists, "the first shim holds the attempt")
    assert bench.start(directory).wait(90) == 3
    assert first.wait(90) == 0
    assert bench.start(directory).wait(90) == 3
    assert (directory / "out.log").read_text() == "up\n"


def test_output_is_kept_in_two_bounded_files_and_read_as_one(bench: Bench) -> None:
    directory = bench.prepare("for i in range(30000):\n    print('line', i)", changes={"log_limit_bytes": 65536})
    bench.start(directory).wait(60)
    attempt = AttemptDirectory(directory)
    assert attempt.older_log.stat().st_size == 65536
    assert attempt.log.stat().st_size <= 65536
    lines = read_tail(attempt, 1 << 20).decode().splitlines()
    assert lines[-1] == "line 29999"
    assert lines[1:] == [f"line {number}" for number in range(30001 - len(lines), 30000)]


def test_a_reader_follows_through_a_rotation(tmp_path: Path) -> None:
    directory = AttemptDirectory(tmp_path)
    directory.log.write_bytes(b"one ")
    reader = LogReader(directory)
    assert reader.read() == b"one "
    with directory.log.open("ab") as file:
        file.write(b"two ")
    directory.log.rename(directory.older_log)
    directory.log.write_bytes(b"three")
    assert [reader.read(), reader.read(), reader.read()] == [b"two ", b"three", b""]
    reader.close()


def test_the_end_of_a_log_may_span_both_files(tmp_path: Path) -> None:
    directory = AttemptDirectory(tmp_path)
    directory.older_log.write_bytes(b"0123456789")
    directory.log.write_bytes(b"abc")
    assert read_tail(directory, 5) == b"89abc"
    assert read_tail(directory, 100) == b"0123456789abc"


def test_what_a_job_leaves_behind_ends_with_it(bench: Bench) -> None:
    marker = str(bench.root / "jobs" / "left_behind")
    record = bench.run(
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(600)', {marker!r}])\n"
    )
    assert record["return_code"] == 0
    assert find_processes(marker) == []


def test_a_stop_request_reaches_a_job_that_handles_it(bench: Bench) -> None:
    directory = bench.prepare(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(85))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    shim = bench.start(directory)
    wait_until(
        lambda: (directory / "out.log").exists() and (directory / "out.log").read_text() == "up\n", "the job is up"
    )
    (directory / "stop.json").write_text(json.dumps({"cause": "preempted", "grace_ms": 20_000}))
    assert shim.wait(90) == 0
    record = json.loads((directory / "exit.json").read_text())
    assert (record["return_code"], record["cause"], record["killed"]) == (85, "preempted", False)


def test_an_expired_lease_ends_a_job_that_ignores_it(bench: Bench) -> None:
    ignoring = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
    directory = bench.prepare(f"{ignoring}time.sleep(600)")
    shim = bench.start(directory)
    wait_until(lambda: read_tail(AttemptDirectory(directory), 10) == b"deaf\n", "the job ignores it")
    lease = {"deadline_boot_ms": boot_ms(), "grace_ms": 200}
    (directory / "lease.json").write_text(json.dumps(lease))
    assert shim.wait(90) == 0
    record = json.loads((directory / "exit.json").read_text())
    assert (record["return_code"], record["cause"], record["killed"]) == (-signal.SIGKILL, "fenced", True)


LEAVES_A_HELPER = """
import os, sys
leader = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == leader:
    pass
open(sys.argv[1], "w").write(sys.argv[2])
while True:
    pass
"""


def test_a_stop_that_finds_a_job_ended_did_not_end_it(bench: Bench) -> None:
    directory = bench.prepare(LEAVES_A_HELPER)
    spec = json.loads((directory / "spec.json").read_text())
    stop = json.dumps({"cause": "fenced", "grace_ms": 20_000})
    spec["argv"] += [str(directory / "stop.json"), stop]
    (directory / "spec.json").write_text(json.dumps(spec))
    assert bench.start(directory).wait(90) == 0
    record = json.loads((directory / "exit.json").read_text())
    assert (record["return_code"], record["cause"]) == (0, "")


# Between its look at what has ended and that for a stop the job ends, and only then somebody asks for its end.
STOPPED_LATE = """
import json, os, pathlib
from cotenant_agent.keeper.shim import AttemptSupervisor
from cotenant_agent.keeper.shim_records import Records

class Late(Records):
    has_begun = False

    def read(self, name):
        if name == "stop.json" and self.has_begun:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            return {"cause": "preempted", "grace_ms": 20_000}
        self.has_begun = self.has_begun or name == "stop.json"
        return super().read(name)

AttemptSupervisor(json.loads(pathlib.Path("spec.json").read_text()), Late()).run()
"""


def test_a_job_that_ended_just_before_it_was_asked_to_was_not_stopped(bench: Bench) -> None:
    directory = bench.prepare("")
    subprocess.run([sys.executable, "-c", STOPPED_LATE], cwd=directory, check=True, timeout=90)
    record = json.loads((directory / "exit.json").read_text())
    assert (record["return_code"], record["cause"]) == (0, "")


def test_a_job_never_outlives_its_shim(bench: Bench) -> None:
    directory = bench.prepare("import time\ntime.sleep(600)")
    shim = bench.start(directory)
    wait_until((directory / "state.json").exists, "the job runs")
    pid = json.loads((directory / "state.json").read_text())["job_pid"]
    shim.kill()
    wait_until(lambda: LinuxProcesses().identify(pid) is None, "the job died with its shim")


def test_twenty_attempts_are_adopted_from_their_directories(bench: Bench, tmp_path: Path) -> None:
    directories = [bench.prepare("import time\ntime.sleep(600)", name=f"job-{number}.1") for number in range(20)]
    for directory in directories:
        bench.start(directory)
    for directory in directories:
        wait_until((directory / "state.json").exists, "it runs")
    for directory in directories:
        spec = json.loads((directory / "spec.json").read_text())
        attempt = Attempt(AttemptDirectory(directory), spec, tmp_path / "checkpoints", tmp_path / "run")
        shim, leader = attempt.processes()
        assert shim is not None
        assert leader is not None
        assert attempt.state.value == "running"
