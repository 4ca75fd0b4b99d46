"""Waits until the script imports torch, then puts the recorder in place; libraries on top of it are redirected too."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from .cpu_redirect import redirect_to_cpu
from .library_redirect import LIBRARIES, redirect_library
from .recorder import Recorder

STARTED_FILE = "started"
TORCH_FILE = "torch"
ASKED_FILE = "asked-gpu"
"""There where a script that has ended had asked for a GPU."""


def begin_watch() -> None:
    """Notes that this Python takes part in the capture, and waits for torch."""
    folder = Path(os.environ["COTENANT_CAPTURE_FOLDER"])
    (folder / STARTED_FILE).touch()
    finder = _Finder(folder)
    if "torch" in sys.modules:  # the script's own sitecustomize has imported it
        finder.take(sys.modules["torch"])
    sys.meta_path.insert(0, finder)


class _Finder(MetaPathFinder):
    """Hands out the own loaders of torch and of libraries on top of it, with one more deed at their end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._awaited = {"torch", *LIBRARIES}
        self._recorder: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module as it would have been found."""
        if fullname not in self._awaited:
            return None
        self._awaited.remove(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.take)
        return spec

    def take(self, module: ModuleType) -> None:
        """Installs the recorder in torch, or redirects a library."""
        self._awaited.discard(module.__name__)
        if module.__name__ == "torch":
            self._recorder = _install(module, self._folder)
        elif self._recorder is not None:
            redirect_library(module, self._recorder.requested)


class _Loader(Loader):
    """Loads a module, then does the deed."""

    def __init__(self, own: Any, deed: Callable[[ModuleType], None]) -> None:
        self._own = own
        self._deed = deed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Creates the module as its own loader does."""
        created: ModuleType | None = self._own.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """Executes the module, then does the deed."""
        self._own.exec_module(module)
        self._deed(module)


def _install(torch: Any, folder: Path) -> Recorder:
    (folder / TORCH_FILE).touch()
    recorder = Recorder(torch, folder)
    recorder.requested = redirect_to_cpu(torch)
    recorder.install()
    atexit.register(lambda: (folder / ASKED_FILE).touch() if recorder.requested.cuda_asked else None)

    def stop_at_limit(number: int, frame: FrameType | None) -> None:
        recorder.note_limit()

    signal.signal(signal.SIGXCPU, stop_at_limit)
    return recorder
