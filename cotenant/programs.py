"""Which program runs which verb; programs are started as `python -m PROGRAM`, never imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from cotenant.client_errors import ProgramError
from cotenant.command_run import SHOWN_AS
from cotenant.extras import missing_programs_line

# Verb -> program and its own verb; none where the program's verbs stand below ours.
PROGRAM_COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "predict": ("predictor_service", "predict"),
        "predict-many": ("predictor_service", "predict-many"),
        "datasets": ("predictor_service", "datasets"),
        "profiles": ("predictor_service", "profiles"),
        "evaluate": ("predictor_service", "evaluate"),
        "models": ("predictor_service", "models"),
        "retrain": ("predictor_service", "retrain"),
        "backup": ("scheduler_service", "backup"),
        "restore": ("scheduler_service", "restore"),
        "export-log": ("scheduler_service", "export-log"),
        "log": ("scheduler_service", "log"),
        "audit": ("scheduler_service", "audit"),
        "decide": ("scheduler_service", "decide"),
        "policies": ("scheduler_service", "policies"),
        "profile": ("cotenant_profiler", ""),
        "calibrate": ("cotenant_profiler", "calibrate"),
        "convert": ("cotenant_profiler", "convert"),
        "simulate": ("cotenant_simulator", "simulate"),
        "forecast": ("cotenant_simulator", "forecast"),
        "shadow": ("cotenant_simulator", "shadow"),
        "probe": ("cotenant_agent", "probe"),
        "observe": ("cotenant_agent", "observe"),
        "serve-predictor": ("predictor_service", "serve"),
        "serve-scheduler": ("scheduler_service", "serve"),
        "run-agent": ("cotenant_agent", "run"),
    }
)

# Started by other verbs, never by name.
_VERBS_OF_PEOPLE = PROGRAM_COMMANDS.keys() - {
    "convert",
    "forecast",
    "predict-many",
    "probe",
    "serve-predictor",
    "serve-scheduler",
    "run-agent",
}


def require_programs(wanted_by: str, programs: Iterable[str], *, torch: bool = False) -> None:
    """Looks whether programs can start here.

    Args:
        wanted_by: What needs them, as people call it, e.g. `cotenant up`.
        programs: Names of packages.
        torch: Whether PyTorch is needed as well.

    Raises:
        ProgramError: They cannot; the message names what brings the missing libraries.
    """
    line = missing_programs_line(wanted_by, programs, torch=torch)
    if line:
        raise ProgramError(line)


def command_line(verb: str, arguments: Sequence[str] = ()) -> list[str]:
    """Returns the argument list that runs a verb's program with this Python.

    Raises:
        ProgramError: The program, or a library that it cannot start without, is not installed.
    """
    program, program_verb = PROGRAM_COMMANDS[verb]
    require_programs(f"`cotenant {verb}`" if verb in _VERBS_OF_PEOPLE else program, [program])
    return [sys.executable, "-m", program, *([program_verb] if program_verb else []), *arguments]


def become(verb: str, arguments: Sequence[str]) -> NoReturn:
    """Turns this process into a verb's program: its exit status, and every signal sent to us, are the program's own.

    Raises:
        ProgramError: The program is not installed.
    """
    command = command_line(verb, arguments)
    os.environ[SHOWN_AS] = "cotenant" if PROGRAM_COMMANDS[verb][1] else f"cotenant {verb}"
    os.execv(command[0], command)


def run_captured(
    verb: str, arguments: Sequence[str], *, timeout_s: float, is_heard: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs a verb's program and returns what it wrote.

    Args:
        verb: As above.
        arguments: Its own.
        timeout_s: How long it may take.
        is_heard: Whether people see at once what it writes to stderr, instead of its being returned.

    Raises:
        ProgramError: It did not end in time.
    """
    try:
        return subprocess.run(
            command_line(verb, arguments),
            stdout=subprocess.PIPE,
            stderr=None if is_heard else subprocess.PIPE,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramError(
            f"{PROGRAM_COMMANDS[verb][0]} did not answer within {timeout_s:g} s",
            remedy="try again when this machine is less busy, or with a smaller network",
        ) from error
