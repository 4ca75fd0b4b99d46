"""Shims as processes of their own, with a directory and nothing else."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cotenant_agent.keeper import shim as shim_module
from cotenant_agent.processes import read_boot_id
from tests.support.agent import find_processes, wait_until

SHIM = [sys.executable, "-I", "-S", "-E", str(Path(shim_module.__file__))]


class Bench:
    """Directories in which shims are started, each with the spec of one attempt."""

    def __init__(self, root: Path, *, with_namespaces: bool = False) -> None:
        self.root = root
        self._namespaces: Mapping[str, list[str]] | None = {"covered": [], "kept": []} if with_namespaces else None
        self.processes: list[subprocess.Popen[bytes]] = []

    def prepare(self, source: str, *, name: str = "job.1", changes: Mapping[str, object] | None = None) -> Path:
        directory = self.root / "jobs" / name
        directory.mkdir(parents=True)
        spec = {
            "job_id": name.rpartition(".")[0], "attempt": 1, "fence": 1, "boot_id": read_boot_id(),
            "argv": [sys.executable, "-S", "-c", source], "environment": {"MARK": "kept"}, "log_limit_bytes": 1 << 20,
            "working_directory": str(self.root), "namespaces": self._namespaces, **(changes or {}),
        }  # fmt: skip
        (directory / "spec.json").write_text(json.dumps(spec))
        return directory

    def start(self, directory: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*SHIM, str(directory)], start_new_session=True)
        self.processes.append(process)
        return process

    def run(self, source: str, **changes: object) -> dict[str, object]:
        directory = self.prepare(source, changes=changes)
        assert self.start(directory).wait(90) == 0
        return dict(json.loads((directory / "exit.json").read_text()))

    def stop(self, directory: Path, grace_ms: int = 20_000) -> dict[str, object]:
        """Ask for the end of an attempt and wait for it; returns its exit record."""
        (directory / "stop.json").write_text(json.dumps({"cause": "stopped", "grace_ms": grace_ms}))
        wait_until((directory / "exit.json").exists, "the attempt has ended")
        return dict(json.loads((directory / "exit.json").read_text()))


def state_of(pid: int) -> str:
    """The letter of a process's state: T = stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for_looks(pid: int, looks: int = 5) -> None:
    """Wait until a shim has looked at the files of its attempt so often more, however busy the machine is.

    Args:
        pid: The shim's.
        looks: How often it has to wait, which it does between two looks.
    """
    before = _waits(pid)
    wait_until(lambda: _waits(pid) > before + looks, "the shim has looked at its files")


def _waits(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@contextlib.contextmanager
def running_shims(root: Path, *, with_namespaces: bool = False) -> Iterator[Bench]:
    """A bench; afterwards its shims are gone, and nothing of their jobs may be left."""
    bench = Bench(root, with_namespaces=with_namespaces)
    try:
        yield bench
    finally:
        for process in bench.processes:
            process.kill()
            process.wait()
    wait_until(lambda: not find_processes(str(root / "jobs")), "nothing of the jobs is left")
