"""Slurm's words for parts of devices: `gpu:g1:1(IDX:1),shard:g1:2`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COUNT_MAX = 10_000
# Commas stand between entries and inside of the brackets behind them. A type may begin with a digit (2080ti, 1g.5gb) or
# be a number (3090); a number that nothing follows is the count.
_ENTRY = re.compile(
    r"(?:gres[:/])?(gpu|shard|mps)(?::\(null\))?(?::([A-Za-z0-9][A-Za-z0-9_.-]{0,63}))??(?:[:=]([0-9]{1,5}))?"
    r"(?=[,;(]|$)(\([^()]{0,500}\))?"
)
_INDICES = re.compile(r"IDX:([0-9,-]{1,200})")
_USED = re.compile(r"\(([0-9]+/[0-9]+(?:,[0-9]+/[0-9]+)*)\)")
"""Of shards and MPS since 23.02: how much of each GPU, `(2/8,0/8)`."""


@dataclass(frozen=True, slots=True)
class Gres:
    """One entry.

    Attributes:
        kind: gpu, shard or mps.
        type_name: Empty = of any type.
        indices: Which devices of the node, where it is said.
    """

    kind: str
    type_name: str
    count: int
    indices: tuple[int, ...] = ()


def read_gres(text: str) -> list[Gres]:
    """Return the entries about GPUs in a list; others are left out."""
    found = []
    for match in _ENTRY.finditer(text[:100_000]):
        kind, type_name, count, bracket = match.groups()
        if match.start() and text[match.start() - 1] not in ",;":
            continue
        indices = tuple(_indices(bracket or ""))
        found.append(Gres(kind, type_name or "", min(int(count or 1), _COUNT_MAX), indices))
    return found


def _indices(bracket: str) -> Iterator[int]:
    used = _USED.fullmatch(bracket)
    if used is not None:
        yield from (index for index, part in enumerate(used[1].split(",")) if int(part.partition("/")[0]))
    match = _INDICES.search(bracket)
    for part in match.group(1).split(",") if match else ():
        first, _, last = part.partition("-")
        if first and (last or "-" not in part):
            yield from range(int(first), min(int(last or first), int(first) + _COUNT_MAX) + 1)
