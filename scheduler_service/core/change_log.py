"""What changed in a store of predictions, so that values computed from it are computed again."""

from __future__ import annotations

from collections import deque
from itertools import islice

CHANGES_MAX = 4_096
"""Changes kept; who has not looked for longer starts over."""

Pair = tuple[str, str]
"""Keys of a victim and of its co-located job; an empty second key = all that is known of the first."""


class ChangeLog:
    """The newest changes.

    Attributes:
        count: How many there were.
        news_count: How many of them say something else than before, and not nearly the same.
    """

    def __init__(self) -> None:
        self._changes: deque[Pair] = deque(maxlen=CHANGES_MAX)
        self.count = self.news_count = 0

    def note(self, victim_key: str, other_key: str = "", *, is_news: bool = True) -> None:
        """Note a change of what is known of a pair, or of a key."""
        self._changes.append((victim_key, other_key))
        self.count += 1
        self.news_count += is_news

    def since(self, count: int) -> set[Pair] | None:
        """Return what changed since so many changes; None = too much to tell."""
        missed = self.count - count
        if missed > len(self._changes):
            return None
        return set(islice(reversed(self._changes), missed))
