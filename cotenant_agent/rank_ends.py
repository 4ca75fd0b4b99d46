"""How the processes of one attempt have ended: one, or the ranks of a gang. Pure; standard library only."""

from __future__ import annotations

import os
import signal

EXIT_CHECKPOINTED = 85
SILENT_RANKS = "ranks_silent"
"""The cause of a stop of those that one which ended with 0 has left behind."""
RANKS_SILENT_MS = 1_800_000
"""So long they may neither print nor make a step: a last evaluation or an export of one rank takes minutes."""
_LOST_GRACE_MS_MAX = 5_000


class RankEnds:
    """Ends in the order in which they were seen.

    Args:
        ranks: How many processes the attempt has begun with.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.max_resident_bytes = 0
        self._statuses: dict[int, int] = {}

    def note(self, rank: int, status: int, resident_bytes: int) -> None:
        """Take an end in; a rank ends once.

        Args:
            rank: Counted on this node.
            status: As wait4(2) returns it.
            resident_bytes: Its peak resident set.
        """
        if 0 <= rank < self.ranks and rank not in self._statuses:
            self._statuses[rank] = status
            self.max_resident_bytes = max(self.max_resident_bytes, resident_bytes)

    def note_killed(self) -> None:
        """All that is left was killed by the kernel with its namespace."""
        for rank in range(self.ranks):
            self.note(rank, signal.SIGKILL, 0)

    @property
    def are_complete(self) -> bool:
        """Whether all ranks are gone."""
        return len(self._statuses) == self.ranks

    @property
    def seen(self) -> int:
        """How many ranks are gone."""
        return len(self._statuses)

    @property
    def failed_rank(self) -> int | None:
        """The first that ended without success; None = none yet."""
        return next((rank for rank, status in self._statuses.items() if status != 0), None)

    def peers_grace_ms(self, stop_grace_ms: int) -> int | None:
        """How long the others may take to end because one is gone; None = they may go on.

        What one rank alone can save without the others is little, unless it has left with a checkpoint: then the others
        are about to, and get the time of a stop.
        """
        rank = self.failed_rank
        if rank is None or self.are_complete:
            return None
        code = os.waitstatus_to_exitcode(self._statuses[rank])
        is_leaving = code in (EXIT_CHECKPOINTED, -signal.SIGTERM)
        return stop_grace_ms if is_leaving else lost_grace_ms(stop_grace_ms)

    def return_code(self, *, was_stopped: bool) -> int:
        """The exit code of the attempt, as of a child process: that of the first rank that ended without success.

        Args:
            was_stopped: All were asked to end: then one that left with a checkpoint speaks for all.
        """
        codes = [os.waitstatus_to_exitcode(status) for status in self._statuses.values()]
        if was_stopped and EXIT_CHECKPOINTED in codes:
            return EXIT_CHECKPOINTED
        return next((code for code in codes if code != 0), 0)


class RankSilence:
    """Notices when those that are left of a gang do nothing any more: they may wait for one that has ended with 0.

    It may have ended here, or with its whole part on another node.

    Args:
        silent_ms: How long none of them has to give a sign of life.
    """

    def __init__(self, silent_ms: int) -> None:
        self._silent_ms = silent_ms
        self._seen: object = None
        self._since_ms = 0

    def is_over(self, ends: RankEnds, signs: object, now_ms: int, *, ended_parts: int = 0) -> bool:
        """Whether they have been silent for so long since the last end.

        Args:
            ends: Of their gang on this node.
            signs: Is another value after every output and every step.
            now_ms: Milliseconds since boot.
            ended_parts: How many parts of their gang have ended with success on other nodes.
        """
        seen = (ends.seen, ended_parts, signs)
        if seen != self._seen:
            self._seen, self._since_ms = seen, now_ms
        is_left = (ends.seen > 0 or ended_parts > 0) and not ends.are_complete
        return is_left and now_ms - self._since_ms >= self._silent_ms


def lost_grace_ms(stop_grace_ms: int) -> int:
    """How long ranks may take to end that can save little without those that are gone."""
    return min(stop_grace_ms, _LOST_GRACE_MS_MAX)
