"""GPUs kept back for a wide job, which would wait for ever if narrower ones took each GPU that falls free.

The first job in the order of turns that needs several GPUs at once, and has too few, has them kept back: on the node
where they are expected to be free first or, where it may span nodes, on these together. Nothing new starts on them but
jobs that are expected to end before, so that the instant comes no later than the jobs there end. Where that is not
known, GPUs are kept back for a bounded time and given away for as long, in turns.

Nothing is remembered: the same state gives the same GPUs, and those that take nothing new stay the nearest ones.

Source:
    Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995): the first job that does not fit has a reservation, and
    others go ahead if they do not delay it (EASY backfilling).

Where we differ:
    Only across turns: inside its own lane a policy keeps its own order. Sharing GPUs are not foreseen: the job is
    promised as many that are empty. Of later ends than a day nothing is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler_service.core.cluster_view.capacity import micro_batch_size_alone
from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.replica_groups import host_share
from scheduler_service.core.cluster_view.step_times import remaining_ms_of, step_ms_of
from scheduler_service.core.cluster_view.view import GpuView, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.queue.lane_views import seen_in_lane
from scheduler_service.core.queue.lanes import Lane, LaneName
from scheduler_service.core.queue.ready_queue import NO_LANE
from scheduler_service.core.records import Gpu, JobRequest, Node, Reason

if TYPE_CHECKING:
    from scheduler_service.core.queue.turn_order import Queue

KEPT_MS_MAX: Final = 3_600_000
"""So long GPUs are kept back at a time where it is unknown when the others of them fall free."""
FORESEEN_MS_MAX: Final = 86_400_000
OVERDUE_LEAST_MS: Final = 600_000
OVERDUE_RATIO: Final = 0.25
"""A job that runs so much longer than foreseen, in relation to its attempt, has an end that is not known."""
WIDE_LOOKED_MAX: Final = 16
"""Wide jobs that are looked at in one decision: the first that some node could hold at all counts."""
OLDEST_SHOWN_MAX: Final = 16
BACKFILLED_LOOKED_MAX: Final = 16
BACKFILL_TURNS_MAX: Final = 4
"""Jobs of one lane, and lanes, that are tried on the GPUs kept back in one decision; the next one goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """GPUs that are kept back.

    Attributes:
        job: For which job.
        lane: Of the job.
        gpu_ids: As many as it needs, those that fall free first at the beginning.
        idle_gpu_ids: Those among them that hold nothing now.
        kind: Of these GPUs.
        starts_at_ms: When all are expected to be free; None = that is not known.
        until_ms: When that is looked at again without any fact: the job is overdue then, or others have their time.
        view: The cluster at that instant, without the jobs that wait.
    """

    job: PendingJob
    lane: LaneName
    gpu_ids: tuple[str, ...]
    idle_gpu_ids: tuple[str, ...]
    kind: Kind
    starts_at_ms: int | None
    until_ms: int
    view: SchedulingView

    @property
    def job_id(self) -> str:
        """The job for which they are kept back."""
        return self.job.request.job_id

    @property
    def place(self) -> tuple[int, str]:
        """When the job was submitted, and its id."""
        return self.job.submitted_at_ms, self.job_id

    def reason(self, now_ms: int) -> Reason:
        """Return why the job itself waits."""
        at_ms = self.until_ms if self.starts_at_ms is None else self.starts_at_ms
        numbers = {
            "gpus_needed": len(self.gpu_ids),
            "gpus_kept": len(self.idle_gpu_ids),
            "wait_ms": max(at_ms - now_ms, 0),
        }
        code = "RESERVED_FOR_NOW" if self.starts_at_ms is None else "RESERVED"
        return Reason(code=code, numbers=numbers, gpu_ids=self.gpu_ids)

    def reason_of_others(self) -> Reason:
        """Return why jobs wait that would have these GPUs."""
        numbers = {"gpus_needed": len(self.gpu_ids), "gpus_kept": len(self.idle_gpu_ids)}
        return Reason(code="KEPT_FOR_OTHER", numbers=numbers, job_ids=(self.job_id,), gpu_ids=self.idle_gpu_ids)


def find_reservation(
    state: Queue,
    look: Callable[[], SchedulingView],
    narrow: Callable[[SchedulingView, JobRequest], SchedulingView] | None = None,
) -> Reservation | None:
    """Return the GPUs to keep back in this decision; None = no job needs that now.

    Args:
        state: Whose jobs wait.
        look: Returns the cluster with the jobs that are shown; called at most once.
        narrow: Returns what of it a job may use, besides what its lane says; None = all.
    """
    if len(state.waiting.lanes) < 2:
        return None
    view: SchedulingView | None = None
    for lane, job in islice(_wide_jobs(state), WIDE_LOOKED_MAX):
        if view is None:
            with state.waiting.showing(NO_LANE):
                view = look()
        seen = view if narrow is None else narrow(view, job.request)
        found = _Places(seen, lane, job.request).nearest()
        if found is not None:
            return _reservation(lane, job, found, view)
    return None


def _wide_jobs(state: Queue) -> Iterator[tuple[LaneName, PendingJob]]:
    """Yield the jobs that need several GPUs and may have them, in the order of turns and then of submission."""
    lanes = state.waiting.lanes
    for priority in sorted({name.priority for name in lanes}, reverse=True):
        of_class = [name for name in lanes if name.priority == priority]
        for tenant in state.tenants.in_turn({name.tenant for name in of_class}, state.now_ms):
            left = state.tenants.gpus_left(tenant)
            wide = (_wide_in(name, lanes[name].wide_jobs(left)) for name in of_class if name.tenant == tenant)
            yield from ((name, job) for _, name, job in merge(*wide, key=lambda one: one[0]))


def _wide_in(name: LaneName, jobs: Iterable[PendingJob]) -> Iterator[tuple[tuple[int, str], LaneName, PendingJob]]:
    return (((job.submitted_at_ms, job.request.job_id), name, job) for job in jobs)


def _reservation(lane: LaneName, job: PendingJob, place: _Place, view: SchedulingView) -> Reservation | None:
    waited_ms = max(view.now_ms - job.submitted_at_ms, 0)
    starts_at_ms = None
    if isfinite(place.ready_at_ms):
        starts_at_ms = ceil(max(place.ready_at_ms, view.now_ms))
        # Few different instants, since each is a wish to be woken.
        until_ms = (starts_at_ms // OVERDUE_LEAST_MS + 2) * OVERDUE_LEAST_MS
    elif waited_ms // KEPT_MS_MAX % 2:
        return None
    else:
        until_ms = job.submitted_at_ms + (waited_ms // KEPT_MS_MAX + 1) * KEPT_MS_MAX
    return Reservation(
        job=job,
        lane=lane,
        gpu_ids=place.gpu_ids,
        idle_gpu_ids=place.idle_gpu_ids,
        kind=place.kind,
        starts_at_ms=starts_at_ms,
        until_ms=until_ms,
        view=view,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a job could be.

    Attributes:
        ready_at_ms: When the last of its GPUs is expected to be free; infinite = not known.
    """

    ready_at_ms: float
    gpu_ids: tuple[str, ...]
    idle_gpu_ids: tuple[str, ...]
    kind: Kind


class _Places:
    """Where a wide job could be, and when.

    Args:
        view: The cluster.
        lane: The job's lane.
        request: The job.
    """

    def __init__(self, view: SchedulingView, lane: LaneName, request: JobRequest) -> None:
        self._reported = view.index.reported
        self._view, self._request = (view := seen_in_lane(view, lane)), request
        self._need = host_share(request, 1, request.gpus)
        self._ends_ms: dict[str, float] = {}
        self._kept = _kept_ends(view)
        self._fitting = {kind for kind, gpu in view.index.inventory.gpus.items() if _fits(view, request, kind, gpu)}

    def nearest(self) -> _Place | None:
        """Return where the job is expected to fit first; None = nowhere."""
        gpus = self._request.gpus
        found: dict[tuple[str, Kind], list[tuple[float, int, GpuView]]] = {}
        is_on_one_node = self._view.nodes_per_job_max == 1
        hosts = {node_id for node_id, node in self._view.nodes.items() if self._host_may_do(node)}
        for entry in self._view.gpus.values():
            kind = kind_of(entry.gpu)
            if kind in self._fitting and entry.node_id in hosts:
                here = found.setdefault((entry.node_id if is_on_one_node else "", kind), [])
                here.append((self._free_at_ms(entry), len(here), entry))
        wide_enough = ((where, sorted(here)[:gpus]) for where, here in found.items() if len(here) >= gpus)
        best = min(wide_enough, key=lambda one: (*_distance(one[1]), one[0]), default=None)
        return None if best is None else self._place(best[0][1], best[1])

    def _place(self, kind: Kind, chosen: Sequence[tuple[float, int, GpuView]]) -> _Place:
        return _Place(
            ready_at_ms=_distance(chosen)[0],
            gpu_ids=tuple(entry.gpu.gpu_id for _, _, entry in chosen),
            idle_gpu_ids=tuple(entry.gpu.gpu_id for _, _, entry in chosen if _is_idle(entry)),
            kind=kind,
        )

    def _host_may_do(self, node: Node) -> bool:
        """Say whether the host of a node has room for one GPU's part of the job when nothing else is there."""
        need = self._need
        cpu_does = node.cpu_cores <= 0 or need.cpu_cores <= node.cpu_cores
        return cpu_does and (node.host_memory_bytes <= 0 or need.host_memory_bytes <= node.host_memory_bytes)

    def _free_at_ms(self, entry: GpuView) -> float:
        """Return when a GPU is expected to hold nothing; 0 = it does now, infinite = that is not known."""
        if _is_idle(entry):
            return 0.0
        if not entry.job_ids:
            return inf
        ends_ms = max([self._ends_ms.get(job_id) or self._end_ms(job_id) for job_id in entry.job_ids])
        return inf if ends_ms > self._view.now_ms + FORESEEN_MS_MAX else ends_ms

    def _end_ms(self, job_id: str) -> float:
        known = self._kept.find(self._view, self._reported[job_id])
        self._ends_ms[job_id] = end_ms = known.at_ms(self._view.now_ms)
        return end_ms


def _distance(chosen: Sequence[tuple[float, int, GpuView]]) -> tuple[float, int]:
    """Return when GPUs are free together, and how many are not yet: where the one is unknown the other counts."""
    return chosen[-1][0], sum(not _is_idle(entry) for _, _, entry in chosen)


def _is_idle(entry: GpuView) -> bool:
    return not entry.job_ids and not entry.is_releasing


def _fits(view: SchedulingView, request: JobRequest, kind: Kind, gpu: Gpu) -> bool:
    prediction = view.predictions.job(request.key, kind[0])
    return micro_batch_size_alone(request, prediction, request.gpus, gpu) is not None


class ExpectedEnd(NamedTuple):
    """When a running job is expected to end, at its present pace.

    Attributes:
        by_steps_ms: When its steps are made; before now = now, infinite = that is not known.
        overdue_ms: From then on that is not believed.
        stopped_ms: When its time limit ends it; infinite = it has none.
    """

    by_steps_ms: float
    overdue_ms: float = inf
    stopped_ms: float = inf

    def at_ms(self, now_ms: int) -> float:
        """Return the end as it is expected at an instant; infinite = that is not known."""
        by_steps_ms = inf if now_ms > self.overdue_ms else max(self.by_steps_ms, float(now_ms))
        return min(by_steps_ms, self.stopped_ms)


class KeptEnds:
    """The expected ends of running jobs, kept from decision to decision until more is reported of a job."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[RunningJob, int, ExpectedEnd]] = {}

    def find(self, view: SchedulingView, job: RunningJob) -> ExpectedEnd:
        """Return the end of a running job, as it was last reported."""
        job_id, changes = job.request.job_id, view.index.prediction_changes.count
        known = self._known.get(job_id)
        if known is not None and known[0] is job and known[1] == changes:
            return known[2]
        if len(self._known) > 2 * len(view.running):
            self._known.clear()
        self._known[job_id] = job, changes, (end := expected_end(view, job))
        return end


def _kept_ends(view: SchedulingView) -> KeptEnds:
    kept = view.index.kept_answers.get(KeptEnds)
    if not isinstance(kept, KeptEnds):
        view.index.kept_answers[KeptEnds] = kept = KeptEnds()
    return kept


def expected_end(view: SchedulingView, job: RunningJob) -> ExpectedEnd:
    """Return when a running job is expected to end.

    Args:
        view: Where it runs.
        job: As it was last reported.
    """
    if job.is_stopping and not job.moving_to:
        return ExpectedEnd(-inf)
    if job.pause is not None or job.moving_to:
        return ExpectedEnd(inf)
    limit_ms, ran_ms = job.request.terms.time_limit_ms, job.attained_gpu_ms / len(job.assignments)
    stopped_ms = job.accrued_at_ms + max(limit_ms - ran_ms, 0.0) if limit_ms else inf
    entry = view.gpus.get(job.assignments[0].gpu_id)
    step_ms: float | None = job.step_ms
    if not step_ms and entry is not None:
        prediction = view.predictions.job(job.request.key, entry.gpu.device)
        step_ms = step_ms_of(job.request, prediction, gpus=len(job.assignments), micro_batch_size=job.micro_batch_size)
    if not step_ms or job.request.steps_total <= 0:
        return ExpectedEnd(inf, inf, stopped_ms)
    end_ms = job.accrued_at_ms + max(job.request.steps_total - job.steps_done, 0) * step_ms
    tolerated_ms = max(OVERDUE_LEAST_MS, OVERDUE_RATIO * (end_ms - job.started_at_ms))
    return ExpectedEnd(end_ms, end_ms + tolerated_ms, stopped_ms)


def short_jobs(lane: Lane, reservation: Reservation, idle_gpus: int) -> AbstractSet[str]:
    """Return jobs of a lane that end, alone on GPUs kept back, before these are needed: of each kind the shortest.

    Args:
        lane: The lane.
        reservation: The GPUs.
        idle_gpus: How many of them hold nothing.
    """
    view, device, found = reservation.view, reservation.kind[0], list[str]()
    window_ms = reservation.starts_at_ms - view.now_ms if reservation.starts_at_ms is not None else 0
    if window_ms <= 0 or not idle_gpus:
        return frozenset()
    lengths = lane.read_lengths({device for device, *_ in view.index.inventory.gpus}, view.predictions)
    for _, _, job_id in lengths.shortest(idle_gpus, window_ms):
        job = lane.queue.by_id[job_id]
        prediction = view.predictions.job(job.request.key, device)
        alone_ms = remaining_ms_of(job.request, prediction, steps_done=job.steps_done, gpus=job.request.gpus)
        if alone_ms is not None and alone_ms <= window_ms:
            found.append(job_id)
        if len(found) == BACKFILLED_LOOKED_MAX:
            break
    return frozenset(found)
