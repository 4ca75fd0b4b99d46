"""What this node runs for a scheduler: its own list, which nothing that the scheduler sends can widen.

The node's file (TOML), named by `--allow-file`, owned by whoever owns the node:

    executables = ["/opt/venv/bin/python"]
    directories = ["/srv/training"]
    environment = ["WANDB_*", "SEED"]

An executable is allowed by its path. Allowing an interpreter allows everything that can be written in its language:
the list then bounds where code is started from, not what it does; use an unprivileged user for that (--job-user).
"""

from __future__ import annotations

import fnmatch
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant_agent.errors import CommandRefusedError, SettingsError

DEFAULT_ENVIRONMENT = (
    "HF_*", "LANG", "LC_*", "MLFLOW_*", "NCCL_*", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "SEED", "TORCH_*", "TZ",
    "WANDB_*",
)  # fmt: skip
_CODE = "COMMAND_NOT_ALLOWED"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """Executables by path, working directories by root, environment variables by pattern."""

    executables: tuple[str, ...]
    directories: tuple[str, ...]
    environment: tuple[str, ...] = DEFAULT_ENVIRONMENT

    def resolve_executable(self, name: str) -> str:
        """The path to execute: an allowed path, or the allowed executable of that bare name.

        Raises:
            CommandRefusedError: it is not on the list.
        """
        allowed = [os.path.normpath(path) for path in self.executables]
        if "/" not in name:
            matching = [path for path in allowed if _same_program(path, str(Path(path).parent / name))]
        else:
            matching = [name] if any(_same_program(path, os.path.normpath(name)) for path in allowed) else []
        if not matching or not os.access(matching[0], os.X_OK):
            raise CommandRefusedError(
                _CODE, f"executable {name!r} is not allowed on this node; allowed: {', '.join(allowed) or 'none'} "
                "(the node's owner adds it with --allow-executable or in the --allow-file)",
            )  # fmt: skip
        return os.path.normpath(matching[0])

    def resolve_directory(self, path: str) -> str:
        """The working directory with every link resolved, inside an allowed root.

        Raises:
            CommandRefusedError: it lies outside the allowed roots, through a link perhaps, or is no directory.
        """
        resolved = os.path.realpath(path)
        roots = [os.path.realpath(root) for root in self.directories]
        inside = any(Path(resolved).is_relative_to(root) for root in roots)
        if not Path(path).is_absolute() or not inside or not Path(resolved).is_dir():
            raise CommandRefusedError(
                _CODE, f"working directory {path!r} is not a directory inside an allowed root; allowed: "
                f"{', '.join(roots) or 'none'} (the node's owner adds one: --allow-directory or --allow-file)",
            )  # fmt: skip
        return resolved

    def check_environment(self, environment: Mapping[str, str]) -> None:
        """Raises CommandRefusedError naming the variables that the list does not cover."""
        refused = sorted(
            name for name in environment if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.environment)
        )
        if refused:
            raise CommandRefusedError(
                _CODE, f"environment variables {', '.join(refused)} are not allowed on this node; allowed: "
                f"{', '.join(self.environment)} (the node's owner adds them with --allow-environment)",
            )  # fmt: skip


def load_allow_list(
    file: Path | None, executables: tuple[str, ...], directories: tuple[str, ...], environment: tuple[str, ...]
) -> AllowList:
    """The list of the node's file and flags together; without a file, this interpreter and the flags.

    Raises:
        SettingsError: the file is unreadable, malformed, holds unknown keys, or others may write to it.
    """
    if file is None:
        found: dict[str, tuple[str, ...]] = {"executables": (sys.executable,), "environment": DEFAULT_ENVIRONMENT}
    else:
        found = _read_file(file)
    return AllowList(
        executables=found.get("executables", ()) + executables,
        directories=found.get("directories", ()) + directories,
        environment=found.get("environment", DEFAULT_ENVIRONMENT) + environment,
    )


def _read_file(file: Path) -> dict[str, tuple[str, ...]]:
    try:
        if file.stat().st_mode & 0o022:
            raise SettingsError(f"{file} may be changed by its group or by everybody; chmod go-w it")
        content = tomllib.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"cannot read the allow file {file}: {error}") from error
    known = {"executables", "directories", "environment"}
    if set(content) - known or not all(_is_list_of_texts(value) for value in content.values()):
        raise SettingsError(
            f"{file} may hold {', '.join(sorted(known))}, each a list of texts; it holds {sorted(content)}"
        )
    return {name: tuple(value) for name, value in content.items()}


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _same_program(allowed: str, candidate: str) -> bool:
    """Equal paths, or two names of one program in one directory (python, python3, python3.11)."""
    if allowed == candidate:
        return True
    beside = Path(allowed).parent == Path(candidate).parent
    return beside and Path(candidate).exists() and Path(allowed).samefile(candidate)
