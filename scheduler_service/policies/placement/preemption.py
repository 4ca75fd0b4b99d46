"""Which jobs to stop so that a shorter one can start: longest remaining time first, as few jobs as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from math import inf

from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.replica_groups import host_share
from scheduler_service.core.cluster_view.step_times import remaining_ms_of
from scheduler_service.core.cluster_view.view import GpuView, HostUse, RunningJob, SchedulingView
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.ordering.shortest_first import has_aged
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.placement.offered_gpus import (
    OfferedGpu,
    PreemptionPlan,
    offered,
    plan_of,
)
from scheduler_service.policies.placement.vacant_gpus import VacantGpus

_Length = float | Callable[[], float]


class PreemptionPlanner:
    """One call of decide: GPUs that are promised to a job are gone for later ones, and no job is stopped twice.

    Args:
        ledger: For the room on the hosts.
        gain_min_ms: A victim must run at least so much longer than the job that takes its GPUs.
        aging_ms: Jobs submitted so long ago are never stopped; 0 = age protects none.
        rank_of: Returns another measure than remaining time by which running jobs make room, the largest first; None =
            never.
        long_running: Says which nodes need no look; None = each gets one.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        gain_min_ms: int = 0,
        aging_ms: int = 0,
        rank_of: Callable[[str], float | None] | None = None,
        long_running: LongRunning | None = None,
    ) -> None:
        self._view: SchedulingView = ledger.view
        self._ledger = ledger
        self._gain_min_ms = gain_min_ms
        self._aging_ms = aging_ms
        self._promised: set[str] = set(self._view.kept_gpu_ids)
        self._failed_ms: dict[object, float] = {}
        self._reported = self._view.index.reported
        self._leaving: set[str] = set()
        self._measure = 0.0
        self._length: _Length = 0.0
        self._rank_of = rank_of
        self._long_running = long_running
        self._remaining_times_ms: dict[str, float | None] = {}
        self._vacant = VacantGpus(ledger, self._promised, self._leaving, long_running)
        self._held: dict[str, OfferedGpu | None] = {}

    def promise(self, plan: PreemptionPlan) -> bool:
        """Keep these GPUs for the job, and count its victims as leaving.

        Returns:
            Whether a job that found no GPUs may find some now; where not, there are only fewer than before.
        """
        self._promised.update(plan.gpu_ids)
        left: list[str] = []
        if plan.victims:
            self._leaving.update(plan.victims)
            left = [part.gpu_id for victim in plan.victims for part in self._reported[victim].assignments]
            left = [gpu_id for gpu_id in left if gpu_id in self._view.gpus and gpu_id not in self._promised]
        changed = (*left, *plan.gpu_ids)
        for gpu_id in changed:
            self._held.pop(gpu_id, None)
        self._vacant.forget_nodes(changed)
        if self._long_running is not None:
            self._long_running.change(left=left, promised=plan.gpu_ids)
        is_opening = bool(left) or self._may_open(plan.victims)
        if is_opening:
            self._failed_ms.clear()
            self._vacant.forget_order()
        return is_opening

    def _may_open(self, victims: Sequence[str]) -> bool:
        """Return whether fewer GPUs may do for a job: their hosts have more room, or it is led to other nodes."""
        if not victims:  # as mostly
            return self._view.nodes_per_job_max > 1
        requests = (self._reported[victim].request for victim in victims)
        has_hosts = any(request.cpu_cores or request.host_memory_bytes for request in requests)
        return has_hosts or self._view.nodes_per_job_max > 1

    def find(
        self, request: JobRequest, kind: Kind, remaining_ms: _Length, *, measure: float | None = None
    ) -> PreemptionPlan | None:
        """Return how a job of this length gets GPUs of this kind: the fewest victims, those that run longest.

        Where a job found none, a longer one with the same needs finds none either.

        Args:
            request: The job.
            kind: The kind.
            remaining_ms: How long it runs, or its other measure; or a function that is called once that matters.
            measure: The same as `long_running` measures jobs, where that is another one.
        """
        servers = request.replicas.servers, request.server_demand
        needs = (kind, request.gpus, request.cpu_cores, request.host_memory_bytes, servers)
        self._length = remaining_ms
        if needs in self._failed_ms and self._job_ms() >= self._failed_ms[needs]:
            return None
        self._measure = self._job_ms() + self._gain_min_ms if measure is None else measure
        best = self._vacant_anywhere(request, kind) or self._at_nodes(request, kind)
        if best is None:
            self._failed_ms[needs] = self._job_ms()
        return best

    def _job_ms(self) -> float:
        """Return how long the job runs that is looked for; where that is to be found, it is found once."""
        if callable(self._length):
            self._length = self._length()
        return self._length

    def _at_nodes(self, request: JobRequest, kind: Kind) -> PreemptionPlan | None:
        best = self._longest_alone(request, kind) if request.gpus == 1 else None
        best = best or self._on_one_node(request, kind)
        # One GPU is on one node, and was looked at there.
        if self._view.nodes_per_job_max != 1 and request.gpus > 1:
            best = self._cheaper(best, self._on_several_nodes(request, kind))
        return best

    def _longest_alone(self, request: JobRequest, kind: Kind) -> PreemptionPlan | None:
        """Return the GPU that a job takes from the one that runs longest; None = that is to be found node by node.

        Where one job runs longer than all others and every GPU is held by one job, it is the one to leave: it gives the
        first of its GPUs on a node, and of several nodes that with the first name.
        """
        if self._long_running is None or request.cpu_cores or request.host_memory_bytes:
            return None
        longest_ms, gpu_ids = self._long_running.longest()
        entries = [self._view.gpus[gpu_id] for gpu_id in gpu_ids]
        is_one = len({entry.job_ids for entry in entries}) == 1 and {kind_of(entry.gpu) for entry in entries} == {kind}
        if not is_one or longest_ms <= self._measure or not self._leaves(entries[0].job_ids[0]):
            return None
        firsts = {entry.node_id: entry.gpu.gpu_id for entry in reversed(entries)}  # they are in the order of indexes
        gpu_id = min(firsts.values())
        return PreemptionPlan(gpu_ids=(gpu_id,), releasing_gpu_ids=(), victims=entries[0].job_ids)

    def _leaves(self, job_id: str) -> bool:
        """Return whether a job that is long enough by the columns makes room; other measures say so themselves."""
        rank_ms, job_ms = (inf, 0.0) if self._rank_of is not None else (self._rank(job_id), self._job_ms())
        return rank_ms is not None and rank_ms > job_ms and rank_ms >= job_ms + self._gain_min_ms

    def promise_vacant(self, request: JobRequest, kind: Kind) -> PreemptionPlan | None:
        """Promise a job vacant GPUs that suffice for it; None = `find` is to be asked.

        It finds and promises what `find` and `promise` would, and leaves out what does not matter to such a plan. No
        job that found no GPUs finds some now.
        """
        plan = self._vacant_anywhere(request, kind) if self._view.nodes_per_job_max <= 1 else None
        if plan is not None and self._long_running is not None:
            self._promised.update(plan.gpu_ids)
            self._vacant.forget_nodes(plan.gpu_ids)
            self._long_running.promise(plan.gpu_ids)
        return plan

    def _vacant_anywhere(self, request: JobRequest, kind: Kind) -> PreemptionPlan | None:
        """Return the plan of a job for which vacant GPUs suffice, where that is seen at once."""
        chosen = self._vacant.cheapest(request, kind)
        return plan_of(chosen) if chosen is not None else None

    def _on_one_node(self, request: JobRequest, kind: Kind) -> PreemptionPlan | None:
        best: PreemptionPlan | None = None
        best_ms = inf
        for limit_ms, node_id in self._nodes(request.gpus, self._measure):
            if best is not None and limit_ms < best_ms:
                if not best.victims or (request.gpus == 1 and best_ms < inf):
                    break
                # One job is the best victim where no other runs longer.
                if len(best.victims) == 1 and best_ms < inf and not self._has_odd_holders_on(node_id, kind):
                    continue
            found = self._at_node(request, kind, node_id, limit_ms)
            if found is not None and self._cheaper(best, found) is found:
                best = found
                best_ms = self._long_running.least_ms(found.gpu_ids) if self._long_running is not None else inf
        return best

    def _at_node(self, request: JobRequest, kind: Kind, node_id: str, limit_ms: float) -> PreemptionPlan | None:
        for measure in self._measures(request, limit_ms):
            found = self._take(request, kind, [node_id], measure)
            if found is not None:
                return found
        return None

    def _has_odd_holders_on(self, node_id: str, kind: Kind) -> bool:
        """Return whether GPUs are held of which the columns do not say how long."""
        self._vacant.on_node(node_id, kind)
        return self._vacant.has_odd_holders

    def _on_several_nodes(self, request: JobRequest, kind: Kind) -> PreemptionPlan | None:
        columns, is_anywhere = self._long_running, not self._view.nodes_per_job_max
        if columns is None:
            return self._take(request, kind, [*self._view.nodes], self._measure)
        for measure in self._measures(request, columns.reach_ms(request.gpus) if is_anywhere else -inf):
            vacant, gpu_ids = self._vacant.anywhere(kind), columns.held_anywhere(measure)
            if (found := self._take_of(request, vacant, gpu_ids, kind, measure)) is not None:
                return found
        return None

    def _measures(self, request: JobRequest, limit_ms: float) -> Iterable[float]:
        """Yield for how long holders have to run at least; of those a job takes the ones that run longest.

        As many GPUs as it asks for are held by jobs that run until a limit, or by none: where their hosts do not
        matter, the rest need a look only if some of these cannot be had.
        """
        is_free_to_choose = not request.cpu_cores and not request.host_memory_bytes
        if self._long_running is not None and is_free_to_choose and self._measure < limit_ms < inf:
            yield limit_ms
        yield self._measure

    def _take(self, request: JobRequest, kind: Kind, node_ids: Sequence[str], measure: float) -> PreemptionPlan | None:
        """Return what a job takes first on these nodes; no job is asked to leave where what is vacant suffices.

        Args:
            request: The job.
            kind: Of the GPUs.
            node_ids: All nodes with GPUs whose holders run for `measure`.
            measure: Of `_measures`.
        """
        columns = self._long_running
        unheld = node_ids if columns is None else columns.unheld_nodes()
        vacant = sorted([offer for one in node_ids if one in unheld for offer in self._vacant.on_node(one, kind)])
        there = self._gpu_ids_on if columns is None else partial(columns.held, remaining_ms=measure)
        return self._take_of(request, vacant, chain.from_iterable(map(there, node_ids)), kind, measure)

    def _take_of(
        self, request: JobRequest, vacant: Sequence[OfferedGpu], gpu_ids: Iterable[str], kind: Kind, measure: float
    ) -> PreemptionPlan | None:
        """Return the same, of what is vacant there in order, and of these GPUs that are held or were looked at."""
        if len(vacant) >= request.gpus and (found := self._first(request, vacant)) is not None:
            return found
        if measure > self._measure and self._vacant.has_odd_holders:
            return None  # what these run for is not in the columns
        held = self._held_of(gpu_ids, kind)
        return self._first(request, [*vacant, *held]) if len(vacant) + len(held) >= request.gpus else None

    def _cheaper(self, one: PreemptionPlan | None, other: PreemptionPlan | None) -> PreemptionPlan | None:
        if one is None or other is None:
            return one or other
        return min(one, other, key=self._cost)

    def _nodes(self, gpus: int, measure: float) -> Iterable[tuple[float, str]]:
        """Yield the nodes that may suffice, those whose jobs run longest first, with a bound on how long that is."""
        if self._long_running is None:
            return ((inf, node_id) for node_id in self._view.nodes)
        return self._long_running.nodes(gpus, measure)

    def _held_of(self, gpu_ids: Iterable[str], kind: Kind) -> Sequence[OfferedGpu]:
        """Return which of these GPUs are held by jobs that leave them to the one looked for, the longest first."""
        remaining_ms = self._job_ms()
        least_ms = remaining_ms + self._gain_min_ms
        made, found = map(self._held_offer, self._open_of(gpu_ids, kind)), list[OfferedGpu]()
        for offer in sorted([offer for offer in made if offer is not None]):
            there_ms = -offer.minus_remaining_ms
            if there_ms <= remaining_ms or there_ms < least_ms:
                break
            found.append(offer)
        return found

    def _gpu_ids_on(self, node_id: str) -> Iterable[str]:
        return (gpu.gpu_id for gpu in self._view.nodes[node_id].gpus)

    def _open_of(self, gpu_ids: Iterable[str], kind: Kind) -> Iterator[GpuView]:
        """Yield those of one kind that are promised to no job."""
        for gpu_id in gpu_ids:
            entry = self._view.gpus.get(gpu_id)
            if entry is not None and kind_of(entry.gpu) == kind and gpu_id not in self._promised:
                yield entry

    def _rank(self, job_id: str) -> float | None:
        """Return how long a running job still needs, or its other measure; None = it makes no room."""
        if job_id not in self._remaining_times_ms:
            if job_id in self._view.protected_job_ids:
                self._remaining_times_ms[job_id] = None
            elif self._rank_of is not None:
                self._remaining_times_ms[job_id] = self._rank_of(job_id)
            else:
                self._remaining_times_ms[job_id] = self._remaining_ms(self._view.running[job_id])
        return self._remaining_times_ms[job_id]

    def _is_leaving(self, job_id: str) -> bool:
        return job_id in self._leaving or self._reported[job_id].is_stopping

    def _remaining_ms(self, job: RunningJob) -> float | None:
        """Return how long a running job still needs alone, or None where it is unknown or must not be stopped."""
        if has_aged(self._view, job.submitted_at_ms, self._aging_ms):
            return None
        entry = self._view.gpus.get(job.assignments[0].gpu_id)
        if entry is None:
            return None
        return remaining_ms_of(
            job.request,
            self._view.predictions.job(job.request.key, entry.gpu.device),
            steps_done=job.steps_done,
            gpus=len(job.assignments),
            micro_batch_size=job.micro_batch_size,
        )

    def _held_offer(self, entry: GpuView) -> OfferedGpu | None:
        """Return a GPU that is held by jobs each of which may be stopped; None = it is not."""
        gpu_id = entry.gpu.gpu_id
        if gpu_id not in self._held:
            self._held[gpu_id] = self._make_held_offer(entry)
        return self._held[gpu_id]

    def _make_held_offer(self, entry: GpuView) -> OfferedGpu | None:
        least_ms, holders = inf, list[str]()
        for job_id in entry.job_ids:
            if not self._is_leaving(job_id):
                remaining_ms = self._rank(job_id)
                if remaining_ms is None:
                    return None
                least_ms = min(least_ms, remaining_ms)
                holders.append(job_id)
        return offered(2, least_ms, entry, tuple(holders)) if holders else None

    def _first(self, request: JobRequest, offers: Iterable[OfferedGpu]) -> PreemptionPlan | None:
        """Take the first GPUs in order whose hosts have room once their holders are gone."""
        chosen: list[OfferedGpu] = []
        on_node: dict[str, list[OfferedGpu]] = {}
        nodes_max, asks_host = self._view.nodes_per_job_max, bool(request.cpu_cores or request.host_memory_bytes)
        for offer in offers:
            node_id = offer.node_id
            if node_id not in on_node and nodes_max and len(on_node) >= nodes_max:
                continue
            if not asks_host or self._host_fits(request, node_id, [*on_node.get(node_id, ()), offer]):
                on_node.setdefault(node_id, []).append(offer)
                chosen.append(offer)
            if len(chosen) == request.gpus:
                return plan_of(chosen)
        return None

    def _host_fits(self, request: JobRequest, node_id: str, here: Sequence[OfferedGpu]) -> bool:
        taken = {job_id for offer in here for job_id in offer.holders}
        gone = [job_id for job_id in self._on_node.get(node_id, ()) if job_id in taken or self._is_leaving(job_id)]
        freed = [self._host_part(self._reported[job_id], node_id) for job_id in gone]
        room = HostUse(
            cpu_cores=sum(part.cpu_cores for part in freed),
            host_memory_bytes=sum(part.host_memory_bytes for part in freed),
        )
        node = self._view.nodes[node_id]
        return self._ledger.host_fits(node, request, gpus_here=len(here), gpus=request.gpus, freed=room)

    @cached_property
    def _on_node(self) -> Mapping[str, Sequence[str]]:
        """The running jobs on every node, in start order."""
        found: dict[str, list[str]] = {}
        for job_id, job in self._view.running.items():
            entries = (self._view.gpus.get(part.gpu_id) for part in job.assignments)
            for node_id in dict.fromkeys(entry.node_id for entry in entries if entry is not None):
                found.setdefault(node_id, []).append(job_id)
        return found

    def _host_part(self, job: RunningJob, node_id: str) -> HostUse:
        entries = (self._view.gpus.get(part.gpu_id) for part in job.assignments)
        gpus_here = sum(entry is not None and entry.node_id == node_id for entry in entries)
        return host_share(job.request, gpus_here, len(job.assignments))

    def _cost(self, plan: PreemptionPlan) -> tuple[int, float, int, tuple[str, ...]]:
        remaining_times = [self._rank(job_id) or 0.0 for job_id in plan.victims]
        return len(remaining_times), -sum(remaining_times), len(plan.releasing_gpu_ids), plan.gpu_ids
