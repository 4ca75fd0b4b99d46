"""What a job names that is not there, where every node sees the files of this machine: under `cotenant up`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cotenant.program_lookup import NOTEBOOK, NotRunnableError, as_script, check_program, find_program, script_of
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.agents.launch_rules import LaunchRules, Obstacle

_SHOWN_CHARACTERS_MAX = 200


def file_obstacles(rules: LaunchRules, spec: scheduling_pb2.JobSpec) -> Iterator[Obstacle]:
    """Return why a node that sees this machine's files cannot start a job; it may block for as long as the disk does.

    Args:
        rules: What the node runs.
        spec: A job; without a working directory it runs in one that its node makes, and nothing relative is looked at.
    """
    directory = spec.working_directory
    wrong = _directory_obstacle(rules, directory) if directory else None
    if wrong is not None:
        yield wrong
        return
    try:
        _check_program_of(rules, spec)
    except NotRunnableError as error:
        yield Obstacle(f"cannot start {_shown(spec.command[0])}: {error.message}", "correct the command behind --")
        return
    script = script_of(spec.command)
    if script.endswith(NOTEBOOK):
        yield Obstacle(f"runs no notebook as {_shown(script)}", as_script(script))
    elif directory and script and not _exists(Path(directory, script)):
        found = f"has no file {_shown(script)} in {_shown(directory)}"
        yield Obstacle(found, "correct the command behind --, or name the script's folder with --workdir")


def _directory_obstacle(rules: LaunchRules, directory: str) -> Obstacle | None:
    resolved = os.path.realpath(directory)
    if not Path(resolved).is_dir():
        return Obstacle(f"has no directory {_shown(directory)}", "name one that exists with --workdir")
    if any(Path(resolved).is_relative_to(os.path.realpath(root)) for root in rules.directories):
        return None
    allowed = ", ".join(map(_shown, rules.directories[:4])) or "no directory"
    # An agent that was started by `cotenant up` has its flags from there.
    remedy = "submit with a --workdir inside, or start `cotenant up` with --allow-directory"
    return Obstacle(f"runs jobs in {allowed} only, not in {_shown(resolved)}", remedy)


def _check_program_of(rules: LaunchRules, spec: scheduling_pb2.JobSpec) -> None:
    """Look for the first word as the agent does; listed executables are the agent's to look at."""
    name, own_path = spec.command[0], spec.environment.get("PATH", "")
    is_listed = "/" not in name and any(PurePosixPath(path).name == name for path in rules.executables)
    is_relative = "/" in name and not name.startswith("/")
    if not rules.any_command or (is_listed and not own_path) or (is_relative and not spec.working_directory):
        return
    folder, search_path = spec.working_directory or "/", own_path or os.environ.get("PATH", os.defpath)
    found = find_program(name, working_directory=folder, search_path=search_path)
    check_program(found, working_directory=folder, search_path=search_path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # what cannot be looked at is not known to be missing
        return True


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARACTERS_MAX]
