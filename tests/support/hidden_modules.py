"""An environment in which some libraries are not installed, without installing anything."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_HIDER = '''"""Runs at the start of every Python below: some top-level modules cannot be found."""
import os
import sys


class _Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ.get("HIDDEN_MODULES", "").split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _Hider())
'''


def environment_without(modules: Iterable[str], folder: Path) -> Mapping[str, str]:
    """Return environment variables for processes that find none of these modules.

    Args:
        modules: Top-level names.
        folder: An empty folder of the test.
    """
    (folder / "sitecustomize.py").write_text(_HIDER)
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "HIDDEN_MODULES": ",".join(modules)}
