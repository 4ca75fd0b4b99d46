"""`python -m cotenant_agent`: run the agent, or look at what it would find."""

from __future__ import annotations

import sys

from cotenant.extras import Program, run_program


def _load() -> Program:
    from cotenant_agent.commands import main

    return main


if __name__ == "__main__":
    sys.exit(run_program("cotenant_agent", _load))
