"""The jobs that wait: those that a policy may start now, by lane and by submission, and those that are held back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from types import MappingProxyType

from scheduler_service.core.cluster_view.remaining_time_queue import RemainingTimeQueue, ServiceQueue
from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.jobs.job_records import JobRecord, pending_view
from scheduler_service.core.queue.lanes import PLAIN_LANE, Lane, LaneName, ReadyQueue, merge_lanes, name_lane
from scheduler_service.core.queue.queue_terms import PRIORITY_MAX
from scheduler_service.core.records import Reason

NO_LANE = LaneName(priority=PRIORITY_MAX + 1)
"""The name of no lane, since there is no such class: showing it shows no job."""


class WaitingJobs:
    """Pending jobs; kept up to date by the state that owns it.

    Attributes:
        holds: Pending jobs that the engine itself holds back, and why.
        lanes: Those with a job in them, by name.
        only_lane: The only one of these; None = there are several, and that of plain jobs where there is none.
        shown_lane: The lane that is shown, or the only one.
    """

    def __init__(self) -> None:
        self._lanes: dict[LaneName, Lane] = {}
        self.lanes: Mapping[LaneName, Lane] = MappingProxyType(self._lanes)
        self._lane_names: dict[str, LaneName] = {}
        self._plain = Lane()
        self._shown: LaneName | None = None
        self.only_lane: LaneName | None = PLAIN_LANE
        self.shown_lane: LaneName | None = PLAIN_LANE
        self._narrow: ReadyQueue | None = None
        self._are_few = False
        self._gpus_max: int | None = None
        self._by_tenant = False
        self._holds: dict[str, Reason] = {}
        self.holds: Mapping[str, Reason] = MappingProxyType(self._holds)
        self._by_key: dict[str, dict[str, None]] = {}

    def ready_jobs(self) -> ReadyQueue:
        """Return the jobs that a policy may start now, in submission order; valid until the next change.

        While a lane is shown, these are the jobs of that lane.
        """
        name = self.shown_lane
        if self._narrow is not None:
            return self._narrow
        if name is not None:
            return self._lanes[name].queue if name in self._lanes else ReadyQueue((), {})
        return merge_lanes(self._lanes.values())

    @contextmanager
    def showing(
        self, name: LaneName, gpus_max: int | None = None, job_ids: AbstractSet[str] | None = None
    ) -> Iterator[None]:
        """Show the jobs of one lane alone, and of these only those that ask for no more GPUs, or only these few."""
        self._shown, self._gpus_max = name, gpus_max
        self._note_shown_lane()
        lane = self._lanes.get(name)
        if lane is not None and job_ids is not None:
            self._narrow, self._are_few = lane.chosen(job_ids), True
        elif lane is not None and gpus_max is not None and lane.wider_ids(gpus_max):
            self._narrow = lane.narrowed(gpus_max)
        try:
            yield
        finally:
            self._shown = self._narrow = None
            self._are_few = False
            self._note_shown_lane()

    def lane_of(self, job_id: str) -> LaneName | None:
        """Return the lane of a ready job."""
        return self._lane_names.get(job_id)

    def split_by_tenant(self, by_tenant: bool, jobs: Collection[JobRecord]) -> None:
        """Have lanes of tenants, or of all tenants together.

        Args:
            by_tenant: Whether there are rules for tenants.
            jobs: The pending jobs.
        """
        if by_tenant is self._by_tenant:
            return
        self._by_tenant = by_tenant
        for job in jobs:
            if job.job_id in self._lane_names:
                self._show(job)

    def with_key(self, key: str) -> tuple[str, ...]:
        """Return the waiting jobs of a key."""
        return tuple(self._by_key.get(key, ()))

    def read_lengths(self, devices: Iterable[str], predictions: Predictions) -> RemainingTimeQueue:
        """Return the ready jobs in the order of their remaining time; kept from the first reading on."""
        name = self.shown_lane
        if name is not None and name in self._lanes and not self._are_few:
            lengths = self._lanes[name].read_lengths(devices, predictions)
            return lengths if self._narrow is None or self._gpus_max is None else lengths.narrowed(self._gpus_max)
        everyone = Lane()
        for job in self.ready_jobs():
            everyone.put(job)
        return everyone.read_lengths(devices, predictions)

    def read_services(self, limits_gpu_ms: tuple[float, ...]) -> ServiceQueue | None:
        """Return the ready jobs of the lane that is shown in the order of their service; None = these are no lane's."""
        name = self.shown_lane
        if name is None or name not in self._lanes or self._are_few:
            return None
        services = self._lanes[name].read_services(limits_gpu_ms)
        return services if self._narrow is None or self._gpus_max is None else services.narrowed(self._gpus_max)

    def forget_lengths(self) -> None:
        """Build the order by remaining time anew: other devices than before are there."""
        for lane in (self._plain, *self._lanes.values()):
            lane.forget_lengths()

    def add(self, job: JobRecord) -> None:
        """Let a job wait; it is ready unless it is held back."""
        self._by_key.setdefault(job.request.key, {})[job.job_id] = None
        self._show(job)

    def change(self, job: JobRecord) -> None:
        """Show a waiting job as it is now."""
        if job.job_id in self._lane_names:
            self._show(job)

    def remove(self, job: JobRecord) -> None:
        """Let a job wait no more."""
        job_id, key = job.request.job_id, job.request.key
        same_key = self._by_key[key]
        del same_key[job_id]
        if not same_key:
            del self._by_key[key]
        self._holds.pop(job_id, None)
        self._make_unready(job_id)

    def set_hold(self, job: JobRecord, reason: Reason | None) -> None:
        """Hold a job back from the policy, or (None) show it again."""
        if reason is None:
            self._holds.pop(job.job_id, None)
            if job.job_id not in self._lane_names:  # what is shown is kept up to date
                self._show(job)
        else:
            self._holds[job.job_id] = reason
            self._make_unready(job.job_id)

    def _show(self, job: JobRecord) -> None:
        name, job_id = name_lane(job.request, by_tenant=self._by_tenant), job.request.job_id
        if self._lane_names.get(job_id, name) != name:
            self._make_unready(job_id)
        lane = self._lanes.get(name)
        if lane is None:
            # That of most clusters keeps its orders while no job waits: building them costs more than one more job.
            lane = self._lanes[name] = self._plain if name == PLAIN_LANE else Lane()
            self._note_shown_lane()
        self._lane_names[job_id] = name
        lane.put(pending_view(job))

    def _make_unready(self, job_id: str) -> None:
        name = self._lane_names.pop(job_id, None)
        if name is None:
            return
        lane = self._lanes[name]
        lane.remove(job_id)
        if not lane:
            del self._lanes[name]
            self._note_shown_lane()

    def _note_shown_lane(self) -> None:
        """Find which lane is shown, or the only one: that is asked several times in every decision."""
        self.only_lane = next(iter(self._lanes), PLAIN_LANE) if len(self._lanes) <= 1 else None
        self.shown_lane = self.only_lane if self._shown is None else self._shown
