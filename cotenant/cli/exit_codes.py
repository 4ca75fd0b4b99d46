"""What the command's exit status means; scripts and CI rely on it."""

from __future__ import annotations

from enum import IntEnum

from cotenant import client_errors
from cotenant.engines.errors import EngineDeniedError, EngineUnreachableError


class ExitCode(IntEnum):
    """Exit status of every verb."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_FEASIBLE = 4
    UNAVAILABLE = 5
    PERMISSION = 6
    JOB_FAILED = 7
    JOB_CANCELLED = 8
    INTERRUPTED = 130


EXIT_CODES_HELP = """\b
Exit status:
  0  ok                        5  service unavailable, or timeout
  1  any other error           6  not permitted
  2  wrong usage               7  the job failed (wait, logs -f)
  3  not found                 8  the job was cancelled
  4  will not fit / refused    130  interrupted
"""

_BY_ERROR: tuple[tuple[type[client_errors.CotenantError], ExitCode], ...] = (
    (client_errors.InputError, ExitCode.USAGE),
    (client_errors.RejectedError, ExitCode.USAGE),
    (client_errors.NotFoundError, ExitCode.NOT_FOUND),
    (client_errors.NotFeasibleError, ExitCode.NOT_FEASIBLE),
    (client_errors.PermissionDeniedError, ExitCode.PERMISSION),
    (client_errors.UnavailableError, ExitCode.UNAVAILABLE),
    (EngineDeniedError, ExitCode.PERMISSION),
    (EngineUnreachableError, ExitCode.UNAVAILABLE),
)


def exit_code_of(error: client_errors.CotenantError) -> ExitCode:
    """Returns the exit status for an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.ERROR)
