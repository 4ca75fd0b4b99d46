"""python -m cotenant_profiler: see --help."""

from __future__ import annotations

from cotenant_profiler.commands import main

if __name__ == "__main__":
    main(prog_name="cotenant_profiler")
