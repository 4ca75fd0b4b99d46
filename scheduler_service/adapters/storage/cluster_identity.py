"""Which cluster this state is, and whether what an agent saw of it lies in its history.

A job id, an attempt and a fence identify nothing by themselves: a restored backup gives them again, and so does another
cluster. They count together with the incarnation under which the fence was given.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from cotenant.v1.node_agent_pb2 import AttemptKey, LogPosition

_log = logging.getLogger(__name__)

_SEAL_BYTES = 16
STATE_BEHIND = "STATE_BEHIND"
RESTORE_UNCONFIRMED = "RESTORE_UNCONFIRMED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One beginning of a cluster's state; an empty id = a scheduler that knew no incarnations gave the fences.

    Attributes:
        first_fence: The first fence that was given under it.
    """

    incarnation_id: str
    first_fence: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One start of a scheduler on this state; `first_sequence` is the newest event that it found."""

    generation: int
    start_id: str
    first_sequence: int


_UNNAMED = (Incarnation(incarnation_id=""),)
_UNCOUNTED = (Generation(generation=0, start_id="", first_sequence=0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    """What is known of this cluster's own past.

    Attributes:
        lineage: From the first incarnation to the present one; each was restored from a backup of the one before.
        replaced_ids: Incarnations whose state was replaced by a restore, and which this one succeeds too.
        generations: The newest starts under the present incarnation, this one last.
        seal_key: Makes positions that no agent can invent; empty = positions are not sealed.
    """

    lineage: tuple[Incarnation, ...] = _UNNAMED
    replaced_ids: frozenset[str] = frozenset()
    generations: tuple[Generation, ...] = _UNCOUNTED
    seal_key: bytes = b""

    @property
    def incarnation_id(self) -> str:
        """The present incarnation; empty = this state has none (tests and tools)."""
        return self.lineage[-1].incarnation_id

    @property
    def ancestor_ids(self) -> frozenset[str]:
        """Incarnations whose nodes may join this one."""
        before = frozenset(one.incarnation_id for one in self.lineage[:-1])
        return (before | self.replaced_ids) - {"", self.incarnation_id}

    def incarnation_of(self, fence: int) -> str:
        """Return under which incarnation of this lineage a fence was given."""
        place = bisect_right(self.lineage, fence, key=lambda one: one.first_fence)
        return self.lineage[max(0, place - 1)].incarnation_id

    def owns(self, key: AttemptKey) -> bool:
        """Return whether an attempt is one of this lineage; of an older agent or scheduler that is not known."""
        return not key.incarnation_id or key.incarnation_id == self.incarnation_of(key.fence)

    def is_ancestors(self, incarnation_id: str, *, fence: int) -> bool:
        """Return whether an attempt was ordered before this state was restored.

        Args:
            incarnation_id: As the node stated it; empty = an older agent or scheduler, then the fence tells.
            fence: Of the attempt.
        """
        if not incarnation_id:
            return bool(self.ancestor_ids) and self.incarnation_of(fence) != self.incarnation_id
        return incarnation_id in self.ancestor_ids

    def position(self, sequence: int) -> LogPosition | None:
        """Return where this scheduler is, sealed; `sequence` must be on the disk. None = it has no identity."""
        if not self.incarnation_id:
            return None
        now = self.generations[-1]
        position = LogPosition(
            incarnation_id=self.incarnation_id, generation=now.generation, start_id=now.start_id, sequence=sequence
        )
        position.seal = self._seal(position)
        return position

    def is_sealed(self, position: LogPosition) -> bool:
        """Return whether a scheduler of this state said this position."""
        return hmac.compare_digest(self._seal(position), position.seal)

    def _seal(self, position: LogPosition) -> bytes:
        facts = (position.incarnation_id, position.generation, position.start_id, position.sequence)
        return hmac.digest(self.seal_key, repr(facts).encode(), hashlib.sha256)[:_SEAL_BYTES]

    def contradiction(self, seen: LogPosition, *, sequence: int) -> str:
        """Return what of a position that an agent saw is not in this state's history; empty = all of it is.

        Args:
            seen: A position of the present incarnation.
            sequence: The newest event here.
        """
        now = self.generations[-1]
        if seen.generation > now.generation:
            return f"a node saw start {seen.generation} of a scheduler, and this is start {now.generation}"
        numbers = [one.generation for one in self.generations]
        place = bisect_right(numbers, seen.generation) - 1
        if place < 0 or numbers[place] != seen.generation:
            # Older than the starts that are kept.
            return ""
        if seen.start_id != self.generations[place].start_id:
            return f"start {seen.generation} of a scheduler that a node saw was made on another copy of this state"
        is_last = place + 1 == len(numbers)
        newest = sequence if is_last else self.generations[place + 1].first_sequence
        if seen.sequence > newest:
            return f"a node saw event {seen.sequence}, and start {seen.generation} knows none after {newest}"
        return ""


@dataclass(slots=True, kw_only=True)
class Standstill:
    """Why this scheduler gives no orders at present.

    Attributes:
        code: STATE_BEHIND or RESTORE_UNCONFIRMED; empty = it acts.
        message: The reason with the remedy, for people.
        begun: Called with the finding when this state proves not to be the newest, to store that.
    """

    code: str = ""
    message: str = ""
    begun: Callable[[str], None] = field(default=lambda finding: None)

    def fall_behind(self, finding: str) -> None:
        """Give no more orders: this state is not the newest of its cluster."""
        if self.code == STATE_BEHIND:
            return
        self.code, self.message = STATE_BEHIND, behind_message(finding)
        _log.error("standstill", extra={"code": self.code, "reason": self.message})
        self.begun(finding)

    def await_confirmation(self) -> None:
        """Give no orders until an operator has said that the cluster of the backup is no more."""
        self.code, self.message = RESTORE_UNCONFIRMED, UNCONFIRMED
        _log.warning("standstill", extra={"code": self.code, "reason": self.message})

    def end(self) -> None:
        """Act (again)."""
        self.code, self.message = "", ""

    @property
    def refusal(self) -> str:
        """Why no request may change anything; empty = one may, as in a restored state before it is confirmed."""
        return self.message if self.code == STATE_BEHIND else ""


UNCONFIRMED = (
    "this state was restored from a backup, and no node gets an order before an operator has said that the scheduler "
    "it was taken from runs no more: `cotenant nodes confirm`, or `cotenant restore` with --confirm"
)


def behind_message(finding: str) -> str:
    """Return why a scheduler whose state is not the newest stands still, and the way out."""
    return (
        f"this state is older than what its nodes have seen ({finding}): a copy, a machine that was set back, or a "
        "second scheduler. No order is given and no job taken. Start the scheduler on the newest state; if this is the "
        "newest that is left, `cotenant backup FOLDER`, stop the scheduler, `cotenant restore FOLDER --force`, start "
        "it, `cotenant nodes confirm`"
    )
