"""Runs a script under watch until it has told of one step, and leaves none of its processes behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cotenant import process_tree, system_clock
from cotenant.client_errors import ProgramError

PACKAGE: Final = "cotenant.capture.in_script"
ENTRY: Final = "cotenant.capture.in_script.entry"
# Never imported here: the script's own Python finds them by the two folders.
FOUND_BY_THE_SCRIPT: Final = (
    "cotenant.capture.in_script.entry.sitecustomize",
    "cotenant.capture.in_script.torch_watch",
)
START: Final = "cotenant.capture.isolated_start"
CPU_S: Final = 120
EXPORT_CPU_S: Final = 120
WALL_S: Final = 900
NOT_ALLOWED_STATUS: Final = 97
NO_PROGRAM_STATUS: Final = 96
USAGE_STATUS: Final = 2
"""Of argparse and of click, where arguments are missing."""
_OF_OTHER_CAUSES: Final = ("ModuleNotFoundError:", "ImportError:", "FileNotFoundError:", "EOFError:")
LOG_READ_BYTES: Final = 32_000
LOG_LIMIT_BYTES: Final = 64 << 20
# Trackers would ask for a login or write into the home folder; compilation costs more than the two steps. Threads that
# wait for others spin by default: three captures at once on 16 cores used up their CPU time in the first pass so.
_QUIET: Final[Mapping[str, str]] = {
    "TORCH_COMPILE_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:///dev/null",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptPlan:
    """How a script is run.

    Attributes:
        command: Its words.
        directory: Where it runs.
        environment: Variables on top of this process's own.
        isolated: In an overlay without network.
        memory_bytes: Most that one of its processes may allocate.
        cpu_s: CPU seconds of one process until its first whole step.
        has_gpu: Whether it is told that there is a GPU, on which nothing is computed.
    """

    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    isolated: bool
    memory_bytes: int
    cpu_s: int = CPU_S
    has_gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOutcome:
    """What became of it.

    Attributes:
        result: What the recorder wrote; empty = nothing.
        status: Exit status of the command; None = ended by us.
        has_started: Whether a Python took part.
        has_torch: Whether one imported torch.
        has_stepped: Whether an optimizer of torch has stepped in it.
        has_asked_gpu: Whether it ended by itself after it had asked for a GPU.
        log: The end of what the script printed.
        not_isolated: Why the overlay could not be; empty = it could, or was not wanted.
    """

    result: Mapping[str, Any]
    status: int | None
    has_started: bool
    has_torch: bool
    has_stepped: bool
    log: str
    not_isolated: str
    has_asked_gpu: bool = False

    @property
    def may_want_gpu(self) -> bool:
        """Whether it may have ended because it was told that there is no GPU."""
        last = self.log.rstrip().rpartition("\n")[2]
        is_other = self.status == USAGE_STATUS or last.startswith(_OF_OTHER_CAUSES)
        return self.has_asked_gpu and not self.has_stepped and not self.result and not is_other


@contextmanager
def capture_folder() -> Iterator[Path]:
    """A folder of its own for one capture, removed at the end, and when this program is told to end meanwhile."""
    with _interrupted_by_its_end(), tempfile.TemporaryDirectory(prefix="cotenant-capture-") as folder:
        yield Path(folder).resolve()


@contextmanager
def _interrupted_by_its_end() -> Iterator[None]:
    """A closed terminal or a polite stop ends the script as Ctrl-C does: it runs in a session of its own."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    # What is ignored (nohup) or caught by a program that calls this one stays so.
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def run_script(plan: ScriptPlan, folder: Path) -> ScriptOutcome:
    """Runs the script until a step is known, its end, or its time is over.

    Raises:
        ProgramError: It took too long, or printed without end.
    """
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps(_as_content(plan, folder)), encoding="utf-8")
    (folder / "stage").mkdir(exist_ok=True)
    process_tree.adopt_orphans()
    staying = frozenset(each.pid for each in process_tree.descendants(os.getpid()))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_place(START)), str(plan_file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = _wait(process, folder)
        finally:
            _end(process, staying)
            process_tree.adopt_orphans(wanted=False)
    return _outcome(folder, status)


def _as_content(plan: ScriptPlan, folder: Path) -> dict[str, Any]:
    for module in FOUND_BY_THE_SCRIPT:
        _place(module)
    environment = {**os.environ, **plan.environment, **_QUIET}
    path = [str(_place(ENTRY).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(each for each in path if each)
    environment["COTENANT_CAPTURE_FOLDER"] = str(folder)
    environment["COTENANT_CAPTURE_GPU"] = "1" if plan.has_gpu else ""
    environment["COTENANT_CAPTURE_PACKAGE"] = str(_place(PACKAGE).parent)
    return {
        "command": list(plan.command),
        "directory": str(plan.directory),
        "environment": environment,
        "isolated": plan.isolated,
        "folder": str(folder),
        "overlay_bytes": plan.memory_bytes,
        "memory_bytes": plan.memory_bytes,
        "cpu_s": plan.cpu_s,
        "export_cpu_s": EXPORT_CPU_S,
    }


def _place(module: str) -> Path:
    """File of a module that is started, not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ProgramError(f"{module} is missing", remedy="install cotenant again")
    return Path(spec.origin)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> int | None:
    deadline_ms = system_clock.steady_ms() + WALL_S * 1000
    result, log = folder / "result.json", folder / "log"
    while process.poll() is None:
        if result.exists():
            return None
        if system_clock.steady_ms() > deadline_ms:
            raise ProgramError(
                f"the script came to no optimizer step within {WALL_S} s",
                remedy="let it begin with less data, or submit it without a graph",
            )
        if log.stat().st_size > LOG_LIMIT_BYTES:
            raise ProgramError(
                f"the script printed more than {LOG_LIMIT_BYTES >> 20} MiB before its second optimizer step",
                remedy="let it print less",
            )
        system_clock.wait_ms(50)
    return process.returncode


def _end(process: subprocess.Popen[bytes], staying: frozenset[int]) -> None:
    """Kills the script with all that it has started; orphans of it have become our children."""
    for _ in range(20):
        left = [each for each in process_tree.descendants(os.getpid()) if each.pid not in staying]
        if not left:
            break
        process_tree.kill_all(left)
        system_clock.wait_ms(20)
    process.wait()


def _outcome(folder: Path, status: int | None) -> ScriptOutcome:
    result_file, reason_file = folder / "result.json", folder / "not-isolated"
    with (folder / "log").open("rb") as log:
        log.seek(max(0, (folder / "log").stat().st_size - LOG_READ_BYTES))
        end = log.read().decode(errors="replace")
    return ScriptOutcome(
        result=json.loads(result_file.read_text(encoding="utf-8")) if result_file.exists() else {},
        status=status,
        has_started=(folder / "started").exists(),
        has_torch=(folder / "torch").exists(),
        has_stepped=(folder / "stepped").exists(),
        has_asked_gpu=(folder / "asked-gpu").exists(),
        log=end,
        not_isolated=reason_file.read_text(encoding="utf-8") if reason_file.exists() else "",
    )
