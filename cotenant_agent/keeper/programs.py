"""The modules of this room that run as programs, started by the path of their file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHIM: Final = Path(__file__).with_name("shim.py")
NAMESPACES: Final = Path(__file__).with_name("namespaces.py")
PREPARED_PROGRAM: Final = Path(__file__).with_name("prepared_program.py")
