"""Waits until the script imports torch, then puts the recorder in place."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from .cpu_redirect import redirect_to_cpu
from .recorder import Recorder

STARTED_FILE = "started"
TORCH_FILE = "torch"


def begin_watch() -> None:
    """Notes that this Python takes part in the capture, and waits for torch."""
    folder = Path(os.environ["COTENANT_CAPTURE_FOLDER"])
    (folder / STARTED_FILE).touch()
    if "torch" in sys.modules:  # the script's own sitecustomize has imported it
        _install(sys.modules["torch"], folder)
    else:
        sys.meta_path.insert(0, _TorchFinder(folder))


class _TorchFinder(MetaPathFinder):
    """Hands out torch's own loader with one more deed at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds torch as it would have been found."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _TorchLoader(spec.loader, self._folder)
        return spec


class _TorchLoader(Loader):
    """Loads torch, then installs the recorder."""

    def __init__(self, own: Any, folder: Path) -> None:
        self._own = own
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Creates the module as its own loader does."""
        created: ModuleType | None = self._own.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """Executes the module, then installs the recorder."""
        self._own.exec_module(module)
        _install(module, self._folder)


def _install(torch: Any, folder: Path) -> None:
    (folder / TORCH_FILE).touch()
    recorder = Recorder(torch, folder)
    recorder.requested = redirect_to_cpu(torch)
    recorder.install()

    def stop_at_limit(number: int, frame: FrameType | None) -> None:
        recorder.note_limit()

    signal.signal(signal.SIGXCPU, stop_at_limit)
