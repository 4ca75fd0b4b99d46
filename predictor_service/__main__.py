"""python -m predictor_service: serve, predict, train, models."""

import sys

from predictor_service.commands.program import main

if __name__ == "__main__":
    sys.exit(main())
