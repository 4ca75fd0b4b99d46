"""Which Python a bare `python` is: the node's own, which may not be that of the shell in which a job is submitted."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

_BARE_PYTHON = re.compile(r"python[0-9.]*")
_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")


def python_of_shell(variables: Mapping[str, str]) -> Path | None:
    """Returns the Python of the environment that a shell has activated; None = none is active."""
    for name in _VARIABLES:
        folder = variables.get(name, "")
        python = Path(folder) / "bin" / "python"
        if folder and python.exists():
            return python
    return None


def foreign_python_note(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Returns what a user must know whose bare `python` will not be that of the active environment; empty = nothing.

    Args:
        command: Of the job.
        environment: Variables that the job brings; with a PATH of its own it knows its Python.
    """
    if not command or not _BARE_PYTHON.fullmatch(command[0]) or "PATH" in environment:
        return ""
    python = python_of_shell(os.environ)
    if python is None or _is_own(python):
        return _torch_note(command[0])
    return f"`{command[0]}` is the node's own Python, not that of the active {python.parent.parent}: write {python}"


def _torch_note(name: str) -> str:
    """What to say where the shell would run another Python, as conda puts one first on PATH, and that one has torch."""
    found = shutil.which(name)
    if found is None or _is_own(Path(found)) or not _has_torch(Path(found)) or find_spec("torch") is not None:
        return ""
    return (
        f"`{name}` is the node's own Python, under `cotenant up` {sys.executable}, which has no torch; {found}, "
        f"the first on your PATH, has it: write {found}"
    )


def _is_own(python: Path) -> bool:
    return python.parent.parent.resolve() == Path(sys.prefix).resolve()


def _has_torch(python: Path) -> bool:
    """Whether torch lies where that Python installs packages; it is not run for that."""
    return any(python.parent.parent.glob("lib*/python3*/*-packages/torch/__init__.py"))


def with_python_of_here(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns a command whose bare `python` is the one next to this program, as on a node of `cotenant up`.

    A job with a PATH, and a shell with an active environment, have a Python of their own: theirs is kept.
    """
    words = list(command)
    if words and _BARE_PYTHON.fullmatch(words[0]) and "PATH" not in environment and not python_of_shell(os.environ):
        words[0] = sys.executable
    return words
