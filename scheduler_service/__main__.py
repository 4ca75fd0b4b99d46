"""`python -m scheduler_service`: the scheduler and the commands around its state."""

from __future__ import annotations

import sys

from cotenant.extras import Program, run_program


def _load() -> Program:
    from scheduler_service.commands.main import main

    return main


if __name__ == "__main__":
    sys.exit(run_program("scheduler_service", _load))
