"""Where the measured profiles of a workload of the Pollux family lie."""

from __future__ import annotations

import os
from pathlib import Path

from cotenant_simulator.errors import TraceError

_FOLDER = "profiles"
_SHARED = Path("traces", "pollux", _FOLDER)
_FILE = "applications.csv"


def find_profiles(workload: Path) -> Path:
    """Return the nearest folder `profiles` above a workload, else that of the public data (COTENANT_SHARED_DATA).

    Raises:
        TraceError: There is none.
    """
    found = [above / _FOLDER for above in workload.resolve().parents]
    if "COTENANT_SHARED_DATA" in os.environ:
        found.append(Path(os.environ["COTENANT_SHARED_DATA"]) / _SHARED)
    for folder in found:
        if (folder / _FILE).is_file():
            return folder
    raise TraceError(
        workload,
        f"has no folder {_FOLDER} with {_FILE} above it; put it below the folder of the family's profiles, or name them"
        " with --profiles",
    )
