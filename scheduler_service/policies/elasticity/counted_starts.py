"""Carries out numbers of GPUs that were chosen for all jobs together: reshapes, starts, and holds with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.replica_groups import has_choice, server_counts, with_servers
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Reshape, Start
from scheduler_service.core.jobs.replica_terms import TRIES_SERVERS
from scheduler_service.core.records import JobRequest, Reason
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
        forms: The requests that are tried in the place of a job's, best first: with other parameter servers.

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
        forms: Callable[[JobRequest], Iterable[JobRequest]] = lambda request: (request,),
    ) -> None:
        self._forms = forms
        self._free = ExclusiveRound(view, choose, placed)
        self._others_have_some = False
        self._reshaper = Reshaper(self._free.ledger, remaining_ms=remaining_ms, explored=explored)
        self.adjustable: Mapping[str, JobRequest] = self._reshaper.adjustable if view.can_move else {}
        self.counts: dict[str, list[int]] = {job_id: counts_of(request) for job_id, request in self.adjustable.items()}
        for job in view.pending:
            request = job.request
            self.counts[request.job_id] = [
                count
                for count in counts_of(request)
                if not self._free.is_impossible(sized(self._least(request), count))
            ]

    def _least(self, request: JobRequest) -> JobRequest:
        """Return the last form of a job."""
        *_, least = self._forms(request)
        return least

    def carry_out(
        self,
        waiting: Sequence[PendingJob],
        wanted: Mapping[str, int],
        servers: Mapping[str, int] = MappingProxyType({}),
        tries: AbstractSet[str] = frozenset(),
    ) -> list[Decision]:
        """Return reshapes, then one decision per pending job.

        A job that cannot have its number now starts with the largest smaller one that it can have.

        Args:
            waiting: The pending jobs in the order of placing.
            wanted: GPUs by job id; absent or 0 = none for a pending job, its own for a running one.
            servers: Parameter servers of running jobs, by job id; absent = as many as it has.
            tries: Which of these have theirs only to be measured.
        """
        self._others_have_some = self._gives_gpus(waiting, wanted)
        decisions = [self._decide(job, wanted.get(job.request.job_id, 0)) for job in waiting]
        if any(isinstance(one, Hold) and wanted.get(one.job_id, 0) for one in decisions):
            decisions = [self._fill(job, one) for job, one in zip(waiting, decisions, strict=True)]
        reshapes = self._reshaper.towards(
            {job_id: wanted[job_id] for job_id in self.adjustable if job_id in wanted}, servers, tries
        )
        return [*(reshapes if self.adjustable else ()), *decisions]

    def _fill(self, job: PendingJob, decision: Decision) -> Decision:
        """Start a job that was given nothing on what another one cannot use, since its GPUs do not lie as it needs."""
        if decision.reason.code != OTHERS_GAIN_MORE:
            return decision
        least = self.counts[job.request.job_id][0]
        return self._start(job, least) or decision

    def _start(self, job: PendingJob, count: int) -> Start | None:
        """Start a job on so many GPUs, in the first form that finds room."""
        forms = (replace(job, request=sized(form, count)) for form in self._forms(job.request))
        started = (self._free.start(form) for form in forms)
        return next((start for start in started if start is not None), None)

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
            start = start or self._start(job, smaller)
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
            for job_id, job in elastic_jobs(ledger.view, has_choice).items()
            if (len(job.counts) > 1 or len(server_counts(job.job.request)) > 1)
            and job.count in job.counts
            and (now_ms - job.job.started_at_ms >= remaining_ms or job_id in explored)
        }

    @property
    def adjustable(self) -> dict[str, JobRequest]:
        """The running jobs that may be reshaped now, by id."""
        return {job_id: job.job.request for job_id, job in self._jobs.items()}

    def towards(
        self,
        wanted: Mapping[str, int],
        servers: Mapping[str, int] = MappingProxyType({}),
        tries: AbstractSet[str] = frozenset(),
    ) -> list[Reshape]:
        """Return the reshapes that can be done at once; a job grows into free GPUs and free room on hosts only.

        Args:
            wanted: GPUs by job id; a job that is absent keeps its own.
            servers: Parameter servers, likewise.
            tries: Which of these have theirs only to be measured.
        """
        found = []
        for job_id, job in self._jobs.items():
            count = max((count for count in job.counts if count <= wanted.get(job_id, job.count)), default=job.count)
            gpu_ids = job.gpu_ids[:count] if count <= job.count else self._grown(job, count)
            served = self._served(job, gpu_ids, servers.get(job_id))
            if len(gpu_ids) != job.count or served is not None:
                reason = _reshape_reason(job, gpu_ids, served, is_try=job_id in tries)
                found.append(job.reshape(gpu_ids, reason, servers=served))
                self._ledger.move(job.job, job.resident(len(gpu_ids), served), found[-1].assignments)
        return found

    def _served(self, job: ElasticJob, gpu_ids: Sequence[str], wanted: int | None) -> int | None:
        """Return the number of servers that is nearest to the wanted one and finds room; None = as many as it has."""
        request = job.job.request
        present = request.replicas.servers
        if not wanted or wanted == present:
            return None
        low, high = sorted((present, wanted))
        between = [count for count in server_counts(request) if low <= count <= high and count != present]
        between.sort(key=lambda count: abs(count - wanted))
        return next((count for count in between if self._has_room(job, gpu_ids, with_servers(request, count))), None)

    def _has_room(self, job: ElasticJob, gpu_ids: Sequence[str], request: JobRequest) -> bool:
        """Say whether the hosts of these GPUs have room for a job in another form, which leaves its present one."""
        ledger, nodes = self._ledger, Counter(self._ledger.view.gpus[gpu_id].node_id for gpu_id in gpu_ids)
        return all(
            ledger.host_fits(
                ledger.view.nodes[node_id],
                request,
                gpus_here=gpus_here,
                gpus=len(gpu_ids),
                freed=ledger.host_part(job.job.request, job.job.assignments, node_id),
            )
            for node_id, gpus_here in nodes.items()
        )

    def _grown(self, job: ElasticJob, count: int) -> tuple[str, ...]:
        free = {
            node_id: [gpu_id for gpu_id in gpu_ids if self._ledger.is_free(gpu_id)]
            for node_id, gpu_ids in free_by_kind_and_node(self._ledger.view).get(job.kind, {}).items()
        }
        found = more_gpus(self._ledger, job, count, free)
        return (*job.gpu_ids, *found[0]) if found is not None else job.gpu_ids


def _reshape_reason(job: ElasticJob, gpu_ids: tuple[str, ...], servers: int | None, *, is_try: bool) -> Reason:
    numbers = {"gpus_count": len(gpu_ids), "gpus_before_count": job.count}
    if servers is None:
        return Reason(code="RESHAPED_TO_SHARE", numbers=numbers, gpu_ids=gpu_ids)
    numbers |= {"servers_count": servers, "servers_before_count": job.job.request.replicas.servers}
    code = TRIES_SERVERS if is_try and len(gpu_ids) == job.count else "RESHAPED_BY_GAIN"
    return Reason(code=code, numbers=numbers, gpu_ids=gpu_ids)
