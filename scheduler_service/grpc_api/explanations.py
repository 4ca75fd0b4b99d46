"""Answers why jobs wait off the event loop: heartbeats, submissions and cancellations do not wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.decisions import Decision
from scheduler_service.core.explanation import Explanation
from scheduler_service.core.records import Reason
from scheduler_service.errors import OverloadedError
from scheduler_service.grpc_api.translate_jobs import candidate_messages
from scheduler_service.live_loop import LiveLoop

# Each holds a copy of the cluster's records, and waits for those before it.
WAITING_MAX = 100
ANSWERS_KEPT_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why a job is where it is, with the GPUs that were looked at; their messages are shared and only read."""

    reason: Reason
    candidates: Sequence[scheduling_pb2.Candidate]


@dataclass(slots=True, kw_only=True)
class Explanations:
    """One thread answers one question after the other: more would only share the interpreter with the event loop.

    Attributes:
        loop: Whose engine is asked; the same question before the next event gets the same answer.
    """

    loop: LiveLoop
    _answers: OrderedDict[tuple[int, str], asyncio.Future[Explained]] = field(default_factory=OrderedDict)
    _waiting: int = 0
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="explain"))

    async def of(self, job_id: str) -> Explained:
        """Return why a job is where it is at this instant.

        Raises:
            KeyError: No such job is known (any more).
            OverloadedError: Too many questions wait.
        """
        place = (self.loop.sequence, job_id)
        answer = self._answers.get(place)
        if answer is None:
            found = self.loop.engine.explanation(job_id)
            if isinstance(found, Decision):
                return _explained(found)
            answer = self._answers[place] = self._ask(found)
            while len(self._answers) > ANSWERS_KEPT_MAX:
                self._answers.popitem(last=False)
        # A caller that leaves takes the answer from nobody else.
        return await asyncio.shield(answer)

    def _ask(self, question: Explanation) -> asyncio.Future[Explained]:
        if self._waiting >= WAITING_MAX:
            raise OverloadedError(f"{WAITING_MAX} questions wait to be explained; ask again in a moment")
        self._waiting += 1
        answer = asyncio.get_running_loop().run_in_executor(self._thread, lambda: _explained(question.find()))
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: asyncio.Future[Explained]) -> None:
        self._waiting -= 1
        if not answer.cancelled():
            answer.exception()


def _explained(decision: Decision) -> Explained:
    return Explained(reason=decision.reason, candidates=candidate_messages(decision.candidates))
