"""Jobs that were handed in again, and again: one piece of work under several ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from scheduler_service.core.records import Phase
from scheduler_service.core.state import ClusterState


class OneAtATime:
    """Stores one repetition after the other: two that are proposed together would not see each other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, store: Callable[[], Awaitable[str]]) -> str:
        """Return what `store` returns, once it was its turn.

        A caller that goes before that waits no more. What has begun is stored to its end, though its caller has gone:
        until then the next one does not see it.
        """
        await self._turn.acquire()
        return await asyncio.shield(self._finish(store))

    async def _finish(self, store: Callable[[], Awaitable[str]]) -> str:
        try:
            return await store()
        finally:
            self._turn.release()


def living_repetition(state: ClusterState, job_id: str) -> str:
    """Return which job of the same work has not ended; empty = none."""
    known = (state.jobs[one] for one in _same_work(state, job_id) if one in state.jobs)
    return next((job.job_id for job in known if not job.has_ended), "")


def has_only_failed(state: ClusterState, job_id: str) -> bool:
    """Return whether the work of a known job has been done under no id."""
    phases = {state.jobs[one].phase for one in _same_work(state, job_id) if one in state.jobs}
    return job_id in state.jobs and Phase.FINISHED not in phases


def _same_work(state: ClusterState, job_id: str) -> Iterator[str]:
    """Yield the first job that was handed in for a work, then its repetitions and theirs; the look ends with them."""
    first = job_id
    while first in state.jobs and state.jobs[first].request.terms.retry_of:
        first = state.jobs[first].request.terms.retry_of
    waiting = [first]
    while waiting:
        yield (one := waiting.pop())
        waiting += state.register.repetitions_of(one)
