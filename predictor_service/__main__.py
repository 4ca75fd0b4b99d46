"""python -m predictor_service: serve, predict, train, models."""

import sys

from cotenant.extras import Program, run_program


def _load() -> Program:
    from predictor_service.commands.program import main

    return main


if __name__ == "__main__":
    sys.exit(run_program("predictor_service", _load))
