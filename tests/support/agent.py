"""Agents as real processes, the scripts that they run, and small fakes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from cotenant_agent.storage.durable_files import write_json
from tests.support.fake_scheduler import FakeScheduler
from tests.support.loaded_programs import living_programs, start_program
from tests.support.scheduler_process import wait_until as wait_until

GPU = "standin-node-a-0"
CORES = sorted(os.sched_getaffinity(0))
"""On which this process may run, and an agent's stand-in devices may be."""
STANDIN = ("--standin-cores", str(CORES[0]))
TWO_STANDINS = ("--standin-cores", ",".join(map(str, CORES[:2])))
REPOSITORY = Path(__file__).resolve().parents[2]

# Counts steps, answers stops with a checkpoint, and continues from one.
TRAINING = """
import os, sys, time
from cotenant import job
start = job.resume_step()
total, step_s, gates = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
print("start at", start, flush=True)
def look(done):
    if job.should_checkpoint() or job.should_stop():
        path = job.checkpoint_directory() / f"step-{done}.txt"
        path.write_text(str(done))
        job.checkpointed(path, done)
        print("checkpoint at", done, flush=True)
    if job.should_stop():
        job.leave()
for step in range(start, total):
    time.sleep(step_s)
    while step == total - 1 and not all(map(os.path.exists, gates)):
        look(step)
        time.sleep(0.01)
    job.report(step + 1, epoch=step // 10, loss=1.0 / (step + 1))
    look(step + 1)
print("end at", total, flush=True)
"""
"""Steps, their seconds, and files without which the last step is not made: till then it runs on any machine."""


class Dialled(Protocol):
    """A scheduler, real or not, as far as an agent cares."""

    @property
    def address(self) -> str:
        """Host and port."""


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest closes its own whenever it starts anew, in another process too."""
    with tempfile.TemporaryDirectory(prefix="cotenant-test-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


class AgentProcess:
    """`python -m cotenant_agent run` in a process of its own."""

    def __init__(
        self,
        state: Path,
        scheduler: Dialled,
        *flags: str,
        devices: Sequence[str] = STANDIN,
        program: str = "cotenant_agent",
    ) -> None:
        self.state = state
        self._log = state.parent / f"{state.name}.stderr"
        arguments = [
            "--scheduler", scheduler.address, "--node-id", "node-a", "--state-dir", str(state), *devices,
            "--no-cgroups", "--sample-ms", "100", "--allow-directory", str(state.parent), *flags,
        ]  # fmt: skip
        with self._log.open("ab") as stream:
            self._process = start_program(
                program, ["run", *arguments], folder=REPOSITORY, environment=os.environ, output=None, errors=stream
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait for the agent's own end; returns the exit code."""
        return self._process.wait(timeout=90)

    def output(self) -> str:
        """The structured log of every agent that used this state directory."""
        return self._log.read_text()


@contextlib.contextmanager
def running_agent(
    state: Path, scheduler: FakeScheduler, *flags: str, devices: Sequence[str] = STANDIN
) -> Iterator[AgentProcess]:
    """An agent that has said Hello; afterwards it and all its jobs are gone."""
    prepare_baseline(state)
    agent = AgentProcess(state, scheduler, *flags, devices=devices)
    try:
        scheduler.wait_for_hello()
        yield agent
    finally:
        agent.kill()
        end_jobs(state)


def prepare_baseline(state: Path) -> None:
    """Write down an import baseline, so that not every test measures one."""
    state.mkdir(parents=True, exist_ok=True)
    figures = {"baseline_bytes": 8 << 20, "ended_bytes": 8 << 20}
    record = {"executable": sys.executable, "torch": importlib.metadata.version("torch"), **figures}
    write_json(state / "standin_baseline.json", record)


def end_jobs(state: Path) -> None:
    """Kill the agents and shims of a state directory; the jobs die with their shims."""
    for pid in find_processes(str(state)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not find_processes(str(state)), "agents and shims are gone")


def find_processes(*texts: str) -> list[int]:
    """Living processes with all of the texts in their command line.

    Other tests run at the same time: one of the texts should be of this test alone, such as its folder.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if all(text.encode() in command for text in texts):
                    found.append(int(entry.name))
    return [*found, *living_programs(*texts)]


def find_early_processes(folder: Path) -> list[int]:
    """Programs that were started early, or have begun after that, with the folder in their command line."""
    return sorted(find_processes("prepared_program.py", str(folder)))


def write_script(directory: Path, source: str, name: str = "script.py") -> str:
    """Store a script; returns its path."""
    path = directory / name
    path.write_text(source)
    return str(path)
