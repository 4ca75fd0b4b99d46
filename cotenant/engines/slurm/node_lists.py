"""Slurm's short form of several node names, `gpu[01-03,7],login`, written out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

NODES_MAX: Final = 10_000
_PART = re.compile(r"([^\[\],]*)\[([0-9,-]{1,10000})\]([^\[\],]*)|([^\[\],]+)")


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the names.

    Raises:
        ValueError: Not such a form, or more than 10,000 names.
    """
    names: list[str] = []
    place = 0
    while place < len(text):
        match = _PART.match(text, place)
        if match is None:
            raise ValueError(f"{text[:100]!r} is no list of nodes")
        for name in _names(match):
            names.append(name)
            if len(names) > NODES_MAX:
                raise ValueError(f"{text[:100]!r} names more than {NODES_MAX:,} nodes")
        place = match.end()
        if place < len(text) and text[place] != ",":
            raise ValueError(f"{text[:100]!r} is no list of nodes")
        place += 1
    return tuple(dict.fromkeys(names))


def _names(match: re.Match[str]) -> Iterator[str]:
    before, ranges, after, plain = match.groups()
    if plain is not None:
        yield plain
        return
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        width = len(first)
        for number in range(int(first), int(last or first) + 1):
            yield f"{before}{number:0{width}}{after}"
