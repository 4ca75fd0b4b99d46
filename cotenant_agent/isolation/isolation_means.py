"""By what a node keeps jobs from each other and from the agent; found out by doing it once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from cotenant_agent.keeper.programs import NAMESPACES

_PROBE_TIMEOUT_S = 30
NAMESPACE_ENFORCEMENTS = ("pid_namespace", "hidden_state")
"""Words of the Hello: no process of a job outlives its shim, and jobs do not see the agent's folder."""
SEALED_FILES = "sealed_files"
"""Another: jobs could write the agent's files, and what they write there is not believed."""


def find_namespace_obstacle() -> str:
    """Return why this machine gives jobs no namespaces of their own; empty = it does."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "visible").touch()
        try:
            found = subprocess.run(
                [sys.executable, "-I", "-S", "-E", str(NAMESPACES), directory],
                check=True,
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"it cannot be tried: {error}"
    return found.stdout.strip()
