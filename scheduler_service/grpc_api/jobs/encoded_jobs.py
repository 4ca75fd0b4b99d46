"""Jobs as they go over the wire, encoded once for all who begin to watch at about the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cotenant.access.callers import Caller
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.system_clock import read_monotonic_ns
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.state import ClusterState
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from scheduler_service.grpc_api.visibility import Visibility, owner_of, redacted, visibility_of

KEPT_NS = 5_000_000_000
"""So old may be what a watcher reads first of a job that has not changed: e.g. its co-located jobs."""
KEPT_BYTES_MAX = 64 << 20
BATCH_JOBS_MAX = 100
BATCH_BYTES_MAX = 256 << 10


@dataclass(slots=True, kw_only=True)
class _Encodings:
    """One job's, by what of it is seen."""

    job: JobRecord
    until_ns: int
    found: dict[Visibility, bytes] = field(default_factory=dict)

    def size_bytes(self) -> int:
        return sum(map(len, self.found.values()))


class EncodedJobs:
    """A bounded cache; a caller that learns that a job has changed says so with `forget`."""

    def __init__(self) -> None:
        self._kept: dict[str, _Encodings] = {}
        self._bytes = 0
        self._last_until_ns = 0

    def batches(self, state: ClusterState, jobs: Iterable[JobRecord], caller: Caller) -> Iterator[bytes]:
        """Return encoded WatchJobsResponse with the jobs as a caller sees them, many in each."""
        return joined(self.of(state, job, visibility_of(caller, owner_of(job))) for job in jobs)

    def of(self, state: ClusterState, job: JobRecord, visibility: Visibility) -> bytes:
        """Return an encoded WatchJobsResponse with one of `jobs`; joined ones are one with all their jobs."""
        kept = self._kept.get(job.job_id)
        # Records are frozen: a changed job is another object.
        if kept is None or kept.job is not job or kept.until_ns < read_monotonic_ns():
            kept = self._begin(job)
        encoded = kept.found.get(visibility)
        if encoded is None:
            message = redacted(job_message(state, job), visibility)
            encoded = scheduling_pb2.WatchJobsResponse(jobs=[message]).SerializeToString()
            if self._bytes + len(encoded) <= KEPT_BYTES_MAX:
                kept.found[visibility] = encoded
                self._bytes += len(encoded)
        return encoded

    def _begin(self, job: JobRecord) -> _Encodings:
        self.forget(job.job_id)
        self._last_until_ns = read_monotonic_ns() + KEPT_NS
        kept = self._kept[job.job_id] = _Encodings(job=job, until_ns=self._last_until_ns)
        return kept

    def forget(self, job_id: str) -> None:
        """Drop what is kept of a job."""
        kept = self._kept.pop(job_id, None)
        if kept is not None:
            self._bytes -= kept.size_bytes()

    def forget_old(self) -> None:
        """Drop everything once all of it is too old to be used."""
        if self._kept and self._last_until_ns < read_monotonic_ns():
            self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self._kept.clear()
        self._bytes = 0


def joined(responses: Iterable[bytes]) -> Iterator[bytes]:
    """Yield encoded WatchJobsResponse with the jobs of many; a batch is bounded in jobs and in bytes."""
    batch: list[bytes] = []
    size_bytes = 0
    for response in responses:
        if batch and (len(batch) >= BATCH_JOBS_MAX or size_bytes + len(response) > BATCH_BYTES_MAX):
            yield b"".join(batch)
            batch, size_bytes = [], 0
        batch.append(response)
        size_bytes += len(response)
    if batch:
        yield b"".join(batch)
