"""`python -m cotenant_simulator`: simulate."""

from __future__ import annotations

import sys

from cotenant.extras import Program, run_program


def _load() -> Program:
    from cotenant_simulator.commands.program import main

    return main


if __name__ == "__main__":
    sys.exit(run_program("cotenant_simulator", _load))
