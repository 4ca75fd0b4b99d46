"""Long answers about many jobs, made a few at a time so that the event loop goes on in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Reversible, Sequence
from typing import cast

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.state import ClusterState
from scheduler_service.grpc_api import pages
from scheduler_service.grpc_api.jobs.translate_jobs import job_message, name_neighbours

# Some two milliseconds of work.
JOBS_AT_ONCE = 20
CANDIDATES_AT_ONCE = 200


class NewestFirst:
    """The order of all jobs by number, brought up to date with the jobs that came since it was last read."""

    def __init__(self) -> None:
        self._job_ids: list[str] = []
        self._last_added = ""

    def jobs(self, state: ClusterState) -> Iterator[JobRecord]:
        """Yield the jobs that are known now, the newest first."""
        added = self._added(state)
        # After a restart jobs are not known in the order of their numbers.
        if not self._job_ids or len(self._job_ids) + len(added) > 2 * len(state.jobs):
            added, self._job_ids = list(state.jobs), []
        if added:
            self._last_added = next(_newest_known_first(state))
            self._job_ids = sorted([*added, *self._job_ids], key=job_number, reverse=True)
        known = state.jobs
        return (known[job_id] for job_id in self._job_ids if job_id in known)

    def _added(self, state: ClusterState) -> list[str]:
        added: list[str] = []
        for job_id in _newest_known_first(state):
            if job_id == self._last_added:
                return added
            added.append(job_id)
        # The last one that was added has left: everything is put in order anew.
        self._job_ids = []
        return added


def _newest_known_first(state: ClusterState) -> Iterator[str]:
    # A view of a dictionary, whose keys have an order.
    return reversed(cast("Reversible[str]", state.jobs))


def job_number(job_id: str) -> int:
    """Return N of "job-N"; 0 for ids that this scheduler did not give."""
    number = job_id.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


async def job_messages(state: ClusterState, jobs: Sequence[JobRecord], turn: asyncio.Lock) -> list[scheduling_pb2.Job]:
    """Return the messages of jobs, or of the first ones, where these are more than an answer holds.

    Each is of its own instant, as the pages of a list are.

    Args:
        state: The cluster.
        jobs: The jobs.
        turn: Held while a part is made: however many ask at once, the loop waits for one part at a time.
    """
    messages: list[scheduling_pb2.Job] = []
    size_bytes = 0
    for place in range(0, len(jobs), JOBS_AT_ONCE):
        async with turn:
            messages += [job_message(state, job) for job in jobs[place : place + JOBS_AT_ONCE]]
            await asyncio.sleep(0)
        size_bytes += sum(message.ByteSize() for message in messages[place:])
        if size_bytes > pages.PAGE_BYTES_MAX:
            break
    return messages


async def add_neighbours(state: ClusterState, job: JobRecord, candidates: Sequence[scheduling_pb2.Candidate]) -> None:
    """Add to every GPU that was looked at which jobs are there now."""
    for place in range(0, len(candidates), CANDIDATES_AT_ONCE):
        name_neighbours(state, job, candidates[place : place + CANDIDATES_AT_ONCE])
        await asyncio.sleep(0)
