"""Answers why jobs wait off the event loop: heartbeats, submissions and cancellations do not wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.decisions import Decision
from scheduler_service.core.planning.explanation import Explanation
from scheduler_service.core.records import Reason
from scheduler_service.grpc_api.jobs.translate_jobs import candidate_messages
from scheduler_service.grpc_api.side_thread import SideThread
from scheduler_service.live_loop import LiveLoop

ANSWERS_KEPT_MAX = 64
WAITING_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why a job is where it is, with the GPUs that were looked at; their messages are shared and only read."""

    reason: Reason
    candidates: Sequence[scheduling_pb2.Candidate]


@dataclass(slots=True, kw_only=True)
class Explanations:
    """Answers one question after the other.

    Attributes:
        loop: Whose engine is asked; the same question before the next event gets the same answer.
    """

    loop: LiveLoop
    _answers: OrderedDict[tuple[int, str], asyncio.Future[Explained]] = field(default_factory=OrderedDict)
    _frozen: tuple[int, Explanation | None] = (0, None)
    _thread: SideThread = field(default_factory=lambda: SideThread("explain", waiting_max=WAITING_MAX))

    async def of(self, job_id: str) -> Explained:
        """Return why a job is where it is at this instant.

        Raises:
            KeyError: No such job is known (any more).
            OverloadedError: Too many questions wait.
        """
        place = (self.loop.sequence, job_id)
        answer = self._answers.get(place)
        if answer is None:
            found = self._question(job_id)
            if isinstance(found, Decision):
                return _explained(found)
            answer = self._answers[place] = self._thread.begin(lambda: _explained(found.find()))
            while len(self._answers) > ANSWERS_KEPT_MAX:
                self._answers.popitem(last=False)
        # A caller that leaves takes the answer from no other caller.
        return await asyncio.shield(answer)

    def _question(self, job_id: str) -> Explanation | Decision:
        """Return what to find out; questions at one instant share its copy."""
        frozen_at, frozen = self._frozen
        if frozen is not None and frozen_at == self.loop.sequence and job_id in frozen.pending:
            return frozen.about(job_id)
        found = self.loop.engine.explanation(job_id)
        if isinstance(found, Explanation):
            self._frozen = self.loop.sequence, found
        return found


def _explained(decision: Decision) -> Explained:
    return Explained(reason=decision.reason, candidates=candidate_messages(decision.candidates))
