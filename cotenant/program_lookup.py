"""Finds the program that a command names, and reports before the start what would keep it from starting.

Used by the node agent before every start, and by a scheduler that sees the same files when a job is submitted.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path, PurePath

_HEAD_BYTES = 256
"""As much of a script's first line as Linux reads."""
_SHOWN_CHARACTERS = 400
"""Of a name or a search path: one word of a command may have 128 KiB, which no answer of a service takes."""
NOTEBOOK = ".ipynb"
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_SHELL = re.compile(r"(?:ba|da|z|k)?sh")
# Options that stand alone: behind any other one the next word may be its own, or a program's text.
_PLAIN_OPTION = {_PYTHON: re.compile(r"-[bBdEiIOPqsSuvx]+"), _SHELL: re.compile(r"-[elux]+")}

_TORCHRUN = "torchrun"
_TORCHRUN_SWITCHES = frozenset({"standalone"})
_TORCHRUN_VALUES = frozenset({
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "role", "tee",
    "monitor-interval", "start-method", "log-dir", "redirects", "local-ranks-filter", "node-rank", "master-addr",
    "master-port", "local-addr",
})  # fmt: skip


# Shells know these themselves; a program of such a name, where there is one, does nothing that outlives it.
_WORDS_OF_SHELLS = frozenset(
    {".", "alias", "cd", "eval", "exec", "export", "module", "set", "source", "ulimit", "unset"}
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class NotRunnableError(Exception):
    """A command names no program that Linux would start.

    Attributes:
        message: Cause and remedy.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def find_program(name: str, *, working_directory: str, search_path: str) -> str:
    """Returns the path of a program as a shell would find it: a bare name on the search path, else from the directory.

    Args:
        name: First word of the command.
        working_directory: Where a relative path starts.
        search_path: Directories of a PATH variable; an empty one is the working directory.

    Raises:
        NotRunnableError: No directory of the search path has a program of this name.
    """
    if "/" in name and (not misread(name) or _mode(Path(working_directory, name))):
        return str(Path(working_directory, name))
    for folder in search_path.split(os.pathsep):
        candidate = Path(working_directory, folder, name)
        if _is_program(candidate):
            return str(candidate)
    raise NotRunnableError(
        misread(name)
        or f"no program {_shown(name)!r} on PATH ({_shown(search_path)}); {_remedy(name, working_directory)}"
    )


def _remedy(name: str, working_directory: str) -> str:
    if stat.S_ISREG(_mode(Path(working_directory, name))):
        return f"the file in {working_directory} is ./{name}; where it is no program, put bash or python before it"
    return "name it by its path, or submit the PATH that has it: --env PATH=..."


def misread(name: str) -> str:
    """Returns what a first word is that was meant for a shell, with the remedy; empty = nothing of the kind.

    Args:
        name: First word of a command.
    """
    # A line in quotes may begin with variables as well.
    if _ASSIGNMENT.fullmatch(name) and not re.search(r"\s", name):
        return f"it is a variable: submit it as --env {shlex.quote(_shown(name))}, before the --"
    if name in _WORDS_OF_SHELLS:
        return "it is a word of shells: put the whole line behind bash -c in quotes; --workdir names a folder"
    if name.endswith(NOTEBOOK):
        return as_script(name)
    if re.search(r"\s", name):
        return "it is several words in one: take off the quotes around them, or put bash -c before them"
    return ""


def as_script(notebook: str) -> str:
    """Returns how a notebook becomes a script."""
    return f"make a script of it: jupyter nbconvert --to script {shlex.quote(_shown(notebook))}"


def check_program(path: str, *, working_directory: str, search_path: str) -> None:
    """Makes sure that Linux would start a program: a plain, executable file whose interpreter is there.

    Raises:
        NotRunnableError: It would not; the message names cause and remedy.
    """
    try:
        is_file = stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError) as error:
        raise _refusal(path, f"cannot be found ({getattr(error, 'strerror', None) or error}); check the path") from None
    if not is_file:
        raise _refusal(path, "is not a file")
    if path.endswith(NOTEBOOK):
        raise _refusal(path, f"is a notebook: {as_script(path)}")
    if not os.access(path, os.X_OK):
        raise _refusal(path, "is not executable: chmod +x it, or put its interpreter first, e.g. bash or python")
    head = _read_head(path)
    if head is None:
        return
    if head.startswith(b"#!"):
        _check_interpreter(path, head, working_directory, search_path)
    elif not head.startswith(b"\x7fELF") and b"\0" not in head:
        raise _refusal(path, "is a text without a #! line: add one, or put its interpreter first, e.g. bash or python")


def script_of(command: Sequence[str]) -> str:
    """Returns the script that a Python, a shell or torchrun is told to run, as it is written; empty = not certain."""
    program = PurePath(command[0]).name if command else ""
    plain = next((options for names, options in _PLAIN_OPTION.items() if names.fullmatch(program)), None)
    if program == _TORCHRUN:
        word = _behind_options_of_torchrun(command[1:])
    elif plain is not None:
        word = next((word for word in command[1:] if not plain.fullmatch(word)), "")
    else:
        return ""
    # What stands in braces is filled in at the start.
    return "" if word.startswith("-") or "{" in word else word


def _behind_options_of_torchrun(words: Sequence[str]) -> str:
    """Returns the first word that is no option or its value; the first option that is not known, where one is."""
    rest = iter(words)
    for word in rest:
        name, has_value, _ = word.removeprefix("--").replace("_", "-").partition("=")
        if not word.startswith("--") or name not in _TORCHRUN_SWITCHES | _TORCHRUN_VALUES:
            return word
        if name in _TORCHRUN_VALUES and not has_value:
            next(rest, None)
    return ""


def _check_interpreter(path: str, head: bytes, working_directory: str, search_path: str) -> None:
    line = head[2:].split(b"\n")[0]
    if line.endswith(b"\r"):
        raise _refusal(path, "has a #! line that ends as Windows ends lines: convert it, e.g. with dos2unix")
    words = os.fsdecode(line).split()
    if not words:
        raise _refusal(path, "has a #! line that names no interpreter")
    interpreter = Path(working_directory, words[0])
    if not _is_program(interpreter):
        raise _refusal(path, f"needs the interpreter {words[0]}, which is not there or not executable")
    wanted = [word for word in words[1:] if word != "-S"]
    # What `env` is given besides a name is too much to follow here; Linux will say what is wrong with it.
    if interpreter.name == "env" and wanted and not wanted[0].startswith("-") and "=" not in wanted[0]:
        try:
            find_program(wanted[0], working_directory=working_directory, search_path=search_path)
        except NotRunnableError as error:
            raise _refusal(path, f"asks env for an interpreter that is missing: {error.message}") from None


def _is_program(path: Path) -> bool:
    return stat.S_ISREG(_mode(path)) and os.access(path, os.X_OK)


def _mode(path: Path) -> int:
    """Returns kind and rights of what a path names; 0 = nothing, or nothing that can be looked at."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _read_head(path: str) -> bytes | None:
    """Returns the first bytes of a file; None where it may be executed and not read."""
    try:
        # Never waits, whatever has been put in the file's place meanwhile.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(descriptor, _HEAD_BYTES)
    finally:
        os.close(descriptor)


def _refusal(path: str, finding: str) -> NotRunnableError:
    return NotRunnableError(f"{_shown(path)} {finding}")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
