"""Where a network, while it is exported, makes a constant of its batch: then its graph holds for one batch only."""

# ruff: noqa: ANN401 (torch is the script's own: it is handed in, and nothing of it has a type here)
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_MAKERS_OF_CONSTANTS = ("__int__", "__index__")
"""What `int(x.shape[0])`, `len(x)` and `range(x.shape[0])` ask of a size that is not known yet."""


class BatchConstants:
    """While it is entered, the first line of a script that makes a Python number of a size is remembered.

    Args:
        torch: The script's; where it reads a network instead of running it, or has no such sizes, no line is known.

    Attributes:
        place: The line as "train.py:42", relative to the working directory; empty = none is known.
    """

    def __init__(self, torch: Any) -> None:
        self.place = ""
        self._kind: Any = getattr(torch, "SymInt", None)
        self._own: dict[str, Callable[[Any], int]] = {}

    def __enter__(self) -> BatchConstants:
        known = vars(self._kind) if self._kind is not None else {}
        self._own = {name: known[name] for name in _MAKERS_OF_CONSTANTS if name in known}
        for name, own in self._own.items():
            setattr(self._kind, name, self._noting(own))
        return self

    def __exit__(self, *_: object) -> None:
        for name, own in self._own.items():
            setattr(self._kind, name, own)

    def _noting(self, own: Callable[[Any], int]) -> Callable[[Any], int]:
        def noted(size: Any) -> int:
            self.place = self.place or _line_of_script()
            return own(size)

        return noted


def _line_of_script() -> str:
    """The innermost line that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    ours = __name__.rpartition(".")[0]
    while frame is not None and _is_within(str(frame.f_globals.get("__name__", "")), ("torch", ours)):
        frame = frame.f_back
    return f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
