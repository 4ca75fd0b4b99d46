"""The jobs that a policy may start now, in submission order, without a copy for every decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from scheduler_service.core.view import PendingJob


class ReadyQueue(Sequence[PendingJob]):
    """A live sequence; valid until the state changes, as all of a view is.

    Args:
        order: (submitted_at_ms, job id), ascending.
        jobs: The jobs by id.
    """

    def __init__(self, order: Sequence[tuple[int, str]], jobs: Mapping[str, PendingJob]) -> None:
        self._order, self.by_id = order, jobs

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[PendingJob]:
        jobs = self.by_id
        return (jobs[job_id] for _, job_id in self._order)

    @overload
    def __getitem__(self, position: int) -> PendingJob: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[PendingJob]: ...

    def __getitem__(self, position: int | slice) -> PendingJob | Sequence[PendingJob]:
        if isinstance(position, slice):
            return tuple([self.by_id[job_id] for _, job_id in self._order[position]])
        return self.by_id[self._order[position][1]]
