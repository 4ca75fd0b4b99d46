"""Running jobs whose number of GPUs may change: what they could have, what that does to all jobs' ends.

Source:
    Wang et al., "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep Learning Training Systems", Table IV
    (speed by type and number of GPUs) and section III-C (a reshaped job pays its checkpoint, stop and start).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_service.core.cluster_view.capacity import Resident, micro_batch_size_alone, samples_per_gpu
from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.replica_groups import with_servers
from scheduler_service.core.cluster_view.step_times import passes_of
from scheduler_service.core.cluster_view.view import PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Reshape
from scheduler_service.core.records import JobPrediction, JobRequest, Reason
from scheduler_service.policies.placement.free_gpus import choose_free_gpus, ranked, sized

ScheduleObjective = tuple[int, int]
"""The end of the last job and the sum of all ends, in ms from now: what reshaping makes smaller, in this order."""


def counts_of(request: JobRequest) -> list[int]:
    """Return the numbers of GPUs that a job may have, ascending."""
    return sorted(set(request.allowed_gpus) or {request.gpus})


def smallest(job: PendingJob) -> PendingJob:
    """Return a job as if it asked for the fewest GPUs that it may have."""
    return replace(job, request=sized(job.request, counts_of(job.request)[0]))


def profiled_remaining_ms(
    request: JobRequest, prediction: JobPrediction | None, *, steps_done: int, gpus: int
) -> int | None:
    """Return how long a job still runs on so many GPUs, or None where the profile has no such count: no option."""
    wanted = samples_per_gpu(request, gpus)
    known = {sub: ms for (count, sub), ms in prediction.step_ms.items() if count == gpus} if prediction else {}
    larger = [sub for sub in known if sub >= wanted]
    if not larger or request.steps_total <= 0:
        return None
    return round(max(request.steps_total - steps_done, 0) * known[min(larger)])


class CompletionTimes:
    """When every job will have ended, in ms from now, as far as that is known.

    Args:
        ends_ms: By job id.
    """

    def __init__(self, ends_ms: Mapping[str, int]) -> None:
        self._ends_ms = dict(ends_ms)
        self._latest = sorted((-end_ms, job_id) for job_id, end_ms in ends_ms.items())
        self._sum_ms = sum(ends_ms.values())

    def schedule_objective(self, changes_ms: Mapping[str, int]) -> ScheduleObjective:
        """Return what it would be if some jobs ended otherwise, or were there at all."""
        sum_ms = self._sum_ms + sum(end - self._ends_ms.get(job_id, 0) for job_id, end in changes_ms.items())
        untouched_ms = next((-end for end, job_id in self._latest if job_id not in changes_ms), 0)
        return max([untouched_ms, *changes_ms.values()]), sum_ms

    def change(self, changes_ms: Mapping[str, int]) -> None:
        """Keep these ends."""
        for job_id, end_ms in changes_ms.items():
            if job_id in self._ends_ms:
                self._latest.remove((-self._ends_ms[job_id], job_id))
            self._sum_ms += end_ms - self._ends_ms.get(job_id, 0)
            self._ends_ms[job_id] = end_ms
            insort(self._latest, (-end_ms, job_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """A running job that has its GPUs to itself.

    Attributes:
        counts: The numbers of GPUs that it may have and whose share of the batch fits, ascending.
        remaining_times_ms: How long it still runs, by number of GPUs, where that is profiled.
        micro_batch_sizes: Samples per pass with which it fits, by the same numbers of GPUs as `counts`.
    """

    job: RunningJob
    kind: Kind
    counts: tuple[int, ...]
    remaining_times_ms: Mapping[int, int]
    micro_batch_sizes: Mapping[int, int]

    @property
    def job_id(self) -> str:
        """Its id."""
        return self.job.request.job_id

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """Where it is, by rank."""
        return tuple(part.gpu_id for part in sorted(self.job.assignments, key=lambda part: part.rank))

    @property
    def count(self) -> int:
        """How many GPUs it has."""
        return len(self.job.assignments)

    def cost_ms(self, default_ms: int) -> int:
        """Return what its checkpoint, stop and start take together: what it states itself, else the default."""
        return self.job.request.migration_cost_ms or default_ms

    def resident(self, count: int, servers: int | None = None) -> Resident:
        """Return it as a resident of so many GPUs, with the memory that it has reserved now."""
        return Resident(
            request=with_servers(self.job.request, servers),
            micro_batch_size=self._micro_batch_size(count),
            memory_reserved_bytes=self.job.memory_reserved_bytes,
        )

    def reshape(self, gpu_ids: Sequence[str], reason: Reason, *, servers: int | None = None) -> Reshape:
        """Return the decision that gives it these GPUs, and so many parameter servers (None = as it has)."""
        gpus, micro_batch_size = len(gpu_ids), self._micro_batch_size(len(gpu_ids))
        return Reshape(
            job_id=self.job_id,
            reason=reason,
            assignments=ranked(gpu_ids),
            micro_batch_size=micro_batch_size,
            accumulation_steps=passes_of(self.job.request, gpus=gpus, micro_batch_size=micro_batch_size),
            servers=servers,
        )

    def _micro_batch_size(self, count: int) -> int:
        return self.micro_batch_sizes.get(count) or samples_per_gpu(self.job.request, count)


def elastic_jobs(
    view: SchedulingView, is_asked: Callable[[JobRequest], bool] = lambda _: True
) -> dict[str, ElasticJob]:
    """Return the running jobs that could be reshaped now, by id in the order of their ids.

    Args:
        view: The cluster.
        is_asked: Says which jobs matter to the caller; no other one is looked at, which costs the most here.
    """
    found = {}
    for job_id, job in sorted((job_id, job) for job_id, job in view.running.items() if is_asked(job.request)):
        entries = [view.gpus.get(part.gpu_id) for part in job.assignments]
        if job.is_stopping or any(entry is None or entry.is_releasing or len(entry.job_ids) > 1 for entry in entries):
            continue
        found[job_id] = _elastic_job(view, job)
    return found


def _elastic_job(view: SchedulingView, job: RunningJob) -> ElasticJob:
    request, gpu = job.request, view.gpus[job.assignments[0].gpu_id].gpu
    prediction = view.predictions.job(request.key, gpu.device)
    sizes = {count: micro_batch_size_alone(request, prediction, count, gpu) for count in counts_of(request)}
    fitting = {count: size for count, size in sizes.items() if size is not None}
    counts = tuple(fitting)
    remaining_times = {
        count: profiled_remaining_ms(request, prediction, steps_done=job.steps_done, gpus=count) for count in counts
    }
    known = {count: remaining_ms for count, remaining_ms in remaining_times.items() if remaining_ms is not None}
    return ElasticJob(job=job, kind=kind_of(gpu), counts=counts, remaining_times_ms=known, micro_batch_sizes=fitting)


def profiled_jobs(view: SchedulingView) -> dict[str, ElasticJob]:
    """Return the elastic jobs whose present end is known."""
    return {job_id: job for job_id, job in elastic_jobs(view).items() if job.count in job.remaining_times_ms}


def more_gpus(
    ledger: Ledger, job: ElasticJob, count: int, free: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], bool] | None:
    """Return the free GPUs that bring a job to a larger count, and whether they lie on its own nodes; None = none do.

    Args:
        ledger: What this round has given away.
        job: The job.
        count: GPUs wanted in all.
        free: Free GPUs of its kind, by node.
    """
    gpus = ledger.view.gpus
    nodes_max = 0 if job.job.request.terms.across_nodes else ledger.view.nodes_per_job_max
    own_nodes = {gpus[gpu_id].node_id for gpu_id in job.gpu_ids}
    extra = sized(job.job.request, count - job.count)
    at_home = choose_free_gpus(ledger, extra, {node_id: ids for node_id, ids in free.items() if node_id in own_nodes})
    if at_home is not None:
        return at_home, True
    anywhere = choose_free_gpus(ledger, extra, free) if nodes_max != 1 else None
    if anywhere is None or (nodes_max and len(own_nodes | {gpus[one].node_id for one in anywhere}) > nodes_max):
        return None
    return anywhere, False


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One way to give a running job more GPUs."""

    job: ElasticJob
    gpu_ids: tuple[str, ...]
    end_ms: int
    schedule_objective: ScheduleObjective

    @property
    def order(self) -> tuple[ScheduleObjective, int, str]:
        """Best first: the outlook, fewer GPUs, the id."""
        return self.schedule_objective, len(self.gpu_ids), self.job.job_id

    @property
    def reason(self) -> Reason:
        """Why the job grows."""
        saved_ms = self.job.remaining_times_ms[self.job.count] - self.end_ms
        numbers = {"gpus_count": len(self.gpu_ids), "gpus_before_count": self.job.count, "saved_ms": saved_ms}
        return Reason(code="RESHAPED_UP", numbers=numbers, gpu_ids=self.gpu_ids)


def growths(
    ledger: Ledger,
    job: ElasticJob,
    counts: Sequence[int],
    free: Mapping[str, Sequence[str]],
    ends: CompletionTimes,
    *,
    cost_ms: int,
    move_cost_ms: int,
) -> Iterator[Growth]:
    """Yield the ways to larger counts that free GPUs allow.

    Args:
        ledger: What this round has given away.
        job: The job.
        counts: The numbers of GPUs to look at, above its present one.
        free: Free GPUs of its kind, by node.
        ends: Of all jobs.
        cost_ms: Of a restart on its own nodes.
        move_cost_ms: Of one that takes other nodes too.
    """
    for count in counts:
        found = more_gpus(ledger, job, count, free)
        if found is not None:
            more, is_at_home = found
            end_ms = job.remaining_times_ms[count] + job.cost_ms(cost_ms if is_at_home else move_cost_ms)
            schedule_objective = ends.schedule_objective({job.job_id: end_ms})
            yield Growth(job=job, gpu_ids=(*job.gpu_ids, *more), end_ms=end_ms, schedule_objective=schedule_objective)
