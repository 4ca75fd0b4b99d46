"""Carries running jobs towards the numbers of GPUs that somebody wants for all jobs together."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.core.decisions import Reshape
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.placement import free_by_kind_and_node
from scheduler_service.policies.reshaping import ElasticJob, elastic_jobs, more_gpus


class Reshaper:
    """One round, after its starts.

    Args:
        ledger: What this round has given away.
        rest_ms: A job that started less than this ago is left alone.
    """

    def __init__(self, ledger: Ledger, *, rest_ms: int) -> None:
        self._ledger = ledger
        now_ms = ledger.view.now_ms
        self._jobs = {
            job_id: job
            for job_id, job in elastic_jobs(ledger.view).items()
            if now_ms - job.job.started_at_ms >= rest_ms and len(job.counts) > 1 and job.count in job.counts
        }

    @property
    def adjustable(self) -> dict[str, JobRequest]:
        """The running jobs that may be reshaped now, by id."""
        return {job_id: job.job.request for job_id, job in self._jobs.items()}

    def towards(self, wanted: Mapping[str, int]) -> list[Reshape]:
        """Return the reshapes that can be done at once; a job grows into free GPUs only.

        Args:
            wanted: GPUs by job id; a job that is absent keeps its own.
        """
        found = []
        for job_id, job in self._jobs.items():
            count = max((count for count in job.counts if count <= wanted.get(job_id, job.count)), default=job.count)
            gpu_ids = job.gpu_ids[:count] if count <= job.count else self._grown(job, count)
            if len(gpu_ids) != job.count:
                numbers = {"gpus_count": len(gpu_ids), "gpus_before_count": job.count}
                found.append(job.reshape(gpu_ids, Reason(code="RESHAPED_TO_SHARE", numbers=numbers, gpu_ids=gpu_ids)))
                self._ledger.move(job.job, job.resident(len(gpu_ids)), found[-1].assignments)
        return found

    def _grown(self, job: ElasticJob, count: int) -> tuple[str, ...]:
        free = {
            node_id: [gpu_id for gpu_id in gpu_ids if self._ledger.is_free(gpu_id)]
            for node_id, gpu_ids in free_by_kind_and_node(self._ledger.view).get(job.kind, {}).items()
        }
        found = more_gpus(self._ledger, job, count, free)
        return (*job.gpu_ids, *found[0]) if found is not None else job.gpu_ids
