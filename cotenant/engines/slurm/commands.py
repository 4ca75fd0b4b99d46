"""Slurm's own commands: the only way in which cotenant reads Slurm and tells it anything."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cotenant.engines.errors import EngineDeniedError, EngineRefusedError, EngineUnreachableError
from cotenant.engines.slurm.values import rows_of, text_of
from cotenant.errors import InputError

TIMEOUT_S = 30.0
OUTPUT_BYTES_MAX = 256 * 2**20
_SHOWN_CHARACTERS_MAX = 300
_DENIALS = ("access/permission denied", "authentication error", "invalid authentication credential")
"""What Slurm answers where it refuses access, in lower case."""
_SILENCE = ("unable to contact slurm controller", "configuration source", "failed to fetch config", "connect failure")
"""What its commands say where slurmctld does not answer them, in lower case."""
_SEE_SLURMCTLD = "see that slurmctld runs, and that SLURM_CONF names its configuration"


class SlurmCommands(Protocol):
    """Runs a command of Slurm."""

    def query(self, command: Sequence[str]) -> Mapping[str, Any]:
        """Return what a command writes as JSON.

        Raises:
            InputError: There is no such command here.
            EngineUnreachableError: It fails, or writes something else; an EngineDeniedError where Slurm lets us not in.
        """

    def order(self, command: Sequence[str]) -> None:
        """Run a command that changes something.

        Raises:
            InputError: There is no such command here.
            EngineUnreachableError: Slurm does not answer.
            EngineRefusedError: It fails otherwise.
        """


class InstalledCommands:
    """The commands on this machine's PATH, each for 30 s at most."""

    def query(self, command: Sequence[str]) -> Mapping[str, Any]:
        """Return what a command writes as JSON."""
        done = _run(command)
        if done.returncode != 0:
            raise _failed(command, done.stderr)
        return _parsed(command, done.stdout)

    def order(self, command: Sequence[str]) -> None:
        """Run a command that changes something."""
        done = _run(command)
        if done.returncode != 0:
            told = f"{command[0]}: {_shown(done.stderr)}"
            if any(sign in told.lower() for sign in _SILENCE):
                raise EngineUnreachableError(told, remedy=_SEE_SLURMCTLD)
            raise EngineRefusedError(
                told,
                remedy="see that slurmctld runs, what squeue says of the job, and that this account is an operator",
            )


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(
            f"{command[0]} is not installed here, or may not be run",
            remedy="run this on a machine with Slurm's client commands and slurm.conf",
        ) from error
    except OSError as error:
        remedy = "see what processes and memory this machine has left (ulimit -a), and that this is a program for it"
        raise EngineUnreachableError(f"{command[0]} could not be started: {error}", remedy=remedy) from error
    except subprocess.TimeoutExpired as error:
        raise EngineUnreachableError(
            f"{command[0]} did not answer within {TIMEOUT_S:g} s", remedy=_SEE_SLURMCTLD
        ) from error


def _parsed(command: Sequence[str], output: bytes) -> Mapping[str, Any]:
    try:
        # A user may give a job any bytes as its name or comment, and Slurm writes them down as they are.
        document = json.loads(output.decode(errors="replace")) if len(output) <= OUTPUT_BYTES_MAX else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise EngineUnreachableError(
            f"{' '.join(command)} wrote no JSON object",
            remedy="Slurm 21.08 or newer is needed, with its serializer/json and openapi plugins",
        )
    if errors := rows_of(document, "errors"):
        # Without slurmctld it writes empty tables and exits with 0.
        said = "; ".join(dict.fromkeys(text_of(one, "description") or text_of(one, "error") for one in errors))
        raise _failed(command, said.encode())
    return document


def _failed(command: Sequence[str], said: bytes) -> EngineUnreachableError:
    """What a command could not read: because Slurm lets us not in, or does not answer."""
    told = f"{' '.join(command)}: {_shown(said)}"
    if any(sign in _shown(said).lower() for sign in _DENIALS):
        remedy = "let this account read Slurm's jobs and nodes, and see that munge has the cluster's key here"
        return EngineDeniedError(told, remedy=remedy)
    return EngineUnreachableError(told, remedy=_SEE_SLURMCTLD)


def _shown(output: bytes) -> str:
    return " ".join(output.decode(errors="replace").split())[:_SHOWN_CHARACTERS_MAX] or "failed without a word"
