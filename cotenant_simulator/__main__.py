"""`python -m cotenant_simulator`: simulate."""

from __future__ import annotations

import sys

from cotenant_simulator.commands.program import main

if __name__ == "__main__":
    sys.exit(main())
