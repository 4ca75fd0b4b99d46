"""Where the programs of one machine keep their data by default: the folder of `cotenant up`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "COTENANT_STATE_DIR"


def local_state_dir(environment: Mapping[str, str]) -> Path:
    """Returns $COTENANT_STATE_DIR, else $XDG_STATE_HOME/cotenant/local; below it every program has its own folder."""
    if named := environment.get(VARIABLE):
        return Path(named).expanduser()
    home = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".local/state")
    return Path(home) / "cotenant" / "local"
