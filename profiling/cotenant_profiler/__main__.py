"""python -m cotenant_profiler: see --help."""

from __future__ import annotations

import sys

from cotenant.command_run import EXIT_ERROR, run_command
from cotenant.extras import run_program


def _start() -> int:
    from cotenant_profiler.commands import main
    from cotenant_profiler.errors import ProfilerError

    return run_command(main, prog_name="cotenant_profiler", exit_codes=((ProfilerError, EXIT_ERROR),))


if __name__ == "__main__":
    sys.exit(run_program("cotenant_profiler", _start))
