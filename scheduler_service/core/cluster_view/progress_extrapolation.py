"""Running jobs as they are at this instant: reports are seconds or minutes old, and the jobs have gone on since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scheduler_service.core.cluster_view.view import RunningJob
from scheduler_service.core.jobs.job_records import JobRecord, running_view


class ReportedJobs(Mapping[str, RunningJob]):
    """Running jobs as their newest reports show them, in start order.

    What a policy may know of a job is put together when it is read: most reports are overtaken before that.

    Attributes:
        checkpointed_job_ids: Those that have written a checkpoint.
        lost_ratios: By how much of their steps per second alone those made fewer whose newest window was slower.
        ids_by_class: All of them by class and tenant.
    """

    def __init__(self) -> None:
        self.ids_by_class: dict[tuple[int, str], set[str]] = {}
        self._records: dict[str, JobRecord] = {}
        self._views: dict[str, RunningJob] = {}
        self.checkpointed_job_ids: set[str] = set()
        self.lost_ratios: dict[str, float] = {}

    def put(self, job: JobRecord) -> None:
        """Note what is known of a job now; a new one is the newest."""
        job_id, before = job.request.job_id, self._records.get(job.request.job_id)
        if before is None or (before.request is not job.request and _class_of(before) != _class_of(job)):
            self._leave_class(job_id)
            self.ids_by_class.setdefault(_class_of(job), set()).add(job_id)
        self._records[job_id] = job
        self._views.pop(job_id, None)
        if job.checkpoint_step >= 0:
            self.checkpointed_job_ids.add(job_id)
        if 0 < job.solo_step_ms < job.step_ms and job.measured.windows_seen:
            self.lost_ratios[job_id] = lost_ratio(job)
        else:
            self.lost_ratios.pop(job_id, None)

    def drop(self, job_id: str) -> None:
        """Forget a job, if it is here."""
        if job_id not in self._records:
            return
        self._leave_class(job_id)
        del self._records[job_id]
        self._views.pop(job_id, None)
        self.checkpointed_job_ids.discard(job_id)
        self.lost_ratios.pop(job_id, None)

    def _leave_class(self, job_id: str) -> None:
        record = self._records.get(job_id)
        if record is not None:
            in_class = self.ids_by_class[_class_of(record)]
            in_class.remove(job_id)
            if not in_class:
                del self.ids_by_class[_class_of(record)]

    def __getitem__(self, job_id: str) -> RunningJob:
        known = self._views.get(job_id)
        if known is None:
            self._views[job_id] = known = running_view(self._records[job_id])
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._records


def _class_of(job: JobRecord) -> tuple[int, str]:
    return job.request.terms.priority, job.request.tenant


class ExtrapolatedJobs(Mapping[str, RunningJob]):
    """Adds what has certainly passed since the newest report: GPU time, and steps at the pace last measured.

    Args:
        reported: The jobs as their newest reports show them.
        now_ms: This instant.

    Attributes:
        reported: The same, for readers of what time does not change.
    """

    def __init__(self, reported: Mapping[str, RunningJob], now_ms: int) -> None:
        self.reported, self._now_ms = reported, now_ms
        self._extrapolated: dict[str, RunningJob] = {}

    def __getitem__(self, job_id: str) -> RunningJob:
        known = self._extrapolated.get(job_id)
        if known is None:
            self._extrapolated[job_id] = known = extrapolated(self.reported[job_id], self._now_ms)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self.reported)

    def __len__(self) -> int:
        return len(self.reported)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self.reported


def lost_ratio(job: JobRecord | RunningJob) -> float:
    """Return the share of its steps per second alone that a job does not make, where it is slower than alone."""
    return 1.0 - job.solo_step_ms / job.step_ms


def extrapolated(job: RunningJob, now_ms: int) -> RunningJob:
    """Return a job as it is now; one that stops or is not yet measured makes no steps, a paused one has no GPU time."""
    passed_ms = now_ms - job.accrued_at_ms
    if passed_ms <= 0:
        return job
    if job.is_paused:
        return job.changed(accrued_at_ms=now_ms)
    steps = int(passed_ms / job.step_ms) if job.step_ms > 0 and not job.is_stopping else 0
    most = max(job.request.steps_total - 1, job.steps_done) if job.request.steps_total else job.steps_done + steps
    return job.changed(
        steps_done=min(job.steps_done + steps, most),
        attained_gpu_ms=job.attained_gpu_ms + passed_ms * len(job.assignments),
        accrued_at_ms=now_ms,
    )
