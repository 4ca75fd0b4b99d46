"""Builds the fake driver library, puts it where the real binding finds it, and drives it through its state file."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parent / "fake_nvml" / "fake_nvml.c"
_NAME = "libnvidia-ml.so.1"


def build_library(directory: Path) -> Path:
    """Compile the library; returns its path."""
    library = directory / _NAME
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{_NAME}"]
    subprocess.run([*command, "-o", str(library), str(_SOURCE)], check=True)
    return library


def load_library(library: Path) -> None:
    """Make this process's loader answer with the fake whenever a program opens the driver by its name."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class FakeDriver:
    """The state file; every change is seen by the next call of the library."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._now_us = 1_000_000
        os.environ["FAKE_NVML_STATE"] = str(path)
        self._store()

    def add_gpu(
        self, uuid: str, *, total_bytes: int, used_bytes: int = 0, percent: int = 0, name: str = "FakeGPU"
    ) -> None:
        """Blanks in a name are written as underscores, as of all words of the state file."""
        self._lines.append(f"gpu {uuid} {name} {total_bytes} {used_bytes} {percent} 250000")
        self._store()

    def add_slice(self, gpu: str, uuid: str, *, total_bytes: int, used_bytes: int = 0) -> None:
        self._lines.append(f"slice {uuid} FakeGPU_MIG_1g.5gb {total_bytes} {used_bytes} {gpu}")
        self._store()

    def cut(self, uuid: str) -> None:
        """Put a GPU into MIG mode."""
        self._lines.append(f"mig {uuid}")
        self._store()

    def add_process(self, uuid: str, pid: int, *, used_bytes: int, percent: int) -> None:
        self._lines.append(f"process {uuid} {pid} {used_bytes} {percent}")
        self._store()

    def take_out(self, uuid: str) -> None:
        """Forget a GPU, or a slice of one."""
        self._lines = [line for line in self._lines if line.split()[1] != uuid]
        self._store()

    def lose(self, uuid: str) -> None:
        self._lines.append(f"lost {uuid}")
        self._store()

    def find_again(self, uuid: str) -> None:
        self._lines.remove(f"lost {uuid}")
        self._store()

    def withdraw(self, function: str) -> None:
        self._lines.append(f"unsupported {function}")
        self._store()

    def break_driver(self, code: int = 0) -> None:
        self._lines.append(f"broken {code or 'driver'}")
        self._store()

    def advance(self) -> None:
        """Let a second pass: the driver's ring buffers hold new samples."""
        self._now_us += 1_000_000
        self._store()

    def _store(self) -> None:
        temporary = self._path.with_suffix(".new")
        temporary.write_text("\n".join([*self._lines, f"now {self._now_us}", ""]))
        temporary.replace(self._path)
