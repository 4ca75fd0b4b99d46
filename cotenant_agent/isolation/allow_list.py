"""What this node runs for a scheduler: its own list, which nothing that the scheduler sends can widen.

The node's file (TOML), named by `--allow-file`, owned by the node's owner:

    executables = ["/opt/venv/bin/python"]
    directories = ["/srv/training"]
    environment = ["WANDB_*", "SEED"]

An executable is allowed by its path. Allowing an interpreter allows everything that can be written in its language:
the list then bounds where code is started from, not what it does; use an unprivileged user for that (--job-user).

`--allow-any-command`, for a scheduler on this machine only, lifts the lists of executables and of environment
variables: so `cotenant up` starts the agent of its owner. Directories stay listed, and COTENANT_* the agent's own.
"""

from __future__ import annotations

import fnmatch
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.program_lookup import NotRunnableError, check_program, find_program
from cotenant_agent.errors import CommandRefusedError, SettingsError

DEFAULT_ENVIRONMENT = (
    "HF_*", "LANG", "LC_*", "MLFLOW_*", "NCCL_*", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "SEED", "TORCH_*", "TZ",
    "WANDB_*",
)  # fmt: skip
# Of the names above, those by which a library loads code from where the job says. A plug-in's bare name is looked up
# where the node keeps libraries.
_LOADS_PLUGIN = "NCCL_*PLUGIN*"
_LOADS_CODE = ("NCCL_CONF_FILE", "TORCH_EXTENSIONS_DIR", "TORCH_*PATH")
_CODE = "COMMAND_NOT_ALLOWED"
_NOT_RUNNABLE = "COMMAND_NOT_RUNNABLE"
_OWN_PREFIX = "COTENANT_"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowList:
    """Executables by path, working directories by root, environment variables by pattern.

    Attributes:
        any_command: any executable and any environment variable is allowed; directories stay listed.
    """

    executables: tuple[str, ...]
    directories: tuple[str, ...]
    environment: tuple[str, ...] = DEFAULT_ENVIRONMENT
    any_command: bool = False

    def resolve_executable(self, name: str, *, working_directory: str = "/", search_path: str = "") -> str:
        """The path to execute: an allowed path, or the allowed executable of that bare name.

        Where any command is allowed, a bare name is looked for on the job's own PATH; a job without one gets the listed
        executable of that name (e.g. the agent's own Python), else what the agent's PATH has.

        Args:
            name: first word of the command.
            working_directory: where a relative path starts.
            search_path: the job's own PATH; empty = it has none.

        Raises:
            CommandRefusedError: it is not on the list, or nothing that could be started.
        """
        found = self._listed(name, working_directory) if not (self.any_command and search_path) else None
        search_path = search_path or os.environ.get("PATH", os.defpath)
        try:
            if found is None and self.any_command:
                found = find_program(name, working_directory=working_directory, search_path=search_path)
            if found is not None:
                check_program(found, working_directory=working_directory, search_path=search_path)
        except NotRunnableError as error:
            raise CommandRefusedError(_NOT_RUNNABLE, error.message) from None
        if found is None:
            raise CommandRefusedError(
                _CODE, f"executable {name!r} is not allowed on this node; allowed: "
                f"{', '.join(map(os.path.normpath, self.executables)) or 'none'} "
                "(the node's owner adds it with --allow-executable or in the --allow-file)",
            )  # fmt: skip
        return found

    def _listed(self, name: str, working_directory: str) -> str | None:
        """The listed path that a command names; None = there is none."""
        allowed = [os.path.normpath(path) for path in self.executables]
        if "/" not in name:
            return next((path for path in allowed if _same_program(path, str(Path(path).parent / name))), None)
        candidate = os.path.normpath(Path(working_directory, name))
        return candidate if any(_same_program(path, candidate) for path in allowed) else None

    def resolve_directory(self, path: str) -> str:
        """The working directory with every link resolved, inside an allowed root.

        Raises:
            CommandRefusedError: it lies outside the allowed roots, through a link perhaps, or is no directory.
        """
        resolved = os.path.realpath(path)
        roots = [os.path.realpath(root) for root in self.directories]
        inside = any(Path(resolved).is_relative_to(root) for root in roots)
        if Path(path).is_absolute() and inside and not Path(resolved).is_dir():
            raise CommandRefusedError(_CODE, f"working directory {path!r} is not there, or is no directory")
        if not Path(path).is_absolute() or not inside:
            # An agent that was started by `cotenant up` has the first of the two flags only.
            flags = "--allow-directory" if self.any_command else "--allow-directory or --allow-file"
            raise CommandRefusedError(
                _CODE, f"working directory {path!r} is not inside an allowed root; allowed: "
                f"{', '.join(roots) or 'none'} (the node's owner adds one: {flags})",
            )  # fmt: skip
        return resolved

    def check_environment(self, environment: Mapping[str, str]) -> None:
        """Check what a job wants set.

        Raises:
            CommandRefusedError: naming the variables that the list does not cover, that are the agent's own, or that
                would load code from elsewhere than the listed executables.
        """
        own = sorted(name for name in environment if name.startswith(_OWN_PREFIX))
        if own:
            raise CommandRefusedError(
                _CODE,
                f"environment variables {', '.join(own)} belong to the node agent; choose names without COTENANT_",
            )
        if self.any_command:
            return
        refused = sorted(
            name for name in environment if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.environment)
        )
        if refused:
            raise CommandRefusedError(
                _CODE, f"environment variables {', '.join(refused)} are not allowed on this node; allowed: "
                f"{', '.join(self.environment)} (the node's owner adds them with --allow-environment)",
            )  # fmt: skip
        loading = sorted(name for name, value in environment.items() if self._loads_code(name, value))
        if loading:
            raise CommandRefusedError(
                _CODE, f"environment variables {', '.join(loading)} load code from a path, which a pattern does not "
                "allow (the node's owner allows one by its full name: --allow-environment)",
            )  # fmt: skip

    def _loads_code(self, name: str, value: str) -> bool:
        is_plugin = fnmatch.fnmatchcase(name, _LOADS_PLUGIN) and "/" in value
        is_code = is_plugin or any(fnmatch.fnmatchcase(name, pattern) for pattern in _LOADS_CODE)
        return is_code and name not in self.environment


def load_allow_list(
    file: Path | None,
    executables: tuple[str, ...],
    directories: tuple[str, ...],
    environment: tuple[str, ...],
    *,
    any_command: bool = False,
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
        any_command=any_command,
    )


def _read_file(file: Path) -> dict[str, tuple[str, ...]]:
    try:
        if file.stat().st_mode & 0o022:
            raise SettingsError(f"{file} may be changed by its group or by all users; chmod go-w it")
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
    is_adjacent = Path(allowed).parent == Path(candidate).parent
    return is_adjacent and Path(candidate).exists() and Path(allowed).samefile(candidate)


def known_names(allowed: str) -> Iterator[str]:
    """Every path by which `_same_program` knows an allowed executable at this moment, itself first."""
    path = Path(os.path.normpath(allowed))
    yield str(path)
    try:
        entries = [entry for entry in os.scandir(path.parent) if path.name != entry.name]
    except OSError:
        return
    yield from sorted(entry.path for entry in entries if _is_same_file(path, Path(entry.path)))


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
