"""What a process holds that has only imported the framework: on a stand-in device that plays the CUDA context.

Some builds hold more at the end than before: their libraries unload, and page in what nobody had read (torch 2.13 with
its CUDA libraries: 502 MiB, and 625 at its end). The kernel's record of an ended process knows its highest point only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from cotenant_agent.errors import DeviceError
from cotenant_agent.storage.durable_files import read_integer, read_json, read_text, write_json

_TIMEOUT_S: Final = 120
_LIFE_S: Final = 125
"""After which such a process ends by itself: an agent that is killed ends none."""
_SAID_CHARACTERS_MAX: Final = 300
_REMEDY: Final = "see that `import torch` works there, or that there is none"
_NO_FRAMEWORK: Final = "none"
OnStart: TypeAlias = Callable[["subprocess.Popen[str]"], None]
_MEASURE: Final = f"""
import importlib.util, os, signal, sys
child = os.fork()
signal.alarm({_LIFE_S})
if not child:
    if importlib.util.find_spec("torch"):
        import torch
    with open("/proc/self/statm") as statm:
        print(int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), flush=True)
    sys.exit()
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""
_VERSION: Final = f"""
import importlib.metadata, signal
signal.alarm({_LIFE_S})
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    print("none")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportBaseline:
    """Of one interpreter and version of the framework.

    Attributes:
        resident_bytes: Resident set after the import.
        ended_bytes: The highest one in the life of a process that does nothing more; not below `resident_bytes`.
    """

    resident_bytes: int
    ended_bytes: int


NO_BASELINE: Final = ImportBaseline(resident_bytes=0, ended_bytes=0)
"""Where whole processes are counted."""


def has_framework(executable: str, on_start: OnStart) -> bool:
    """Return whether an interpreter has the framework installed; `on_start` as in `measure_baseline`.

    Raises:
        DeviceError: The interpreter does not run.
    """
    return _run(executable, _VERSION, on_start).strip() != _NO_FRAMEWORK


def measure_baseline(
    state_directory: Path,
    executable: str = sys.executable,
    *,
    kept_name: str = "standin_baseline.json",
    on_start: OnStart = lambda _: None,
) -> ImportBaseline:
    """Measure an interpreter that imports the framework and ends; once per interpreter and version.

    Args:
        state_directory: Where the figures are kept.
        executable: The interpreter that jobs run.
        kept_name: Of the file that keeps the figures.
        on_start: Is told of each process that was begun; it leads a process group.

    Raises:
        DeviceError: The interpreter does not run.
    """
    kept = state_directory / kept_name
    version = _run(executable, _VERSION, on_start).strip()
    record = read_json(kept)
    resident_bytes, ended_bytes = (read_integer(record, name) for name in ("baseline_bytes", "ended_bytes"))
    is_known = read_text(record, "executable") == executable and read_text(record, "torch") == version
    if not is_known or ended_bytes == 0:  # written before the end was measured
        resident_bytes, peak_bytes = map(int, _run(executable, _MEASURE, on_start).split())
        ended_bytes = max(resident_bytes, peak_bytes)
        figures = {"baseline_bytes": resident_bytes, "ended_bytes": ended_bytes}
        write_json(kept, {"executable": executable, "torch": version, **figures})
    return ImportBaseline(resident_bytes=resident_bytes, ended_bytes=ended_bytes)


def _run(executable: str, program: str, on_start: OnStart) -> str:
    try:
        with subprocess.Popen(
            [executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As jobs have it: where this agent imports from is its own matter.
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            start_new_session=True,
        ) as process:
            output, errors = _outputs_of(process, on_start)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"cannot measure the import baseline with {executable}: no end within {_TIMEOUT_S} s; {_REMEDY}"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"cannot measure the import baseline with {executable}: {error}") from error
    if process.returncode:
        said = errors.strip().rpartition("\n")[2][:_SAID_CHARACTERS_MAX] or f"exit status {process.returncode}"
        raise DeviceError(f"cannot measure the import baseline with {executable}: {said}; {_REMEDY}")
    return output


def _outputs_of(process: subprocess.Popen[str], on_start: OnStart) -> tuple[str, str]:
    try:
        on_start(process)
        return process.communicate(timeout=_TIMEOUT_S)
    except BaseException:
        # What it has forked holds the same pipes: nothing of its group is left behind.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
