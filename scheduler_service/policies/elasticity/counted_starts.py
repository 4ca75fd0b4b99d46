"""Carries out numbers of GPUs that were chosen for all jobs together: reshapes, starts, and holds with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from scheduler_service.core.decisions import Decision, Hold, Reshape, Start
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.view import PendingJob, SchedulingView
from scheduler_service.policies.elasticity.reshaping import ElasticJob, counts_of, elastic_jobs, more_gpus
from scheduler_service.policies.placement.exclusive_round import ChooseGpus, ExclusiveRound, Placed
from scheduler_service.policies.placement.free_gpus import choose_free_gpus, free_by_kind_and_node, sized

OTHERS_GAIN_MORE = "OTHERS_GAIN_MORE"


class CountedStarts:
    """One call of decide of a policy that chooses numbers of GPUs; jobs start in one exclusive round.

    Args:
        view: The cluster.
        remaining_ms: A running job that started less than this ago keeps its number.
        explored: Running jobs whose number may change at once, by id.
        choose: Which of the free GPUs of one kind a job takes.
        placed: Called with what a job that starts takes.

    Attributes:
        adjustable: The running jobs whose number may change now, by id.
        counts: The numbers that each job may have, ascending, as far as the empty cluster could hold them; by id.
    """

    def __init__(
        self,
        view: SchedulingView,
        *,
        remaining_ms: int,
        explored: AbstractSet[str] = frozenset(),
        choose: ChooseGpus = choose_free_gpus,
        placed: Placed | None = None,
    ) -> None:
        self._free = ExclusiveRound(view, choose, placed)
        self._others_have_some = False
        self._reshaper = Reshaper(self._free.ledger, remaining_ms=remaining_ms, explored=explored)
        self.adjustable: Mapping[str, JobRequest] = self._reshaper.adjustable if view.can_move else {}
        self.counts: dict[str, list[int]] = {job_id: counts_of(request) for job_id, request in self.adjustable.items()}
        for job in view.pending:
            request = job.request
            self.counts[request.job_id] = [
                count for count in counts_of(request) if not self._free.is_impossible(sized(request, count))
            ]

    def carry_out(self, waiting: Sequence[PendingJob], wanted: Mapping[str, int]) -> list[Decision]:
        """Return reshapes, then one decision per pending job.

        A job that cannot have its number now starts with the largest smaller one that it can have.

        Args:
            waiting: The pending jobs in the order of placing.
            wanted: GPUs by job id; absent or 0 = none for a pending job, its own for a running one.
        """
        self._others_have_some = self._gives_gpus(waiting, wanted)
        decisions = [self._decide(job, wanted.get(job.request.job_id, 0)) for job in waiting]
        if any(isinstance(one, Hold) and wanted.get(one.job_id, 0) for one in decisions):
            decisions = [self._fill(job, one) for job, one in zip(waiting, decisions, strict=True)]
        reshapes = self._reshaper.towards({job_id: wanted[job_id] for job_id in self.adjustable if job_id in wanted})
        return [*(reshapes if self.adjustable else ()), *decisions]

    def _fill(self, job: PendingJob, decision: Decision) -> Decision:
        """Start a job that was given nothing on what another one cannot use, since its GPUs do not lie as it needs."""
        if decision.reason.code != OTHERS_GAIN_MORE:
            return decision
        least = self.counts[job.request.job_id][0]
        return self._free.start(replace(job, request=sized(job.request, least))) or decision

    def _gives_gpus(self, waiting: Sequence[PendingJob], wanted: Mapping[str, int]) -> bool:
        """Return whether GPUs were given to waiting jobs, or left to running ones that could do with fewer."""
        return any(wanted.get(job.request.job_id, 0) for job in waiting) or any(
            wanted[job_id] > min(self.counts[job_id]) for job_id in self.adjustable if job_id in wanted
        )

    def _decide(self, job: PendingJob, count: int) -> Decision:
        request = job.request
        possible = self.counts[request.job_id]
        start: Start | None = None
        for smaller in reversed([one for one in possible if one <= count]):
            start = start or self._free.start(replace(job, request=sized(request, smaller)))
        if start is not None:
            return start
        if possible and not count and (self._others_have_some or self._free.place_for(sized(request, possible[0]))):
            # No GPUs were searched, so that an equal job that was given some still may.
            least = replace(job, request=sized(request, possible[0]))
            reason = Reason(code=OTHERS_GAIN_MORE, numbers={"gpus_needed": possible[0]})
            return Hold(job_id=request.job_id, reason=reason, candidates=self._free.candidates(least))
        fewest = possible[0] if possible else counts_of(request)[0]
        return self._free.hold(replace(job, request=sized(request, fewest)))


class Reshaper:
    """One round, after its starts.

    Args:
        ledger: What this round has given away.
        remaining_ms: A job that started less than this ago is left alone.
        explored: But for these, by id.
    """

    def __init__(self, ledger: Ledger, *, remaining_ms: int, explored: AbstractSet[str] = frozenset()) -> None:
        self._ledger = ledger
        now_ms = ledger.view.now_ms
        self._jobs = {
            job_id: job
            for job_id, job in elastic_jobs(ledger.view).items()
            if len(job.counts) > 1
            and job.count in job.counts
            and (now_ms - job.job.started_at_ms >= remaining_ms or job_id in explored)
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
