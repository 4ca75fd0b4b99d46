"""The jobs that may start now in the order of their remaining time, or of their service, kept from event to event.

Jobs that are alike but for their length are in one group: what no place is good enough for, none is for the longer ones
of its group. A policy looks at the heads of groups, of which there are few, instead of at the whole queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from heapq import merge
from math import inf
from typing import Self

from scheduler_service.core.cluster_view.step_times import step_ms_of
from scheduler_service.core.cluster_view.view import PendingJob, Predictions
from scheduler_service.core.jobs.job_shapes import shape_of as shape_of
from scheduler_service.core.records import JobRequest

Turn = tuple[float, int, str]
"""Where a job stands: its remaining time in ms on the fastest kind of GPU (or its level), its submission, its id."""


class RemainingTimeGroup:
    """Jobs of one shape, by their steps left.

    Args:
        request: One of them.
        step_ms: Of one optimizer step on the fastest kind of GPU; None = unknown, and all count as one length.

    Attributes:
        shape: What all of them have in common.
        lengths: Steps left, each once, ascending.
    """

    __slots__ = ("_jobs", "head", "lengths", "request", "shape", "step_ms")

    def __init__(self, request: JobRequest, step_ms: float | None) -> None:
        self.request, self.step_ms, self.shape = request, step_ms, shape_of(request)
        self.lengths: list[int] = []
        self.head: Turn | None = None
        self._jobs: dict[int, list[tuple[int, str]]] = {}

    def remaining_ms(self, length: int) -> float:
        """Return the remaining time of a length."""
        return inf if self.step_ms is None else length * self.step_ms

    def put(self, length: int, submitted_at_ms: int, job_id: str) -> None:
        """Add a job."""
        if length not in self._jobs:
            insort(self.lengths, length)
        insort(self._jobs.setdefault(length, []), (submitted_at_ms, job_id))

    def fill(self, places: Iterable[tuple[int, int, str]]) -> None:
        """Add jobs to an empty group, each by its steps left, its submission and its id."""
        for length, submitted_at_ms, job_id in sorted(places):
            self._jobs.setdefault(length, []).append((submitted_at_ms, job_id))
        self.lengths = [*self._jobs]

    def remove(self, length: int, submitted_at_ms: int, job_id: str) -> None:
        """Take a job out."""
        here = self._jobs[length]
        del here[bisect_left(here, (submitted_at_ms, job_id))]
        if not here:
            del self._jobs[length]
            del self.lengths[bisect_left(self.lengths, length)]

    def first(self) -> Turn | None:
        """Return the first job, or None when none is left."""
        if not self.lengths:
            return None
        length = self.lengths[0]
        return (self.remaining_ms(length), *self._jobs[length][0])

    def firsts_after(self, turn: Turn | None, is_settled: Callable[[int], bool]) -> Iterator[tuple[Turn, int]]:
        """Yield the first of every length after one turn, with its steps left.

        Args:
            turn: That turn; None = from the beginning.
            is_settled: Says which lengths are to be passed over.
        """
        place = bisect_left(self.lengths, turn[0], key=self.remaining_ms) if turn is not None else 0
        while place < len(self.lengths):
            length = self.lengths[place]
            place += 1
            if is_settled(length):
                continue
            remaining_ms, jobs = self.remaining_ms(length), self._jobs[length]
            later = bisect_right(jobs, turn[1:]) if turn is not None and remaining_ms == turn[0] else 0
            if later < len(jobs):
                yield (remaining_ms, *jobs[later]), length

    def next_after(self, turn: Turn, length: int) -> Turn | None:
        """Return the first job after one of this group, which has so many steps left; None = that is the last."""
        jobs = self._jobs[length]
        later = bisect_right(jobs, turn[1:])
        if later < len(jobs):
            return (turn[0], *jobs[later])
        place = bisect_right(self.lengths, length)
        if place == len(self.lengths):
            return None
        length = self.lengths[place]
        return (self.remaining_ms(length), *self._jobs[length][0])

    def has_between(self, length: int, after: Turn, before: Turn) -> bool:
        """Say whether a job of this length comes after one job of it, and before some other job."""
        jobs = self._jobs[length]
        place = bisect_right(jobs, after[1:])
        return place < len(jobs) and (self.remaining_ms(length), *jobs[place]) < before

    def lengths_shorter(self, turn: Turn) -> int:
        """Return how many lengths are shorter than this."""
        return bisect_left(self.lengths, turn[0], key=self.remaining_ms)

    def lengths_before(self, turn: Turn) -> int:
        """Return how many lengths have a job that comes before this."""
        count = self.lengths_shorter(turn)
        if count < len(self.lengths):
            length = self.lengths[count]
            count += (self.remaining_ms(length), *self._jobs[length][0]) < turn
        return count


class GroupedQueue(ABC):
    """Every job that may start now, in one order.

    Attributes:
        heads: Who comes first in each group, ascending, by the GPUs that the group's jobs ask for.
    """

    def __init__(self) -> None:
        self._groups: dict[object, RemainingTimeGroup] = {}
        self._places: dict[str, tuple[RemainingTimeGroup, int, int]] = {}
        self.heads: dict[int, list[Turn]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, job: PendingJob) -> None:
        """Add a job, or put it where it belongs now."""
        request = job.request
        step_ms = self._step_ms(request)
        length, name = self._length(job, step_ms), (shape_of(request), step_ms)
        group, place = self._groups.get(name), self._places.get(request.job_id)
        if place is not None:
            if group is not None and place == (group, length, job.submitted_at_ms):
                return
            self.remove(request.job_id)
            group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = RemainingTimeGroup(request, step_ms)
        # The group, not its name: that is a long tuple, of which every look would compute the hash.
        self._places[request.job_id] = group, length, job.submitted_at_ms
        group.put(length, job.submitted_at_ms, request.job_id)
        self._note_head(group)

    def fill(self, jobs: Iterable[PendingJob]) -> None:
        """Add jobs to an empty queue: what equal ones have in common is found once, and every order is sorted once."""
        members: dict[tuple[object, float | None], list[tuple[int, int, str]]] = {}
        known: dict[object, tuple[RemainingTimeGroup, list[tuple[int, int, str]]]] = {}
        for job in jobs:
            request = job.request
            alike = shape_of(request), request.steps_total > 0
            found = known.get(alike)
            if found is None:
                name = alike[0], self._step_ms(request)
                group = self._groups.setdefault(name, RemainingTimeGroup(request, name[1]))
                found = known[alike] = group, members.setdefault(name, [])
            group, places = found
            length = self._length(job, group.step_ms)
            places.append((length, job.submitted_at_ms, request.job_id))
            self._places[request.job_id] = group, length, job.submitted_at_ms
        for name, places in members.items():
            self._groups[name].fill(places)
            self._note_head(self._groups[name])

    def remove(self, job_id: str) -> None:
        """Take a job out; one that is not there stays away."""
        place = self._places.pop(job_id, None)
        if place is None:
            return
        group, length, submitted_at_ms = place
        group.remove(length, submitted_at_ms, job_id)
        self._note_head(group)
        if group.head is None:
            del self._groups[group.shape, group.step_ms]

    def group_of(self, turn: Turn) -> RemainingTimeGroup:
        """Return the group of a job."""
        return self._places[turn[2]][0]

    def next_after(self, turn: Turn) -> Turn | None:
        """Return the first job of the group of a job that comes after it; None = there is none."""
        group, length, _ = self._places[turn[2]]
        return group.next_after(turn, length)

    def all_groups(self) -> Collection[RemainingTimeGroup]:
        """Return all groups, in no order; of a narrowed queue also those that it leaves out."""
        return self._groups.values()

    def groups(self, widths: Iterable[int]) -> Iterator[RemainingTimeGroup]:
        """Yield the groups of jobs that ask for one of these numbers of GPUs, in the order of their heads."""
        return map(self.group_of, merge(*(self.heads[gpus] for gpus in widths)))

    def shortest(self, gpus_max: int, remaining_max_ms: float) -> Iterator[Turn]:
        """Yield the jobs that ask for no more GPUs and run no longer, group by group, the first of each length."""
        for group in self.groups([gpus for gpus in self.heads if gpus <= gpus_max]):
            for turn, _ in group.firsts_after(None, lambda length: False):
                if turn[0] > remaining_max_ms:
                    break
                yield turn

    def narrowed(self, gpus_max: int) -> Self:
        """Return the same queue without the jobs that ask for more GPUs; valid until the next change."""
        narrow = copy(self)
        narrow.heads = {gpus: heads for gpus, heads in self.heads.items() if gpus <= gpus_max}
        return narrow

    @abstractmethod
    def _step_ms(self, request: JobRequest) -> float | None:
        """Return what a group counts a length as; jobs of one shape differ in it only where one has no steps."""

    @abstractmethod
    def _length(self, job: PendingJob, step_ms: float | None) -> int:
        """Return the length of a job, of which a group counts each so."""

    def _note_head(self, group: RemainingTimeGroup) -> None:
        head, gpus = group.first(), group.request.gpus
        if head == group.head:
            return
        heads = self.heads.setdefault(gpus, [])
        if group.head is not None:
            del heads[bisect_left(heads, group.head)]
        if head is not None:
            insort(heads, head)
        elif not heads:
            del self.heads[gpus]
        group.head = head


class RemainingTimeQueue(GroupedQueue):
    """The shortest first.

    Args:
        devices: The device types of the cluster; the remaining time is that on the fastest one.
        predictions: What is known of step times.
    """

    def __init__(self, devices: Iterable[str], predictions: Predictions) -> None:
        super().__init__()
        self._devices = sorted(set(devices))
        self._predictions = predictions

    def _length(self, job: PendingJob, step_ms: float | None) -> int:
        return max(job.request.steps_total - job.steps_done, 0) if step_ms else 0

    def _step_ms(self, request: JobRequest) -> float | None:
        """Return the step time on the fastest kind of GPU; nothing is known of a job without steps either."""
        if request.steps_total <= 0:
            return None
        found = (
            step_ms_of(request, self._predictions.job(request.key, device), gpus=request.gpus)
            for device in self._devices
        )
        return min((step_ms for step_ms in found if step_ms is not None), default=None)


class ServiceQueue(GroupedQueue):
    """The least served first, by limits on GPU time; of one level, or without limits, in the order of submission.

    Args:
        limits_gpu_ms: GPU time at which a job leaves each level but the last, ascending.
    """

    def __init__(self, limits_gpu_ms: Sequence[float] = ()) -> None:
        super().__init__()
        self._limits_gpu_ms = tuple(limits_gpu_ms)
        self._turns: list[Turn] = []

    def put(self, job: PendingJob) -> None:
        """Add a job, or put it where it belongs now."""
        before = self._places.get(job.request.job_id)
        super().put(job)  # which removes a job that stood elsewhere
        turn = self._turn(job.request.job_id)
        if turn is not None and self._places[job.request.job_id] is not before:
            insort(self._turns, turn)

    def fill(self, jobs: Iterable[PendingJob]) -> None:
        """Add jobs to an empty queue."""
        super().fill(jobs)
        places = self._places.items()
        self._turns = sorted((float(length), at_ms, job_id) for job_id, (_, length, at_ms) in places)

    def remove(self, job_id: str) -> None:
        """Take a job out; one that is not there stays away."""
        turn = self._turn(job_id)
        if turn is not None:
            del self._turns[bisect_left(self._turns, turn)]
        super().remove(job_id)

    def jobs_before(self, turn: Turn) -> int:
        """Return how many jobs come before a place in the order; those that a narrowed queue leaves out count too."""
        return bisect_left(self._turns, turn)

    def _turn(self, job_id: str) -> Turn | None:
        place = self._places.get(job_id)
        return (float(place[1]), place[2], job_id) if place is not None else None

    def _step_ms(self, request: JobRequest) -> float | None:
        return 1.0

    def _length(self, job: PendingJob, step_ms: float | None) -> int:
        return bisect_right(self._limits_gpu_ms, job.attained_gpu_ms)
