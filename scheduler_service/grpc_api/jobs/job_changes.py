"""The newest changes of jobs, kept once for all watchers: each watcher remembers only how far it has read."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container
from dataclasses import dataclass, field

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.state import ClusterState
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from scheduler_service.grpc_api.visibility import Visibility, redacted

CHANGES_KEPT_MAX = 10_000
# Watchers read nearly in step; a message may hold some 200 KB.
MESSAGES_KEPT_MAX = 256


@dataclass(slots=True, kw_only=True)
class _Message:
    """About one change: as it is, and encoded by what of the job is seen."""

    job: scheduling_pb2.Job
    encoded: dict[Visibility, bytes] = field(default_factory=dict)


class JobChanges:
    """Numbered changes, the oldest of which are dropped; which jobs changed since when stays known."""

    def __init__(self) -> None:
        self._changes: deque[JobRecord] = deque(maxlen=CHANGES_KEPT_MAX)
        self._last_of: dict[str, int] = {}
        self._messages: OrderedDict[int, _Message] = OrderedDict()
        self.end = 0

    @property
    def start(self) -> int:
        """Number of the oldest change that is kept."""
        return self.end - len(self._changes)

    def add(self, job: JobRecord) -> None:
        """Note that a job has changed."""
        self._changes.append(job)
        self._last_of[job.job_id] = self.end
        self.end += 1

    def job_at(self, number: int) -> JobRecord:
        """Return the job of a change that is kept, as it was then."""
        return self._changes[number - self.start]

    def message_at(self, number: int, state: ClusterState) -> scheduling_pb2.Job:
        """Return the message about a change that is kept, made once for all who read it."""
        return self._message(number, state).job

    def encoded_at(self, number: int, state: ClusterState, visibility: Visibility) -> bytes:
        """Return a change that is kept as an encoded WatchJobsResponse with one of `jobs`, made once for all."""
        message = self._message(number, state)
        encoded = message.encoded.get(visibility)
        if encoded is None:
            # The response holds a copy: the message is shared by all.
            response = scheduling_pb2.WatchJobsResponse(jobs=[message.job])
            redacted(response.jobs[0], visibility)
            encoded = message.encoded[visibility] = response.SerializeToString()
        return encoded

    def _message(self, number: int, state: ClusterState) -> _Message:
        message = self._messages.get(number)
        if message is None:
            message = self._messages[number] = _Message(job=job_message(state, self.job_at(number)))
            while len(self._messages) > MESSAGES_KEPT_MAX:
                self._messages.popitem(last=False)
        return message

    def changed_since(self, number: int, wanted: Container[str]) -> list[str]:
        """Return which wanted jobs changed at this number or later, the longest unchanged first."""
        found = [job_id for job_id, last in self._last_of.items() if last >= number and job_id in wanted]
        return sorted(found, key=self._last_of.__getitem__)

    def forget_unknown(self, known: Container[str], count: int) -> None:
        """Drop the numbers of jobs that are known no more, once they are as many as the known ones.

        Args:
            known: Ids of the known jobs.
            count: How many these are.
        """
        if len(self._last_of) > 2 * count + CHANGES_KEPT_MAX:
            self._last_of = {job_id: last for job_id, last in self._last_of.items() if job_id in known}

    def clear(self) -> None:
        """Forget everything while there are no watchers; numbers go on."""
        self._changes.clear()
        self._last_of.clear()
        self._messages.clear()
