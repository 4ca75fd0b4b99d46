"""Published files, not committed as they are: found by COTENANT_SHARED_DATA, and said to be absent without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "COTENANT_SHARED_DATA"


def shared_data(*parts: str) -> Path:
    """The path of a shared file or folder; skips the test where there is none."""
    root = os.environ.get(VARIABLE, "")
    if not root:
        pytest.skip(f"{VARIABLE} is not set: public data is not at hand")
    path = Path(root, *parts)
    if not path.exists():
        pytest.skip(f"{path.name} is not among the public data of this machine")
    return path
