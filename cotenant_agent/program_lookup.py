"""Finds the program that a command names, and reports before the start what would keep it from starting."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cotenant_agent.errors import CommandRefusedError

NOT_RUNNABLE = "COMMAND_NOT_RUNNABLE"
_HEAD_BYTES = 256
"""As much of a script's first line as Linux reads."""
_SHOWN_PATH_CHARACTERS = 400


def find_program(name: str, *, working_directory: str, search_path: str) -> str:
    """The path of a program as a shell would find it: a bare name on the search path, else from the directory.

    Args:
        name: first word of the command.
        working_directory: where a relative path starts.
        search_path: directories of a PATH variable; an empty one is the working directory.

    Raises:
        CommandRefusedError: no directory of the search path has a program of this name.
    """
    if "/" in name:
        return str(Path(working_directory, name))
    for folder in search_path.split(os.pathsep):
        candidate = Path(working_directory, folder, name)
        if _is_program(candidate):
            return str(candidate)
    raise CommandRefusedError(
        NOT_RUNNABLE, f"no program {name!r} on PATH ({search_path[:_SHOWN_PATH_CHARACTERS]}); name it by its path, or "
        "submit the PATH that has it: --env PATH=...",
    )  # fmt: skip


def check_program(path: str, *, working_directory: str, search_path: str) -> None:
    """Make sure that Linux would start a program: a plain, executable file whose interpreter is there.

    Raises:
        CommandRefusedError: it would not; the message names cause and remedy.
    """
    try:
        is_file = stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError) as error:
        raise _refusal(path, f"cannot be found ({getattr(error, 'strerror', None) or error}); check the path") from None
    if not is_file:
        raise _refusal(path, "is not a file")
    if not os.access(path, os.X_OK):
        raise _refusal(path, "is not executable: chmod +x it, or put its interpreter first, e.g. bash or python")
    head = _read_head(path)
    if head is None:
        return
    if head.startswith(b"#!"):
        _check_interpreter(path, head, working_directory, search_path)
    elif not head.startswith(b"\x7fELF") and b"\0" not in head:
        raise _refusal(path, "is a text without a #! line: add one, or put its interpreter first, e.g. bash or python")


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
        except CommandRefusedError as error:
            raise _refusal(path, f"asks env for an interpreter that is missing: {error.message}") from None


def _is_program(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


def _read_head(path: str) -> bytes | None:
    """First bytes of a file; None where it may be executed and not read."""
    try:
        # Never waits, whatever has been put in the file's place meanwhile.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(descriptor, _HEAD_BYTES)
    finally:
        os.close(descriptor)


def _refusal(path: str, finding: str) -> CommandRefusedError:
    return CommandRefusedError(NOT_RUNNABLE, f"{path} {finding}")
