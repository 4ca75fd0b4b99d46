"""`cotenant up` as a process, and the command line pointed at it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.agent import end_jobs
from tests.support.interruptions import ended_when_killed
from tests.support.loaded_programs import run_program

ROOT = Path(__file__).resolve().parents[2]
COTENANT = (sys.executable, "-c", "from cotenant.cli.main import main; main()")


@dataclass(frozen=True)
class RealCluster:
    """A running `cotenant up`.

    Attributes:
        process: Its process.
        environment: What points the command line at it.
        state_dir: Where its programs keep their data and logs.
    """

    process: subprocess.Popen[str]
    environment: dict[str, str]
    state_dir: Path = Path()

    def cotenant(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Runs one verb against the cluster."""
        return run_program("cotenant", arguments, folder=ROOT, environment=self.environment, timeout_s=timeout_s)


@contextmanager
def real_cluster(
    state_dir: Path, *flags: str, with_standin: bool = True, program: Sequence[str] = COTENANT
) -> Iterator[RealCluster]:
    """Starts `cotenant up` on free ports, with one stand-in device or the real GPUs; its jobs end with it.

    `up` itself leaves its jobs to the next one: what is on a state that no other `up` will find is ended here.
    """
    standin = ["--standin-cores", str(max(os.sched_getaffinity(0)))] if with_standin else []
    command = [*program, "up", "--state-dir", str(state_dir), "--predictor-port", "0", "--scheduler-port", "0"]
    command += [*standin, "--allow-directory", str(ROOT), *flags]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(state_dir / "config"), "COLUMNS": "80"}
    with (state_dir / "up.err").open("w") as errors, ended_when_killed(state_dir):
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            exports = _read_exports(process)
            yield RealCluster(process=process, environment={**environment, **exports}, state_dir=state_dir)
        finally:
            try:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)
            finally:
                end_jobs(state_dir)


def _read_exports(process: subprocess.Popen[str]) -> dict[str, str]:
    exports: dict[str, str] = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, _, value = line.removeprefix("export ").strip().partition("=")
        exports[name] = value
        if {"COTENANT_SCHEDULER", "COTENANT_PREDICTOR"} <= exports.keys():
            return exports
    raise AssertionError(f"cotenant up ended with {process.wait()}; its words are in up.err")
