"""A real Ray in a network namespace that has nothing but loopback: two nodes on this machine, with fake GPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON_VARIABLE = "COTENANT_RAY_PYTHON"
_START_S = 240
_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_raylet_start_wait_time_s": str(_START_S),
    # By default whether nodes ask for a token depends on whether some earlier Ray has left one in the home folder.
    "RAY_AUTH_MODE": "disabled",
}


def ray_python() -> Path:
    """Return the Python of an environment with cotenant[ray]: named by a variable, else what `make ray-test` made."""
    return Path(os.environ.get(PYTHON_VARIABLE) or ROOT / ".venv-ray" / "bin" / "python")


def missing_for_ray() -> list[str]:
    """Return what is missing to start a Ray here."""
    missing = [] if ray_python().exists() else [f"{ray_python()} (make ray-test makes it)"]
    missing += [program for program in ("unshare", "ip") if shutil.which(program) is None]
    return missing or (["root rights"] if os.geteuid() else [])


def run_in_namespace(module: str, *words: str, timeout_s: float) -> Any:
    """Run a module with Ray's Python where only loopback is; return the JSON of its last line.

    Raises:
        RuntimeError: It fails; with the end of what it said.
    """
    command = f"ip link set lo up && exec {ray_python()} -m {module} " + " ".join(words)
    # The end of the process namespace ends every process of Ray.
    isolated = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **_VARIABLES}
    done = subprocess.run(
        isolated, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0 or not done.stdout.strip():
        # What Ray's own daemons say of their end hides why the module ended.
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "[state-dump]" not in line]
        raise RuntimeError(f"{module} ended with {done.returncode}:\n" + "\n".join(lines)[-8000:])
    return json.loads(done.stdout.splitlines()[-1])


class RayCluster:
    """Ray's head and further nodes, and a scheduler that decides; a context manager, inside of the namespace.

    Args:
        nodes: Names, with two GPUs each.
        gpus: Of each node.
    """

    def __init__(self, nodes: tuple[str, ...] = ("n1", "n2"), *, gpus: int = 2) -> None:
        self._nodes = nodes
        self._gpus = gpus
        self.folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        self._programs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RayCluster:
        head, *others = self._nodes
        self._ray("--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={self.folder}/ray", name=head)
        for name in others:
            self._ray("--address=127.0.0.1:6379", name=name)
        ready = self.folder / "scheduler.ready"
        self._programs.append(self._start_scheduler(ready))
        _wait_until(ready.exists)
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
            program.wait()
        self.ray("stop", "--force")
        shutil.rmtree(self.folder, ignore_errors=True)

    def bridge(self, *words: str, log: str = "bridge.log") -> subprocess.Popen[bytes]:
        """Start `cotenant engine ray`."""
        with (self.folder / log).open("ab") as file:
            started = subprocess.Popen(
                [ray_python().parent / "cotenant", "engine", "ray", *words], cwd=ROOT, stdout=file, stderr=file
            )
        self._programs.append(started)
        return started

    def cotenant(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command of cotenant."""
        return subprocess.run(
            [ray_python().parent / "cotenant", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def ray(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of Ray's own commands."""
        command = [str(ray_python().parent / "ray"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_S)

    def log(self, name: str = "bridge.log") -> str:
        """Return what a bridge said."""
        return (self.folder / name).read_text()

    def _ray(self, *words: str, name: str) -> None:
        done = self.ray(
            "start", *words, f"--node-name={name}", "--node-ip-address=127.0.0.1", "--num-cpus=8",
            f"--num-gpus={self._gpus}", "--object-store-memory=80000000", "--memory=2000000000",
            "--disable-usage-stats",
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"ray start: {done.stdout[-2000:]} {done.stderr[-2000:]}")

    def _start_scheduler(self, ready: Path) -> subprocess.Popen[bytes]:
        python = ROOT / ".venv" / "bin" / "python"
        flags = ["--state-dir", str(self.folder / "scheduler"), "--ready-file", str(ready), "--metrics-address", ""]
        with (self.folder / "scheduler.log").open("wb") as log:
            return subprocess.Popen(
                [python, "-m", "scheduler_service", "serve", *flags], cwd=ROOT, stdout=log, stderr=log
            )


def wait_for(what: Mapping[str, object] | Any, holds: Any, *, seconds: float = 60.0) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: It does not; with what is there instead.
    """
    try:
        _wait_until(holds, seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {what() if callable(what) else what}") from None


def _wait_until(holds: Any, seconds: float = 60.0) -> None:
    end_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.1)
