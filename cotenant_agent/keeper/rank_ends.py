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
        servers: How many of these, the last ones, are parameter servers: how they end does not count once all others
            have ended with 0, unless these were asked to because of a server.
    """

    def __init__(self, ranks: int, servers: int = 0) -> None:
        self.ranks = ranks
        self._workers = ranks - servers
        self._is_blamed = False
        self.max_resident_bytes = 0
        self._statuses: dict[int, int] = {}

    def note(self, rank: int, status: int, resident_bytes: int) -> None:
        """Take an end in; a rank ends once.

        Args:
            rank: Counted on this node.
            status: As wait4(2) returns it.
            resident_bytes: Its peak resident set; that of a parameter server is nothing of a device.
        """
        if 0 <= rank < self.ranks and rank not in self._statuses:
            self._statuses[rank] = status
            if rank < self._workers:
                self.max_resident_bytes = max(self.max_resident_bytes, resident_bytes)

    def note_killed(self) -> None:
        """All that is left was killed by the kernel with its namespace."""
        for rank in range(self.ranks):
            self.note(rank, signal.SIGKILL, 0)

    def blame(self) -> None:
        """The others are asked to end because of one that has failed: it is the cause from now on, however they end."""
        self._is_blamed = True

    @property
    def is_a_server_lost(self) -> bool:
        """Whether one that has failed is a parameter server: it may have been left behind, the others about to end."""
        return self.failed_rank is not None and self.failed_rank >= self._workers

    @property
    def are_ranks_done(self) -> bool:
        """Whether all have ended with 0, but perhaps for the parameter servers."""
        return not self._is_blamed and all(self._statuses.get(rank) == 0 for rank in range(self._workers))

    @property
    def _counted(self) -> dict[int, int]:
        """The ends that say how the attempt has ended."""
        return dict.fromkeys(range(self._workers), 0) if self.are_ranks_done else self._statuses

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
        return next((rank for rank, status in self._counted.items() if status != 0), None)

    def peers_grace_ms(self, stop_grace_ms: int) -> int | None:
        """How long the others may take to end because one is gone; None = they may go on.

        What one rank alone can save without the others is little, unless it has left with a checkpoint: then the others
        are about to, and get the time of a stop. Parameter servers are not needed when the others are done.
        """
        rank = self.failed_rank
        if self.are_complete:
            return None
        if rank is None:
            return lost_grace_ms(stop_grace_ms) if self.are_ranks_done else None
        code = os.waitstatus_to_exitcode(self._statuses[rank])
        is_leaving = code in (EXIT_CHECKPOINTED, -signal.SIGTERM)
        return stop_grace_ms if is_leaving else lost_grace_ms(stop_grace_ms)

    def return_code(self, *, was_stopped: bool) -> int:
        """The exit code of the attempt, as of a child process: that of the first rank that ended without success.

        Args:
            was_stopped: All were asked to end: then one that left with a checkpoint speaks for all.
        """
        codes = [os.waitstatus_to_exitcode(status) for status in self._counted.values()]
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
            now_ms: By a clock that stands still while the machine sleeps, as the ranks do.
            ended_parts: How many parts of their gang have ended with success on other nodes.
        """
        seen = (ends.seen, ended_parts, signs)
        if seen != self._seen:
            self._seen, self._since_ms = seen, now_ms
        is_left = (ends.seen > 0 or ended_parts > 0) and not (ends.are_complete or ends.are_ranks_done)
        return is_left and now_ms - self._since_ms >= self._silent_ms


def lost_grace_ms(stop_grace_ms: int) -> int:
    """How long ranks may take to end that can save little without those that are gone."""
    return min(stop_grace_ms, _LOST_GRACE_MS_MAX)
