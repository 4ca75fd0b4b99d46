"""The newest decision of every living job; a round costs what it decides, however long the queue is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest

_SETTLED = 1 << 62
"""Round of decisions that no later hold for the rest of the queue replaces."""


class DecisionLog(Mapping[str, Decision]):
    """The newest decision of every living job; a hold shared by many jobs is unfolded on reading."""

    def __init__(self) -> None:
        self._decisions: dict[str, tuple[int, Decision | None]] = {}
        self._round = 0
        self._rest: tuple[int, HoldRest] | None = None

    def __getitem__(self, job_id: str) -> Decision:
        round_, decision = self._decisions[job_id]
        if self._rest is not None and self._rest[0] > round_:
            decision = self._rest[1]
        if decision is None:
            raise KeyError(job_id)
        if isinstance(decision, HoldMany | HoldRest):
            return Hold(job_id=job_id, reason=decision.reason, until_ms=decision.until_ms)
        return decision

    def __iter__(self) -> Iterator[str]:
        return (job_id for job_id in self._decisions if job_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, job_id: object) -> bool:
        known = self._decisions.get(job_id) if isinstance(job_id, str) else None
        return known is not None and (known[1] is not None or (self._rest is not None and self._rest[0] > known[0]))

    def record_round(self, decisions: Iterable[Decision]) -> None:
        """Keep the decisions of one round; a hold for the rest is about every job that has no decision of its own."""
        self._round += 1
        for decision in decisions:
            if isinstance(decision, HoldRest):
                self._rest = (self._round, decision)
            elif isinstance(decision, HoldMany):
                self._decisions.update(dict.fromkeys(decision.job_ids, (self._round, decision)))
            else:
                self._decisions[decision.job_id] = (self._round if isinstance(decision, Hold) else _SETTLED, decision)

    def record(self, decision: Decision) -> None:
        """Keep a decision about a job that no policy decides about now."""
        self._decisions[decision.job_id] = (_SETTLED, decision)

    def expect(self, job_id: str) -> None:
        """From now on policies decide about this job; until one does, its last decision stands."""
        known = self._decisions.get(job_id)
        if known is None or known[0] == _SETTLED:
            self._decisions[job_id] = (self._round, known[1] if known is not None else None)

    def forget(self, job_id: str) -> None:
        """Drop the decision of a job that has ended."""
        self._decisions.pop(job_id, None)
