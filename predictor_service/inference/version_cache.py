"""What was worked out about graphs for the version that answers now: bounded, and forgotten when it is swapped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from predictor_service.registry.served_version import ServedVersion

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class VersionCache(Generic[Key, Value]):
    """Values of one version by key; the least recently used are dropped. Safe for many threads.

    Args:
        values_max: How many are kept; 0 = none.
        nodes_max: Operators of the graphs behind them, so that what the graph library dropped is not kept on here.
    """

    def __init__(self, values_max: int, nodes_max: int) -> None:
        self._values_max = values_max
        self._nodes_max = nodes_max
        self._lock = threading.Lock()
        self._version: ServedVersion | None = None
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._nodes = 0

    def find(self, key: Key, version: ServedVersion | None) -> Value | None:
        """Returns what is kept; another version than before empties everything: no old answer is ever read again."""
        with self._lock:
            if version is not self._version:
                self._kept.clear()
                self._nodes = 0
                self._version = version
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def keep(self, key: Key, value: Value, nodes: int, version: ServedVersion | None) -> None:
        """Keeps a value, unless the version was swapped while it was made.

        Args:
            key: Under which it is found.
            value: Holds for `version` only.
            nodes: Operators of the graph that it keeps in memory.
            version: Which it was made for.
        """
        with self._lock:
            if version is not self._version or key in self._kept:
                return
            self._kept[key] = (value, nodes)
            self._nodes += nodes
            while self._kept and (len(self._kept) > self._values_max or self._nodes > self._nodes_max):
                self._nodes -= self._kept.popitem(last=False)[1][1]
