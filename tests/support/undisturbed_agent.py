"""`python -m tests.support.undisturbed_agent`: the agent of a machine that nobody else uses.

What is done with measurement windows is tested on busy machines too, where every window is flagged `foreign_load` or
`unsteady` and none counts.
"""

from __future__ import annotations

import math
import sys

from cotenant_agent.commands import main
from cotenant_agent.devices import measurement_windows

if __name__ == "__main__":
    measurement_windows.FOREIGN_LOAD_RATIO = measurement_windows.UNSTEADY_RATIO = math.inf
    sys.exit(main())
