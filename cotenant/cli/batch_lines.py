"""What a command does in vain that is submitted: lines for another scheduler, a program in the background, or none."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from cotenant.cli.verb_habits import FLAGS
from cotenant.counted_nouns import agreed
from cotenant.program_lookup import script_of

_READ_BYTES = 1 << 16
_LINE = re.compile(r"^#(SBATCH|PBS|BSUB)[ \t]+(.*)$", re.MULTILINE)
_FLAG = re.compile(r"(?<!\S)(--[a-z][a-z-]*|-[A-Za-z])(?:[= \t]*(?!-)(\S+))?")
_OWN = ("--array", "--gpus")
# Files of messages and more words about the start, which a job here has anyway.
_IDLE = ("-e", "-v")
_READS_INPUT = re.compile(r"(?:python[0-9.]*|ipython|(?:ba|z|da)?sh)")
# What a job here is unless it says otherwise.
_USUAL = {(flag, "1") for flag in ("-N", "--nodes", "-n", "--ntasks", "--ntasks-per-node")}


def batch_lines_note(command: Sequence[str], directory: Path) -> str:
    """Returns what a user must know whose script asks another scheduler for something; empty = it does not.

    Args:
        command: Of the job.
        directory: Where it runs.
    """
    script = script_of(command) or (command[0] if command else "")
    found = _LINE.findall(_head(directory / script)) if script else []
    if not found:
        return ""
    flags = FLAGS["submit"]
    # Letters mean something else to others: -N is a name in PBS, -W a time in LSF.
    pairs = [pair for scheduler, line in found if scheduler == "SBATCH" for pair in _FLAG.findall(line)]
    stated = [flag for flag, value in pairs if flag not in _IDLE and (flag, value) not in _USUAL]
    here = dict.fromkeys(flag if flag in _OWN else flags[flag] for flag in stated if flag in flags or flag in _OWN)
    as_flags = f"; say the same with {', '.join(here)}" if here else ""
    return (
        agreed(f"{script} has {len(found)} line(s)")
        + f" for another scheduler (#{found[0][0]}), not read here{as_flags}"
    )


def background_note(command: Sequence[str]) -> str:
    """Returns what a user must know whose shell leaves its program in the background; empty = it does not.

    Args:
        command: Of the job.
    """
    is_shell = len(command) > 2 and command[-2].startswith("-") and command[-2].endswith("c")
    text = command[-1].rstrip() if is_shell else ""
    if not text.endswith("&") or text.endswith("&&"):
        return ""
    return "the job ends with its shell, and what that leaves in the background ends with it: leave the last & out"


def no_program_note(command: Sequence[str], directory: Path) -> str:
    """Returns what a user must know whose command starts nothing: its input is empty, or its script; empty = it does.

    Args:
        command: Of the job.
        directory: Where it runs.
    """
    waits = list(command[1:]) in ([], ["-"], ["-s"])
    if command and _READS_INPUT.fullmatch(PurePath(command[0]).name) and waits:
        name = PurePath(command[0]).name
        return f"a job has no standard input, so {name} has nothing to run: name the script behind it"
    script = script_of(command)
    with contextlib.suppress(OSError, ValueError):
        file = directory / script
        if script and file.is_file() and not file.stat().st_size:
            return f"{script} is empty: is it saved?"
    return ""


def _head(file: Path) -> str:
    try:
        if not file.is_file():
            return ""
        with file.open("rb") as opened:
            return opened.read(_READ_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
