"""Policies of another package, installed in a folder that PYTHONPATH names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def install_policies(folder: Path, source: str, names: Mapping[str, str]) -> Mapping[str, str]:
    """Install a package with policies; returns the environment in which it is found.

    Args:
        folder: Is made, and holds nothing else; without it the package is not installed any more.
        source: Of the module.
        names: The class in the module by the policy's name.
    """
    folder.mkdir()
    (folder / "plugged_policies.py").write_text(source)
    information = folder / "plugged_policies-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-policies\nVersion: 1.0\n")
    points = [f"{name} = plugged_policies:{kind}" for name, kind in names.items()]
    (information / "entry_points.txt").write_text("\n".join(["[cotenant.policies]", *points]) + "\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
