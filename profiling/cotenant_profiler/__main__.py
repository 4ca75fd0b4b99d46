"""python -m cotenant_profiler: see --help."""

from __future__ import annotations

import sys
from functools import partial

from cotenant.command_run import EXIT_ERROR, EXIT_USAGE, run_command
from cotenant.extras import Program, run_program


def _load() -> Program:
    from cotenant.errors import InputError
    from cotenant_profiler.commands import main
    from cotenant_profiler.errors import ProfilerError

    exit_codes = ((ProfilerError, EXIT_ERROR), (InputError, EXIT_USAGE))
    return partial(run_command, main, prog_name="cotenant_profiler", exit_codes=exit_codes)


if __name__ == "__main__":
    sys.exit(run_program("cotenant_profiler", _load))
