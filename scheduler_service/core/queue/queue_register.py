"""Who waits for whom, who is a task of which array, who has a time limit, who repeats whom: indexes over jobs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.queue_terms import QueueTerms


class QueueRegister:
    """Kept up to date by the state that owns it; only jobs that ask something of the queue are in it.

    All are living ones, but for repetitions, which are known as long as the job itself.

    Attributes:
        prioritized: Living jobs of another class than normal.
    """

    def __init__(self) -> None:
        self.prioritized = 0
        self._children: dict[str, dict[str, None]] = {}
        self._tasks: dict[str, list[tuple[int, str]]] = {}
        self._running_tasks: dict[str, int] = {}
        self._limited: dict[str, None] = {}
        self._repetitions: dict[str, dict[str, None]] = {}

    @property
    def limited_job_ids(self) -> AbstractSet[str]:
        """Jobs with a time limit that hold GPUs."""
        return self._limited.keys()

    def children_of(self, job_id: str) -> tuple[str, ...]:
        """Return the living jobs that wait for a job, or waited for it."""
        return tuple(self._children.get(job_id, ()))

    def tasks_of(self, array_id: str) -> Iterator[str]:
        """Yield the living tasks of an array in the order of their indexes."""
        return (job_id for _, job_id in self._tasks.get(array_id, ()))

    def running_tasks(self, array_id: str) -> int:
        """Return how many tasks of an array hold GPUs."""
        return self._running_tasks.get(array_id, 0)

    def repetitions_of(self, job_id: str) -> tuple[str, ...]:
        """Return the known jobs that are repetitions of a job itself, ended ones among them, oldest first."""
        return tuple(self._repetitions.get(job_id, ()))

    def forget(self, job: JobRecord) -> None:
        """Drop a job that has ended and is remembered no more."""
        repetitions = self._repetitions.get(job.request.terms.retry_of, {})
        repetitions.pop(job.job_id, None)
        if not repetitions:
            self._repetitions.pop(job.request.terms.retry_of, None)

    def note(self, job: JobRecord, before: JobRecord | None) -> None:
        """Bring the indexes up to date with a job that was stored."""
        terms, old = job.request.terms, before.request.terms if before is not None else None
        is_living, was_living = not job.has_ended, before is not None and not before.has_ended
        self.prioritized += (is_living and terms.priority != 0) - (was_living and old is not None and old.priority != 0)
        if before is None and terms.retry_of:
            self._repetitions.setdefault(terms.retry_of, {})[job.job_id] = None
        if is_living and not was_living:
            self._enter(job.job_id, terms)
        elif was_living and not is_living:
            self._leave(job.job_id, terms)
        if job.holds_gpus and terms.time_limit_ms:
            self._limited[job.job_id] = None
        elif self._limited:
            self._limited.pop(job.job_id, None)
        if terms.array_id:
            self._note_task(terms.array_id, job.holds_gpus, before is not None and before.holds_gpus)

    def _note_task(self, array_id: str, holds: bool, held: bool) -> None:
        """Count the tasks of an array that hold GPUs, as long as any of its tasks lives."""
        if array_id not in self._tasks:
            self._running_tasks.pop(array_id, None)
        elif holds is not held:
            self._running_tasks[array_id] = self._running_tasks.get(array_id, 0) + (1 if holds else -1)

    def _enter(self, job_id: str, terms: QueueTerms) -> None:
        for parent_id in terms.after_job_ids:
            self._children.setdefault(parent_id, {})[job_id] = None
        if terms.array_id:
            insort(self._tasks.setdefault(terms.array_id, []), (terms.array_index, job_id))

    def _leave(self, job_id: str, terms: QueueTerms) -> None:
        for parent_id in terms.after_job_ids:
            children = self._children[parent_id]
            del children[job_id]
            if not children:
                del self._children[parent_id]
        if terms.array_id:
            tasks = self._tasks[terms.array_id]
            del tasks[bisect_left(tasks, (terms.array_index, job_id))]
            if not tasks:
                del self._tasks[terms.array_id]
