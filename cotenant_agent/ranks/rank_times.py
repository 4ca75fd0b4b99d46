"""How long each rank of a gang itself takes for a step, from the files in which the ranks say so themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cotenant_agent.records import STEPS_LIMIT
from cotenant_agent.storage.durable_files import read_integer, read_json

RANKS_MAX = 1_024
"""Ranks of one node that are told of."""
_OWN_NS_MAX = 1 << 63


class RankTimes:
    """The newest times of a gang's ranks.

    Args:
        folder: Of the attempt, where the ranks may write.
        ranks: Of this node, without parameter servers.
    """

    def __init__(self, folder: Path, ranks: Sequence[int]) -> None:
        self._folder = folder
        self._ranks = tuple(ranks)[:RANKS_MAX]
        self._before: dict[int, tuple[int, int]] = {}

    def read(self) -> tuple[tuple[int, float], ...]:
        """(rank, ms of its own per step) since the last look; ranks that made no step since then are left out."""
        found = []
        for rank in self._ranks:
            now = _counters(self._folder / f"rank_times.{rank}.json")
            if now is None:
                continue
            before = self._before.get(rank, (0, 0))
            self._before[rank] = now
            steps, own_ns = now[0] - before[0], now[1] - before[1]
            if steps > 0 and own_ns > 0:
                found.append((rank, own_ns / 1e6 / steps))
        return tuple(found)


def _counters(path: Path) -> tuple[int, int] | None:
    """(steps, ns of its own) as a rank has counted them; None = it says nothing that can be read."""
    record = read_json(path)
    steps, own_ns = read_integer(record, "steps", -1), read_integer(record, "own_ns", -1)
    return (steps, own_ns) if 0 <= steps < STEPS_LIMIT and 0 <= own_ns < _OWN_NS_MAX else None
