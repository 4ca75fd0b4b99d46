"""`python -m cotenant`, for those whose PATH does not hold the program."""

from __future__ import annotations

import subprocess
import sys

from cotenant import __version__


def test_the_command_line_is_the_packages_main_module() -> None:
    done = subprocess.run([sys.executable, "-m", "cotenant", "version"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == f"cotenant {__version__}"
