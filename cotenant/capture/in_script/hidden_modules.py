"""Python's own modules, where files of the script hide them: an export of torch loads some that no training has."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def uncover_modules() -> None:
    """Lets whatever is loaded from now on find Python's own `statistics`, not the script's file of that name.

    What the script has loaded itself stays what it is to the script. This process only exports from here on.
    """
    own = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    own += [path for path in sys.path if Path(path).name == "lib-dynload"]
    sys.path[:0] = [path for path in own if path in sys.path]
    for name in getattr(sys, "stdlib_module_names", ()):  # from 3.10 on
        file = getattr(sys.modules.get(name), "__file__", None)
        if name != "__main__" and file and not any(Path(path) in Path(file).parents for path in own):
            del sys.modules[name]
