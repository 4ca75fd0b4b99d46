"""The command line that the benchmarks of papers have in common: seeds, parts, JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence

SEEDS = 20


def print_parts(
    description: str | None,
    parts: Iterable[str],
    main: Callable[[int, Sequence[str]], object],
    arguments: Sequence[str] | None = None,
) -> None:
    """Read `--seeds` and `--parts` and print what `main` says of them.

    Args:
        description: What the benchmark prints, for `--help`.
        parts: The names that may be asked for; all of them where none is.
        main: Runs the named parts over so many seeds, at least 1.
        arguments: Of the command; None = those of this process.
    """
    names = list(parts)
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--parts", nargs="*", choices=sorted(names), default=names)
    chosen = parser.parse_args(arguments)
    print(json.dumps(main(max(chosen.seeds, 1), chosen.parts), indent=2))
