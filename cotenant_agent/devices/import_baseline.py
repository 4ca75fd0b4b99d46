"""What a process holds that has only imported the framework: on a stand-in device that plays the CUDA context.

Some builds hold more at the end than before: their libraries unload, and page in what nobody had read (torch 2.13 with
its CUDA libraries: 502 MiB, and 625 at its end). The kernel's record of an ended process knows its highest point only.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant_agent.errors import DeviceError
from cotenant_agent.storage.durable_files import read_integer, read_json, read_text, write_json

_TIMEOUT_S: Final = 120
_SAID_CHARACTERS_MAX: Final = 300
_MEASURE: Final = """
import importlib.util, os, sys
child = os.fork()
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
_VERSION: Final = """
import importlib.metadata
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


def measure_baseline(state_directory: Path, executable: str = sys.executable) -> ImportBaseline:
    """Measure an interpreter that imports the framework and ends; once per interpreter and version.

    Args:
        state_directory: Where the figures are kept.
        executable: The interpreter that jobs run.

    Raises:
        DeviceError: The interpreter does not run.
    """
    kept = state_directory / "standin_baseline.json"
    version = _run(executable, _VERSION).strip()
    record = read_json(kept)
    resident_bytes, ended_bytes = (read_integer(record, name) for name in ("baseline_bytes", "ended_bytes"))
    is_known = read_text(record, "executable") == executable and read_text(record, "torch") == version
    if not is_known or ended_bytes == 0:  # written before the end was measured
        resident_bytes, peak_bytes = map(int, _run(executable, _MEASURE).split())
        ended_bytes = max(resident_bytes, peak_bytes)
        figures = {"baseline_bytes": resident_bytes, "ended_bytes": ended_bytes}
        write_json(kept, {"executable": executable, "torch": version, **figures})
    return ImportBaseline(resident_bytes=resident_bytes, ended_bytes=ended_bytes)


def _run(executable: str, program: str) -> str:
    try:
        return subprocess.run(
            [executable, "-c", program], check=True, capture_output=True, text=True, timeout=_TIMEOUT_S
        ).stdout
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().rpartition("\n")[2][:_SAID_CHARACTERS_MAX] or f"exit status {error.returncode}"
        raise DeviceError(
            f"cannot measure the import baseline with {executable}: {said}; see that `import torch` works there, or "
            "that there is none"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"cannot measure the import baseline with {executable}: {error}") from error
