"""One round of SJF with sharing: free GPUs first; where they do not suffice, GPUs that hold exactly one job.

Source:
    The SJF-BSBF paper, Algorithm 1 lines 4-22. Lines 16-18 never add the free GPUs that line 11 counts; here they are
    used last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Protocol

from scheduler_service.core.capacity import Resident, reserved_bytes, samples_per_gpu
from scheduler_service.core.decisions import Candidate, Decision, Hold, Start
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.view import GpuView, PendingJob, SchedulingView
from scheduler_service.policies.exclusive_round import ExclusiveRound
from scheduler_service.policies.pair_columns import PairColumns, Shortlist, lone_gpu_ids
from scheduler_service.policies.placement import (
    Kind,
    fits_alone,
    host_reason,
    kind_of,
    nearest_obstacle,
    ranked,
    shape_of,
    too_large,
)
from scheduler_service.policies.remaining_time import passes_of, remaining_ms_of
from scheduler_service.policies.sharing_offers import Gang, Offer, candidate_table, gang_reason, misfits
from scheduler_service.policies.sharing_spot import JOBS_PER_GPU_MAX, Spot

GPUS_IN_COLUMNS_MIN = 64
"""With fewer GPUs that have a place, looking at each costs less than building columns."""


class SharingRule(Protocol):
    """What distinguishes the policies: whether and how a job takes the second place on a GPU."""

    @property
    def weighs_pairs(self) -> bool:
        """The place with the least sum of both ends is wanted, not the first that consents."""

    @property
    def recheck_gang(self) -> bool:
        """The whole gang is compared with waiting for all its partners."""

    def length(self, job: PendingJob) -> int:
        """Return what else than its request decides about a job; 0 = nothing."""

    def offer(self, job: PendingJob, spot: Spot, pairs: PairColumns | None) -> Offer | Reason:
        """Return how the job would use this GPU, or why not; `pairs` knows answers where somebody keeps columns."""

    def objection(self, job: PendingJob, spots: Sequence[Spot], micro_batch_size: int) -> Reason | None:
        """Return why the job should not start on these GPUs together, or None."""


class SharingRound:
    """One call of decide: what earlier jobs took is gone for later ones, and they may be shared in their turn.

    Args:
        view: The cluster.
        rule: Decides about second places.
        weighed_jobs_max: Different jobs that may fail beside running ones before the rest of the queue waits.
    """

    def __init__(self, view: SchedulingView, rule: SharingRule, *, weighed_jobs_max: int) -> None:
        self.free = ExclusiveRound(view)
        self._view = view
        self._rule = rule
        self._weighed_jobs_max = weighed_jobs_max
        self._ledger = self.free.ledger
        self._started: dict[str, tuple[PendingJob, Start]] = {}
        self._pairs: PairColumns | None = None
        self._failed: dict[object, Reason] = {}
        self._weighed: set[object] = set()
        self._open_before = view.free_gpu_ids, lone_gpu_ids(view)
        self._open_count = sum(map(len, self._open_before))
        self._filled: set[str] = set()
        self._spots: dict[str, Spot] = {}
        self.is_limited = False

    @cached_property
    def _full(self) -> Reason:
        return Reason(code="CLUSTER_FULL", numbers={"gpus_in_cluster": len(self._view.gpus)})

    @cached_property
    def _too_many(self) -> Reason:
        return Reason(code="TOO_MANY_WEIGHED", numbers={"jobs_weighed_max": self._weighed_jobs_max})

    @property
    def pairs(self) -> PairColumns:
        """The GPUs with one job as columns, built when somebody reads them for the first time."""
        if self._pairs is None:
            self._pairs = PairColumns(self._view)
            for before, start in self._started.values():
                self._note_in_columns(self._pairs, before, start)
        return self._pairs

    @property
    def is_large(self) -> bool:
        """There are many GPUs to look at."""
        return self._open_count >= GPUS_IN_COLUMNS_MIN

    def has_failed(self, shape: object, length: int) -> bool:
        """Say whether a job of this shape and length was looked at in vain, and nothing has come free for it since."""
        return (shape, length) in self._failed

    def has_weighed(self, shape: object, length: int) -> bool:
        """Say whether a job of this shape and length counts among those that were weighed in vain."""
        return (shape, length) in self._weighed

    def widest(self) -> int:
        """Return on how many GPUs one job could be at most."""
        if self._view.nodes_per_job_max != 1:
            return self._open_count
        on_node = Counter(self._view.gpus[gpu_id].node_id for gpu_id in self._open_gpu_ids())
        return max(on_node.values(), default=0)

    def rest_reason(self) -> Reason:
        """Return why those wait that nobody looked at."""
        if self.is_limited:
            return self._too_many
        return self.closed() or Reason(code="TOO_FEW_PLACES", numbers={"gpus_with_place": self._open_count})

    def is_free_gang(self, request: JobRequest) -> bool:
        """The best of all GPUs decide about a job: a gang that may be anywhere, without smaller micro-batches."""
        is_gang = request.gpus > 1 and samples_per_gpu(request, request.gpus) == 1
        return is_gang and self._rule.recheck_gang and self._is_open_choice(request)

    def decide(self, job: PendingJob, passed_over: Callable[[], int] = lambda: 0) -> Decision:
        """Start a job alone, else beside others, or say why not; an equal job failed before = for the same reason.

        Args:
            job: Whose turn it is.
            passed_over: Counts those before it that would have been weighed in vain and were not looked at.
        """
        shape = (shape_of(job.request), self._rule.length(job))
        known = self._failed.get(shape)
        if known is not None:
            return self._hold(job, known)
        start = self.free.start(job)
        if start is not None:
            self._note(job, start)
            return start
        decision = self._share(job, shape, passed_over)
        if isinstance(decision, Start):
            self._note(job, decision)
        else:
            self._failed[shape] = decision.reason
        return decision

    def closed(self) -> Reason | None:
        """Return why nobody can start any more, or None while a GPU has a place."""
        return None if self._open_count or not self._view.gpus else self._full

    def _hold(self, job: PendingJob, reason: Reason) -> Hold:
        return Hold(job_id=job.request.job_id, reason=reason, candidates=self.candidates(job))

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return how every GPU looks for a job that waits; nothing where nobody asked."""
        return self._table(*self._look(job, self._view.gpus), None) if self._view.explain else ()

    def _open_gpu_ids(self) -> Iterator[str]:
        """Yield the GPUs that are free or hold one job that stays."""
        return (gpu_id for gpu_id in chain(*self._open_before) if gpu_id not in self._filled)

    def _is_open(self, gpu_id: str) -> bool:
        """The GPU is free or holds one job that stays."""
        is_leaving = self._view.gpus[gpu_id].is_releasing
        return not is_leaving and self._ledger.job_count(gpu_id) < JOBS_PER_GPU_MAX

    def _note(self, job: PendingJob, start: Start) -> None:
        """A GPU that was free until now has a second place to offer, so that who failed may succeed."""
        self._started[job.request.job_id] = job, start
        if self._pairs is not None:
            self._note_in_columns(self._pairs, job, start)
        for assignment in start.assignments:
            self._spots.pop(assignment.gpu_id, None)
            if not self._is_open(assignment.gpu_id):
                self._filled.add(assignment.gpu_id)
                self._open_count -= 1
            else:
                self._failed.clear()

    def _share(self, job: PendingJob, shape: object, passed_over: Callable[[], int]) -> Decision:
        request = job.request
        obstacle = self.free.impossible(request) or self._limit(shape, passed_over)
        if obstacle is not None:
            return self._hold(job, obstacle)
        offers: list[Offer] = []
        obstacles: dict[str, Reason] = {}
        refusals: list[Reason] = []
        for gpu_ids in self._looks(job, refusals):
            offers, obstacles = self._look(job, gpu_ids)
            gangs, refusals[:] = self._gangs(request, offers)
            for gang in gangs:
                objection = self._rule.objection(job, gang.spots, gang.micro_batch_size)
                if objection is None:
                    self._weighed.discard(shape)
                    return self._start(job, gang, self._table(offers, obstacles, gang))
                refusals.append(objection)
        reason = nearest_obstacle(refusals or obstacles.values())
        return Hold(job_id=request.job_id, reason=reason, candidates=self._table(offers, obstacles, None))

    def _limit(self, shape: object, passed_over: Callable[[], int]) -> Reason | None:
        """Return why nobody looks for second places (any more)."""
        if not self._open_count:
            return self._full
        if self.is_limited:
            return self._too_many
        if shape not in self._weighed and len(self._weighed) + passed_over() >= self._weighed_jobs_max:
            self.is_limited = True
            return self._too_many
        self._weighed.add(shape)
        return None

    def _looks(self, job: PendingJob, refusals: Sequence[Reason]) -> Iterator[Iterable[str]]:
        """Yield the GPUs to look at: on a large cluster first those that columns show to be the best, then all of them.

        Where columns show none that is worth it, one GPU of each load class is enough to tell why.
        """
        if not self._has_columns():
            yield self._view.gpus if self._view.explain else self._open_gpu_ids()
            return
        shortlist = self.pairs.shortlist(job)
        yield shortlist.gpu_ids or self.pairs.alike()
        if shortlist.gpu_ids and not self._is_settled(job.request, shortlist, refusals):
            yield self._open_gpu_ids()

    def _has_columns(self) -> bool:
        return self.is_large and self._rule.weighs_pairs and not self._view.explain

    def _is_open_choice(self, request: JobRequest) -> bool:
        """Any GPUs may be together in a gang: they are of one kind, on whatever nodes, and ask nothing of hosts."""
        asks_hosts = request.cpu_cores or request.host_memory_bytes
        return not self._view.nodes_per_job_max and not asks_hosts and self.pairs.is_one_kind

    def _is_settled(self, request: JobRequest, shortlist: Shortlist, refusals: Sequence[Reason]) -> bool:
        """Say whether all GPUs together would offer the same gang as the best of them, or none again."""
        if not self._is_open_choice(request):
            return False
        is_same_gang = bool(refusals) and all(reason.code == "SHARING_NOT_WORTH_IT" for reason in refusals)
        return shortlist.is_whole or is_same_gang

    def _note_in_columns(self, pairs: PairColumns, job: PendingJob, start: Start) -> None:
        gpu_ids = [assignment.gpu_id for assignment in start.assignments]
        there = self._ledger.residents(gpu_ids[0])
        pairs.start(job, next(one for one in there if one.request.job_id == start.job_id), gpu_ids)

    def _look(self, job: PendingJob, gpu_ids: Iterable[str]) -> tuple[list[Offer], dict[str, Reason]]:
        """Ask for GPUs whether the job could have them (lines 12-15)."""
        offers: list[Offer] = []
        obstacles: dict[str, Reason] = {}
        for gpu_id in gpu_ids:
            found = self._offer(job, self._view.gpus[gpu_id])
            if isinstance(found, Reason):
                obstacles[gpu_id] = found
            else:
                offers.append(found)
        return sorted(offers, key=lambda offer: offer.order), obstacles

    def _offer(self, job: PendingJob, entry: GpuView) -> Offer | Reason:
        request, gpu_id = job.request, entry.gpu.gpu_id
        known = self._spots.get(gpu_id)
        if known is not None and self._host_fits(request, entry.node_id, 1):
            return self._rule.offer(job, known, self._pairs)
        if entry.is_releasing:
            return Reason(code="GPU_RELEASING", gpu_ids=(gpu_id,))
        residents = self._ledger.residents(gpu_id)
        if len(residents) >= JOBS_PER_GPU_MAX:
            numbers = {"jobs_on_gpu": len(residents), "jobs_on_gpu_max": JOBS_PER_GPU_MAX}
            ids = tuple(resident.request.job_id for resident in residents)
            return Reason(code="TOO_MANY_JOBS", numbers=numbers, job_ids=ids, gpu_ids=(gpu_id,))
        if not self._host_fits(request, entry.node_id, 1):
            return host_reason(request)
        if residents:
            self._spots[gpu_id] = spot = self._spot(entry, residents[0])
            return self._rule.offer(job, spot, self._pairs)
        if not fits_alone(self._view, request, entry.gpu):
            return too_large(self._view, request, entry.gpu)
        return Offer(entry=entry, micro_batch_size=samples_per_gpu(request, request.gpus))

    def _spot(self, entry: GpuView, resident: Resident) -> Spot:
        if self._pairs is not None:
            rest_ms = partial(self._pairs.rest_ms, entry.gpu.gpu_id)
        else:
            rest_ms = partial(self._rest_ms, entry, resident)
        return Spot(
            entry=entry,
            partner=resident,
            memory_free_bytes=self._ledger.memory_free_bytes(entry),
            predictions=self._view.predictions,
            partner_rest_ms=rest_ms,
        )

    def _rest_ms(self, entry: GpuView, resident: Resident) -> float | None:
        """Return how long a job on a GPU still needs alone, or None."""
        request = resident.request
        running, started = self._view.running.get(request.job_id), self._started.get(request.job_id)
        known = running or (started[0] if started is not None else None)
        return remaining_ms_of(
            request,
            self._view.predictions.job(request.key, entry.gpu.device),
            steps_done=known.steps_done if known is not None else 0,
            gpus=len(running.assignments) if running is not None else request.gpus,
            micro_batch_size=resident.micro_batch_size,
        )

    def _host_fits(self, request: JobRequest, node_id: str, gpus_here: int) -> bool:
        return self._ledger.host_fits(self._view.nodes[node_id], request, gpus_here=gpus_here, gpus=request.gpus)

    def _gangs(self, request: JobRequest, offers: Sequence[Offer]) -> tuple[list[Gang], list[Reason]]:
        """Return one gang per place that has one, the cheapest first (lines 16-18), and why other places have none."""
        most_first = sorted(self._groups(offers).values(), key=len, reverse=True)
        found = [self._gang(request, group) for group in most_first]
        gangs = [one for one in found if isinstance(one, Gang)]
        return sorted(gangs, key=lambda gang: gang.order), [one for one in found if isinstance(one, Reason)]

    def _groups(self, offers: Iterable[Offer]) -> Mapping[tuple[str, Kind], list[Offer]]:
        """GPUs of one kind, on one node where a job may not span nodes."""
        groups: dict[tuple[str, Kind], list[Offer]] = {}
        for offer in offers:
            place = offer.entry.node_id if self._view.nodes_per_job_max == 1 else ""
            groups.setdefault((place, kind_of(offer.entry.gpu)), []).append(offer)
        return groups

    def _gang(self, request: JobRequest, offers: Sequence[Offer]) -> Gang | Reason:
        """Take the first GPUs; where one does not take the others' smaller micro-batch, try without it."""
        left = list(offers)
        refusals: dict[str, Reason] = {}
        while len(left) >= request.gpus:
            chosen = self._first(request, left)
            if chosen is None:
                return host_reason(request)
            micro_batch_size = min(offer.micro_batch_size for offer in chosen)
            refused = dict(misfits(request, chosen, micro_batch_size))
            if not refused:
                return Gang(offers=tuple(chosen), micro_batch_size=micro_batch_size)
            refusals |= refused
            left = [offer for offer in left if offer.entry.gpu.gpu_id not in refused]
        too_few = Reason(code="NO_FREE_GPU", numbers={"gpus_needed": request.gpus, "gpus_free": len(left)})
        return nearest_obstacle(refusals.values()) if refusals else too_few

    def _first(self, request: JobRequest, offers: Sequence[Offer]) -> list[Offer] | None:
        """Return the first GPUs in order that the hosts and the limit of nodes allow."""
        chosen: list[Offer] = []
        on_node: dict[str, int] = {}
        nodes_max = self._view.nodes_per_job_max
        for offer in offers:
            node_id = offer.entry.node_id
            if node_id not in on_node and nodes_max and len(on_node) >= nodes_max:
                continue
            if self._host_fits(request, node_id, on_node.get(node_id, 0) + 1):
                on_node[node_id] = on_node.get(node_id, 0) + 1
                chosen.append(offer)
            if len(chosen) == request.gpus:
                return chosen
        return None

    def _start(self, job: PendingJob, gang: Gang, candidates: tuple[Candidate, ...]) -> Start:
        request, gpu = job.request, gang.offers[0].entry.gpu
        gpu_ids = tuple(offer.entry.gpu.gpu_id for offer in gang.offers)
        prediction = self._view.predictions.job(request.key, gpu.device)
        reserved = reserved_bytes(request, prediction, gang.micro_batch_size, gpu) or gpu.memory_bytes
        resident = Resident(request=request, micro_batch_size=gang.micro_batch_size, memory_reserved_bytes=reserved)
        reason = gang_reason(self._ledger, resident, gang, gpu_ids)
        self._ledger.place(resident, ranked(gpu_ids))
        self.free.take(gpu_ids)
        return Start(
            job_id=request.job_id,
            reason=reason,
            assignments=ranked(gpu_ids),
            micro_batch_size=gang.micro_batch_size,
            accumulation_steps=passes_of(request, gpus=request.gpus, micro_batch_size=gang.micro_batch_size),
            candidates=candidates,
        )

    def _table(
        self, offers: Sequence[Offer], obstacles: Mapping[str, Reason], gang: Gang | None
    ) -> tuple[Candidate, ...]:
        if not self._view.explain:
            return ()
        return candidate_table(offers, obstacles, gang)
