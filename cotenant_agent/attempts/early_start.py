"""Starting an attempt early: which commands can be, by what they are replaced meanwhile, and the word to begin."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant_agent.attempts.launch_plan import LaunchPlan
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.keeper.programs import PREPARED_PROGRAM
from cotenant_agent.keeper.start_barrier import WORDS_BYTES_MAX
from cotenant_agent.records import LaunchRequest

PREPARED_STARTS = "prepared_starts"
"""In the words of the Hello: this agent starts attempts early."""
PREPARED_PARTS = "prepared_starts_across_nodes"
"""The same of parts of gangs across nodes; an older one takes no part without the port at which the ranks meet."""
NOT_PREPARABLE = "NOT_PREPARABLE"
"""Code of a refusal to start an attempt early; it can begin from nothing."""
PREPARATION_LOST = "PREPARATION_LOST"
"""Code for an attempt that was started early and cannot be gone on with."""
_RUNNER = str(PREPARED_PROGRAM)
_PYTHON = re.compile(r"python(\d(\.\d+)*)?")
# Options of the interpreter whose value is the next argument.
_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_RESUME = "{resume}"
_MEETING = ("MASTER_ADDR", "MASTER_PORT")
"""What of the variables of a rank is the same for all of them and may be known with the word to begin only."""


def check_preparable(request: LaunchRequest) -> None:
    """Check that a job, or each rank of it, is a Python program whose beginning can be told from its run.

    Raises:
        CommandRefusedError: it can only be started when it may run.
    """
    program = Path(request.command[0]).name if request.command else ""
    if not _PYTHON.fullmatch(program) or _target_index(request.command) is None:
        raise CommandRefusedError(NOT_PREPARABLE, "only `python SCRIPT` and `python -m MODULE` are started early")


def early_argv(command: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
    """What is started in place of a program: the same interpreter, and the file that waits.

    Args:
        command: As it was submitted.
        argv: The same with its templates filled and the program found.
    """
    index = _target_index(command) or 1
    # A program that has read where it resumes before it may begin would have read it too early.
    mode = "imports" if any(_RESUME in argument for argument in command) else "program"
    return (*argv[:index], _RUNNER, mode, *argv[index:])


def words_to_begin(command: Sequence[str], early: Mapping[str, object], plan: LaunchPlan) -> dict[str, object] | None:
    """What a program, or every rank of it, is told at last that was started early; None = it must begin from nothing.

    Args:
        command: As it was submitted.
        early: Its specification as it was started early.
        plan: Its launch as it is ordered now.
    """
    known = early.get("environment")
    before = known if isinstance(known, dict) else {}
    argv = early_argv(command, plan.argv)
    started = early.get("argv")
    is_same = isinstance(started, list) and len(started) == len(argv) and plan.argv[0] == started[0]
    is_in_place = early.get("working_directory") == plan.working_directory
    ranks = [rank.to_record() for rank in plan.ranks]
    has_same_ranks = _without_meeting(early.get("ranks", [])) == _without_meeting(ranks)
    if not (is_same and is_in_place and has_same_ranks) or before.keys() - plan.environment.keys():
        return None
    # What a rank has of its own is the same as at its start.
    own = {name for rank in plan.ranks for name in rank.environment}
    common = {name: value for name, value in plan.environment.items() if name not in own}
    changes = {name: value for name, value in common.items() if before.get(name) != value}
    changes |= _meeting_changes(early.get("ranks", []), plan)
    words: dict[str, object] = {"environment": changes}
    if list(argv) != started:
        mode, target = argv.index(_RUNNER) + 1, argv.index(_RUNNER) + 2
        if argv[mode] != "imports":
            # It may have read its arguments by now.
            return None
        words["argv"] = list(argv[target + (2 if argv[target] == "-m" else 1) :])
    return words if len(json.dumps(words).encode()) <= WORDS_BYTES_MAX else None


def _without_meeting(ranks: object) -> list[object]:
    """What the ranks of a specification are, wherever they meet."""
    found: list[object] = []
    for rank in ranks if isinstance(ranks, list) else []:
        own = rank.get("environment") if isinstance(rank, dict) else None
        if isinstance(own, dict):
            rank = {**rank, "environment": own | {name: "" for name in _MEETING if name in own}}
        found.append(rank)
    return found


def _meeting_changes(early: object, plan: LaunchPlan) -> dict[str, str]:
    """Where the ranks meet, as far as those that were started early were not told it."""
    if not plan.ranks or not isinstance(early, list):
        return {}
    before, now = early[0]["environment"], plan.ranks[0].environment
    return {name: now[name] for name in _MEETING if name in now and now[name] != before.get(name)}


def _target_index(command: Sequence[str]) -> int | None:
    """Where the script, or -m, stands in a command; None = the interpreter is given none."""
    index = 1
    while index < len(command):
        argument = command[index]
        if argument == "-m" and index + 1 < len(command):
            return index
        if not argument.startswith("-"):
            return index
        if argument in ("-", "-c") or argument.startswith("-c") or (argument.startswith("-m") and argument != "-m"):
            return None
        index += 2 if argument in _WITH_VALUE else 1
    return None
