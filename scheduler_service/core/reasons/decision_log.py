"""The newest decision of every living job; a round costs what it decides, however long the queue is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from scheduler_service.core.decisions import SHARED_HOLDS, Decision, Hold, HoldMany, HoldRest
from scheduler_service.core.records import JobRequest, Reason

_SETTLED = 1 << 62
"""Round of decisions that no later hold for the rest of the queue replaces."""


class DecisionLog(Mapping[str, Decision]):
    """The newest decision of every living job; a hold shared by many jobs is unfolded on reading.

    Args:
        lane_of: Returns the lane in which a job waits: a hold for the rest of a lane is about its jobs alone.
        request_of: Returns what a living job asks for: such a hold may name reasons by shape. None = none does.
    """

    def __init__(
        self,
        lane_of: Callable[[str], object] = lambda job_id: None,
        request_of: Callable[[str], JobRequest] | None = None,
    ) -> None:
        self._lane_of, self._request_of = lane_of, request_of
        self._decisions: dict[str, tuple[int, Decision | None]] = {}
        self._round = 0
        self._lane_holds: dict[object, tuple[int, HoldRest]] = {}

    def __getitem__(self, job_id: str) -> Decision:
        decision = self._stored(job_id)
        if decision is None:
            raise KeyError(job_id)
        if isinstance(decision, SHARED_HOLDS):
            return Hold(job_id=job_id, reason=self._reason(job_id, decision), until_ms=decision.until_ms)
        return decision

    def reason_of(self, job_id: str) -> Reason | None:
        """Return why the job is where it is, as its decision says, which is not unfolded for it; None = undecided."""
        decision = self._stored(job_id)
        return self._reason(job_id, decision) if decision is not None else None

    def _stored(self, job_id: str) -> Decision | None:
        known = self._decisions.get(job_id)
        return (self._later_hold(job_id, known[0]) or known[1]) if known is not None else None

    def _reason(self, job_id: str, decision: Decision) -> Reason:
        if isinstance(decision, HoldRest) and self._request_of is not None:
            return decision.reason_of(self._request_of(job_id))
        return decision.reason

    def __iter__(self) -> Iterator[str]:
        return (job_id for job_id in self._decisions if job_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, job_id: object) -> bool:
        known = self._decisions.get(job_id) if isinstance(job_id, str) else None
        return known is not None and (known[1] is not None or self._later_hold(str(job_id), known[0]) is not None)

    def _later_hold(self, job_id: str, round_: int) -> HoldRest | None:
        """Return the hold for the rest of a job's lane where it came after a round."""
        rest = self._lane_holds.get(self._lane_of(job_id)) if self._lane_holds and round_ != _SETTLED else None
        return rest[1] if rest is not None and rest[0] > round_ else None

    def record_round(self, decisions: Iterable[Decision], lane: object = None) -> None:
        """Keep the decisions of one round; a hold for the rest is about every job of the lane without its own."""
        self._round += 1
        for decision in decisions:
            if isinstance(decision, HoldRest):
                self._lane_holds[lane] = (self._round, decision)
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
