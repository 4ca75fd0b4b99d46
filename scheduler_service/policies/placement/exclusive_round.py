"""One round of placement on free GPUs: the kind with the least execution time, the fewest nodes, no co-located job.

Source:
    The SJF-BSBF paper, section VI-A1 (the GPUs with the least execution time first) and Algorithm 1 lines 8-9 (enough
    free GPUs: take them, as few nodes as possible).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from scheduler_service.core.cluster_view.capacity import resident_on
from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.remaining_time_queue import RemainingTimeGroup, Turn, shape_of
from scheduler_service.core.cluster_view.step_times import step_ms_of
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.copied_record import slotted_record
from scheduler_service.core.decisions import Candidate, Decision, Hold, Reshape, Start, Stop
from scheduler_service.core.records import Gpu, JobRequest, Reason
from scheduler_service.policies.placement.free_gpus import (
    choose_free_gpus,
    fits_alone,
    free_by_kind_and_node,
    passes_alone,
    without_host,
)
from scheduler_service.policies.placement.offered_gpus import PreemptionPlan
from scheduler_service.policies.placement.reasons import host_reason, impossible_reason, too_large
from scheduler_service.policies.placement.starts import start_on

ChooseGpus = Callable[[Ledger, JobRequest, Mapping[str, Sequence[str]]], tuple[str, ...] | None]
Placed = Callable[[JobRequest, tuple[str, ...]], None]
_ANY_GPU = "any GPU"
"""Instead of the shape of a job that every GPU would do for."""


@slotted_record
class MadeRoom:
    """What lets a job start once the GPUs chosen for it are free.

    Attributes:
        gpu_ids: As many as the job needs; no later job gets them.
        stops: Of the running jobs that leave them; none where it is enough to wait.
        reason: Why the job waits.
        is_opening: Jobs that found no GPUs before may find some now.
    """

    gpu_ids: tuple[str, ...]
    stops: Sequence[Stop]
    reason: Reason
    is_opening: bool


class ImpossibleShapes:
    """Which shapes of jobs could not start on the empty cluster, as far as they were looked at.

    Attributes:
        looked_at: The shapes that were.
        reasons: Why, by shape.
    """

    def __init__(self) -> None:
        self.looked_at: set[object] = set()
        self.reasons: dict[object, Reason] = {}

    def put(self, shape: object, reason: Reason | None) -> None:
        """Note why a shape could not start, or (None) that it could."""
        self.looked_at.add(shape)
        if reason is not None:
            self.reasons[shape] = reason


class RoomMaker(Protocol):
    """Which running jobs make room by the rules of one policy; it keeps what this round has promised."""

    def make_room(self, job: PendingJob) -> MadeRoom | None:
        """Return how a job that finds too few free GPUs gets its GPUs, or None where none make room for it."""

    def promise_vacant(self, job: PendingJob, shape: object) -> PreemptionPlan | None:
        """Promise vacant GPUs to a job of a shape that cannot start, as `make_room` would; None = that is to be asked.

        No job that found none finds any then.
        """

    def may_make_room(self, gpus: int, turn: Turn) -> bool:
        """Return whether a job of so many GPUs with this place in the order needs a look."""

    def has_failed(self, shape: object) -> bool:
        """Return whether no room was found for a job of this shape, and nothing has changed since."""


class ExclusiveRound:
    """One call of decide: the free GPUs shrink as jobs take them.

    Args:
        view: The cluster.
        choose: Which of the free GPUs of one kind a job takes; None = no set of them that it could take. Asked for
            reasons too: what it returns is not taken before the job starts.
        placed: Called with what a job that starts takes.
        room_maker: Makes the rules by which running jobs make room; None = none do.

    Attributes:
        ledger: What this round has given away.
        room_maker: Those rules.
        orders: What it asks of running jobs, so that waiting ones can start.
        rooms_made: Jobs that wait for GPUs which others leave for them.
        rooms_opened: Those of them after which jobs that found no GPUs may find some.
    """

    def __init__(
        self,
        view: SchedulingView,
        choose: ChooseGpus = choose_free_gpus,
        placed: Placed | None = None,
        room_maker: Callable[[Ledger], RoomMaker] | None = None,
    ) -> None:
        self.ledger = Ledger(view)
        self.orders: list[Stop | Reshape] = []
        self.rooms_made = self.rooms_opened = 0
        self.room_maker = room_maker(self.ledger) if room_maker is not None else None
        self._view, self._free_before = view, view.index.free_gpu_ids
        self._choose_gpus, self._placed = choose, placed
        self._free = free_by_kind_and_node(view) if self._free_before else {}
        self._free_counts = {kind: sum(map(len, nodes.values())) for kind, nodes in self._free.items()}
        self._failed: dict[object, Reason] = {}
        self._hopeless: set[object] = set()
        self._tables: dict[object, tuple[Candidate, ...]] = {}
        self._impossible = ImpossibleShapes()
        self._asked: tuple[JobRequest, Kind, tuple[int, int] | None] | None = None

    def widest(self) -> int:
        """Return how many free GPUs one job could get at most."""
        if not self.ledger.free_count():
            return 0
        if self._view.nodes_per_job_max != 1:
            return max(self._free_counts.values(), default=0)
        return max((max(map(len, nodes.values())) for nodes in self._free.values() if nodes), default=0)

    def has_failed(self, shape: object) -> bool:
        """Return whether a job of this shape found no free GPUs."""
        return shape in self._hopeless

    def free_on(self, kind: Kind) -> Mapping[str, Sequence[str]]:
        """Return the free GPUs of one kind, by node."""
        return self._free.get(kind, {})

    def decide(self, job: PendingJob) -> Decision:
        """Start a job on free GPUs, make room for it, or return why it waits."""
        started = self.start(job) if self.ledger.free_count() else None
        return started or self._make_room(job) or self.hold(job)

    def start(self, job: PendingJob) -> Start | None:
        """Start a job on free GPUs, or return None; an equal job failed before = it fails without a look."""
        request = job.request
        shape = shape_of(request)
        if shape in self._hopeless:
            return None
        gpu_ids = self.place_for(request)
        if gpu_ids is not None:
            return self.start_at(request, gpu_ids)
        self._hopeless.add(shape)
        return None

    def place_for(self, request: JobRequest) -> tuple[str, ...] | None:
        """Return the free GPUs that a job would get now, of the kind with the least execution time; None = none."""
        if not self.ledger.free_count():
            return None
        kinds = [*self._free]
        if len(kinds) > 1:
            kinds.sort(key=lambda kind: self._execution_order(request, kind))
        for kind in kinds:
            gpu_ids = self._choose(request, kind)
            if gpu_ids is not None:
                return gpu_ids
        return None

    def hold(self, job: PendingJob) -> Hold:
        """Let a job wait; equal jobs wait for the same reason, as one object."""
        request = job.request
        reason = self.wait_reason(request, shape_of(request))
        return Hold(job_id=request.job_id, reason=reason, candidates=self.candidates(job))

    def wait_reason(self, request: JobRequest, shape: object) -> Reason:
        """Return why a job of a shape waits that finds too few GPUs."""
        reason = self._failed.get(shape)
        if reason is None:
            is_known = shape in self._impossible.looked_at
            impossible = self._impossible.reasons.get(shape) if is_known else self.impossible(request)
            reason = self._failed[shape] = impossible or self._full(request)
        return reason

    def wait_reasons(self, groups: Collection[RemainingTimeGroup]) -> Mapping[object, Reason]:
        """Return the same of the jobs of these groups, by shape."""
        impossible, found = self.impossible_reasons(groups), dict[object, Reason]()
        is_full = not self.ledger.free_count() or not any(self._free_counts.values())
        if is_full and not self._failed and not impossible:  # as in most rounds
            return {group.shape: _too_few_free(group.request.gpus, 0) for group in groups}
        for group in groups:
            shape, request = group.shape, group.request
            reason = self._failed.get(shape) or impossible.get(shape)
            found[shape] = reason or (_too_few_free(request.gpus, 0) if is_full else self._full(request))
        return found

    def _make_room(self, job: PendingJob) -> Hold | None:
        """Let running jobs make room for a job that would wait, if any do."""
        room_maker = self.room_maker
        made = room_maker.make_room(job) if room_maker is not None else None
        if made is None:
            return None
        candidates = self.candidates(job)
        self.rooms_made += 1
        self.rooms_opened += made.is_opening
        self.take(made.gpu_ids)
        self.orders += made.stops
        return Hold(job_id=job.request.job_id, reason=made.reason, candidates=candidates)

    def closed(self) -> Reason | None:
        """Return why no job can start any more, or None while a GPU is free."""
        if self.ledger.free_count() or not self._view.gpus:
            return None
        return _cluster_full(len(self._view.gpus))

    def take(self, gpu_ids: Iterable[str]) -> None:
        """Remove GPUs from the free ones, for a job that was or will be placed otherwise; others are ignored."""
        self._tables.clear()
        for gpu_id in gpu_ids:
            if gpu_id not in self._free_before:
                continue
            entry = self._view.gpus[gpu_id]
            kind = kind_of(entry.gpu)
            on_node = self._free.get(kind, {}).get(entry.node_id, [])
            if gpu_id in on_node:
                on_node.remove(gpu_id)
                self._free_counts[kind] -= 1

    def is_impossible(self, request: JobRequest) -> bool:
        """The job could not start on the empty cluster either: it must not block those behind it."""
        return self.impossible(request) is not None

    def impossible(self, request: JobRequest) -> Reason | None:
        """Return why the job could not start on the empty cluster, or None when it could."""
        shape, known = shape_of(request), self._impossible
        if shape not in known.looked_at:
            known.put(shape, impossible_reason(self._view, self._view.index.inventory, request))
        return known.reasons.get(shape)

    def impossible_reasons(self, groups: Collection[RemainingTimeGroup]) -> Mapping[object, Reason]:
        """Return why jobs of these groups could not start on the empty cluster, by shape, where they could not."""
        known = self._impossible
        for group in groups:
            if group.shape not in known.looked_at:
                self.impossible(group.request)
        reasons = known.reasons
        return {group.shape: reasons[group.shape] for group in groups if group.shape in reasons} if reasons else {}

    def recall_impossible(self, known: ImpossibleShapes) -> None:
        """Go on from what earlier rounds found of jobs by shape, on the same nodes and predictions; it is added to."""
        self._impossible = known

    def _execution_order(self, request: JobRequest, kind: Kind) -> tuple[float, Kind]:
        """Order kinds by predicted step time; unknown ones last."""
        prediction = self._view.predictions.job(request.key, kind[0])
        step_ms = step_ms_of(request, prediction, gpus=request.gpus)
        return (float("inf") if step_ms is None else step_ms), kind

    def _choose(self, request: JobRequest, kind: Kind) -> tuple[str, ...] | None:
        by_node = self._free[kind]
        if self._free_counts[kind] < request.gpus or not self._fits_kind(request, kind):
            return None
        return self._choose_gpus(self.ledger, request, by_node)

    def _fits_kind(self, request: JobRequest, kind: Kind) -> bool:
        for gpu_ids in self._free[kind].values():
            if gpu_ids:
                return self._passes_on(request, kind, self._view.gpus[gpu_ids[0]].gpu) is not None
        return False

    def _passes_on(self, request: JobRequest, kind: Kind, gpu: Gpu) -> tuple[int, int] | None:
        """Return samples per pass and passes on an empty GPU of a kind; of a job that starts it is asked twice."""
        if self._asked is None or self._asked[0] is not request or self._asked[1] != kind:
            self._asked = request, kind, passes_alone(self._view, request, gpu)
        return self._asked[2]

    def start_at(self, request: JobRequest, gpu_ids: tuple[str, ...]) -> Start:
        """Start a job on free GPUs that were chosen for it, as many as it asks for."""
        gpu = self._view.gpus[gpu_ids[0]].gpu
        micro_batch_size, passes = self._passes_on(request, kind_of(gpu), gpu) or (0, 0)
        resident = resident_on(request, self._view.predictions.job(request.key, gpu.device), micro_batch_size, gpu)
        if resident is None or not passes:
            raise AssertionError(f"{request.job_id} was given {gpu_ids[0]} without fitting it")
        self.take(gpu_ids)
        if self._placed is not None:
            self._placed(request, gpu_ids)
        return start_on(self.ledger, resident, gpu_ids, accumulation_steps=passes)

    def _full(self, request: JobRequest) -> Reason:
        """Return what is missing now: GPUs, room on their hosts, or only the way in which the policy spreads."""
        if not any(self._free_counts.values()):
            return _too_few_free(request.gpus, 0)
        fitting = {kind: nodes for kind, nodes in self._free.items() if self._fits_kind(request, kind)}
        nodes_max = self._view.nodes_per_job_max or None
        by_kind = [sorted(map(len, nodes.values()), reverse=True) for nodes in fitting.values()]
        gpus_free = max((sum(counts[:nodes_max]) for counts in by_kind), default=0)
        if gpus_free < request.gpus:
            return _too_few_free(request.gpus, gpus_free)
        numbers = {"gpus_needed": request.gpus, "gpus_free": gpus_free}
        if any(self._choose(without_host(request), kind) is not None for kind in fitting):
            return host_reason(request)
        return Reason(code="SPREAD_UNEVEN", numbers={**numbers, "gpus_on_node": max(map(max, by_kind))})

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return how every GPU looks for a job that runs alone; nothing where no table is asked for.

        Equal jobs share their table until another job starts, and so do all that every GPU would do for: a long queue
        costs few tables.
        """
        if not self._view.wants_table(job.request.job_id):
            return ()
        key = _ANY_GPU if self._fits_every_gpu(job.request) else shape_of(job.request)
        if key not in self._tables:
            self._tables[key] = tuple(self._candidate(job.request, gpu_id) for gpu_id in self._view.gpus)
        return self._tables[key]

    def _fits_every_gpu(self, request: JobRequest) -> bool:
        """Every kind of GPU has the memory for a job, and it asks nothing of the hosts."""
        asks_hosts, kinds = without_host(request) != request, self._view.index.inventory.gpus
        return not asks_hosts and all(fits_alone(self._view, request, gpu) for gpu in kinds.values())

    def _candidate(self, request: JobRequest, gpu_id: str) -> Candidate:
        obstacle = self._obstacle(request, gpu_id)
        reason = obstacle or Reason(code="CANDIDATE", gpu_ids=(gpu_id,))
        return Candidate(gpu_id=gpu_id, feasible=obstacle is None, reason=reason)

    def _obstacle(self, request: JobRequest, gpu_id: str) -> Reason | None:
        """Return why no worker of a job could be alone on a GPU now."""
        entry = self._view.gpus[gpu_id]
        if entry.is_releasing:
            return Reason(code="GPU_RELEASING", gpu_ids=(gpu_id,))
        if not self.ledger.is_free(gpu_id):
            numbers = {"jobs_on_gpu": self.ledger.job_count(gpu_id), "jobs_on_gpu_max": 1}
            return Reason(code="TOO_MANY_JOBS", numbers=numbers, job_ids=entry.job_ids, gpu_ids=(gpu_id,))
        if not fits_alone(self._view, request, entry.gpu):
            return too_large(self._view, request, entry.gpu)
        node = self._view.nodes[entry.node_id]
        has_room = self.ledger.host_fits(node, request, gpus_here=1, gpus=request.gpus)
        return None if has_room else host_reason(request)


@lru_cache(maxsize=1_024)
def _cluster_full(gpus_in_cluster: int) -> Reason:
    """Return one object for all that wait for it, round after round."""
    return Reason(code="CLUSTER_FULL", numbers={"gpus_in_cluster": gpus_in_cluster})


@lru_cache(maxsize=1_024)
def _too_few_free(gpus_needed: int, gpus_free: int) -> Reason:
    """Return one object for all that wait for it, round after round."""
    return Reason(code="NO_FREE_GPU", numbers={"gpus_needed": gpus_needed, "gpus_free": gpus_free})
