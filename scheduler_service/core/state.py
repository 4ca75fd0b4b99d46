"""Everything the engine knows, with the indexes that keep it from scanning.

`ClusterState` is changed by the engine alone; everybody else reads its mappings, which are read-only views of the live
dictionaries. Records are frozen: a change is a replacement, so that a reader never sees half of one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from scheduler_service.core.decision_log import DecisionLog
from scheduler_service.core.decisions import Hold
from scheduler_service.core.host_use import host_use_of
from scheduler_service.core.inventory import Inventory, count_gpus
from scheduler_service.core.job_records import (
    HOLDING_PHASES,
    AbandonedAttempt,
    JobRecord,
    KeyUse,
    RejectedDecision,
    has_same_occupancy,
    pending_view,
    with_job,
    without_job,
)
from scheduler_service.core.open_gpus import FreePlaces, OpenGpus
from scheduler_service.core.prediction_store import PredictionStore
from scheduler_service.core.progress_extrapolation import ReportedJobs
from scheduler_service.core.ready_queue import ReadyQueue
from scheduler_service.core.records import ENDED_PHASES, Node, Phase, Reason
from scheduler_service.core.remaining_time_queue import RemainingTimeQueue, build_lengths
from scheduler_service.core.view import GpuView, HostUse, PendingJob, RunningJob


class ClusterState:
    """Jobs, nodes, GPUs and predictions.

    Args:
        seed: Seed handed to policies in every view.
        ended_jobs_max: Ended jobs kept; the oldest leave first.

    Attributes:
        jobs: Every living job and the newest ended ones, by id.
        nodes: Every node ever joined, by id; `connected` says whether it is there.
        gpus: Every GPU of every node with what it holds, by id.
        slowdown_ewma_ratios: Moving average of the slowdowns measured on each GPU, by its id; absent = 0.
        running: Jobs that hold GPUs, as policies see them, in start order.
    """

    def __init__(self, *, seed: int = 0, ended_jobs_max: int = 10_000) -> None:
        self.now_ms = 0
        self.seed = seed
        self.next_fence = 1
        self.policy = ""
        self.parameters: Mapping[str, object] = {}
        self.predictions = PredictionStore()
        self.decisions = DecisionLog()
        self.decided_at_ms = 0
        self.rejected: deque[RejectedDecision] = deque(maxlen=1_000)
        self.ended_jobs_max = ended_jobs_max
        self._jobs: dict[str, JobRecord] = {}
        self.jobs: Mapping[str, JobRecord] = MappingProxyType(self._jobs)
        self._nodes: dict[str, Node] = {}
        self.nodes: Mapping[str, Node] = MappingProxyType(self._nodes)
        self._gpus: dict[str, GpuView] = {}
        self.gpus: Mapping[str, GpuView] = MappingProxyType(self._gpus)
        self._usable_nodes: dict[str, Node] = {}
        self._usable_gpus: dict[str, GpuView] = {}
        self._inventory: Inventory | None = None
        self._open = OpenGpus()
        self._holders: dict[str, list[str]] = {}
        self._host_use: dict[str, HostUse] = {}
        self._slowdown_ewma_ratios: dict[str, float] = {}
        self.slowdown_ewma_ratios: Mapping[str, float] = MappingProxyType(self._slowdown_ewma_ratios)
        self._abandoned_attempts: dict[tuple[str, int, int], AbandonedAttempt] = {}
        self._by_phase: dict[Phase, dict[str, None]] = {phase: {} for phase in Phase}
        self._pending_by_key: dict[str, dict[str, None]] = {}
        self._living_keys: dict[str, KeyUse] = {}
        self._devices: dict[str, int] = {}
        self._running = ReportedJobs()
        self.running: Mapping[str, RunningJob] = self._running
        self.layout = 0
        self.touched_gpu_ids: set[str] = set()
        self.touched_job_ids: set[str] = set()
        self.lengths: RemainingTimeQueue | None = None
        self._ready: list[tuple[int, str]] = []
        self._ready_jobs: dict[str, PendingJob] = {}
        self._holds: dict[str, Reason] = {}

    @property
    def usable_nodes(self) -> Mapping[str, Node]:
        """Connected and schedulable nodes."""
        return MappingProxyType(self._usable_nodes)

    @property
    def usable_gpus(self) -> Mapping[str, GpuView]:
        """Healthy GPUs of usable nodes, in node and index order."""
        return MappingProxyType(self._usable_gpus)

    @property
    def free_gpu_ids(self) -> AbstractSet[str]:
        """Usable GPUs that hold nothing and release nothing."""
        return self._open.free_ids

    @property
    def single_job_gpu_ids(self) -> AbstractSet[str]:
        """Usable GPUs that hold exactly one job and release nothing."""
        return self._open.single_job_ids

    @property
    def free_places(self) -> FreePlaces:
        """The free GPUs by kind and node."""
        return self._open.free_places

    def read_lengths(self) -> RemainingTimeQueue:
        """Return the ready jobs in the order of their remaining time; kept from the first reading on."""
        if self.lengths is None:
            devices = {view.gpu.device for view in self._usable_gpus.values()}
            self.lengths = build_lengths(self._ready_jobs, devices, self.predictions)
        return self.lengths

    @property
    def host_use(self) -> Mapping[str, HostUse]:
        """What jobs occupy of each node's host, by node id."""
        return MappingProxyType(self._host_use)

    @property
    def abandoned_attempts(self) -> Mapping[tuple[str, int, int], AbandonedAttempt]:
        """Attempts given up whose end was not confirmed, by (job, attempt, fence)."""
        return MappingProxyType(self._abandoned_attempts)

    @property
    def holds(self) -> Mapping[str, Reason]:
        """Pending jobs that the engine itself holds back, and why."""
        return MappingProxyType(self._holds)

    @property
    def living_keys(self) -> Mapping[str, KeyUse]:
        """Keys with a graph that a living job uses."""
        return MappingProxyType(self._living_keys)

    @property
    def devices(self) -> Mapping[str, int]:
        """Smallest memory in bytes of every device type ever joined."""
        return MappingProxyType(self._devices)

    def in_phase(self, phase: Phase) -> AbstractSet[str]:
        """Return the ids of the jobs in a phase, in the order in which they entered it."""
        return self._by_phase[phase].keys()

    def pending_with_key(self, key: str) -> tuple[str, ...]:
        """Return the pending jobs of a key."""
        return tuple(self._pending_by_key.get(key, ()))

    def jobs_on_gpu(self, gpu_id: str) -> tuple[str, ...]:
        """Return the jobs that hold a GPU or will move there, in the order of their present attempts."""
        return tuple(self._holders.get(gpu_id, ()))

    def jobs_on_node(self, node_id: str) -> tuple[str, ...]:
        """Return the jobs that hold any GPU of a node or will move to one."""
        gpus = self._nodes[node_id].gpus if node_id in self._nodes else ()
        return tuple(dict.fromkeys(job_id for gpu in gpus for job_id in self._holders.get(gpu.gpu_id, ())))

    def neighbours(self, job: JobRecord) -> tuple[str, ...]:
        """Return the other jobs on any GPU of a job."""
        found: dict[str, None] = {}
        for part in job.assignments:
            for other in self._holders.get(part.gpu_id, ()):
                found[other] = None
        found.pop(job.job_id, None)
        return tuple(found)

    @property
    def inventory(self) -> Inventory:
        """What the usable nodes have."""
        if self._inventory is None:
            self._inventory = count_gpus(self._usable_gpus.values())
        return self._inventory

    def ready_jobs(self) -> ReadyQueue:
        """Return the pending jobs that a policy may start now, in submission order; valid until the next change."""
        return ReadyQueue(self._ready, self._ready_jobs)

    # --- changes: the engine only -------------------------------------------------------------------------------

    def put_job(self, job: JobRecord) -> None:
        """Store a job and bring every index up to date; a job that becomes pending is ready unless held."""
        job_id, phase = job.job_id, job.phase
        before = self._jobs.get(job_id)
        self._jobs[job_id] = job
        if before is None and not job.has_ended:
            self._add_key_use(job)
        if before is None or before.phase is not phase:
            self._move_phase(job, before)
        elif phase is Phase.PENDING and job_id in self._ready_jobs:
            self._show(job)
        if phase in HOLDING_PHASES:
            self._running.put(job)
            self.touched_job_ids.add(job_id)
        if before is None or not has_same_occupancy(job, before):
            self._update_occupancy(job, before)

    def _move_phase(self, job: JobRecord, before: JobRecord | None) -> None:
        if before is not None:
            self._by_phase[before.phase].pop(job.job_id, None)
            if before.phase is Phase.PENDING:
                self._leave_queue(before)
        self._by_phase[job.phase][job.job_id] = None
        if job.phase is Phase.PENDING:
            self._pending_by_key.setdefault(job.request.key, {})[job.job_id] = None
            self._make_ready(job)
        if not job.holds_gpus:
            self._running.drop(job.job_id)
            self.touched_job_ids.discard(job.job_id)
        elif job.phase is Phase.STARTING:
            self._running.drop(job.job_id)  # a job that was moved is the newest again
        if job.has_ended:
            self._end_key_use(job, before)
            self.decisions.forget(job.job_id)
            self._forget_oldest()

    def _add_key_use(self, job: JobRecord) -> None:
        key = job.request.key
        if not key or not job.graph_sha256:
            return
        self._living_keys[key] = with_job(self._living_keys.get(key), job)

    def _end_key_use(self, job: JobRecord, before: JobRecord | None) -> None:
        use = self._living_keys.get(job.request.key)
        if use is None or before is None:
            return
        if use.jobs == 1:
            del self._living_keys[job.request.key]
        else:
            self._living_keys[job.request.key] = without_job(use)

    def _leave_queue(self, job: JobRecord) -> None:
        same_key = self._pending_by_key[job.request.key]
        del same_key[job.job_id]
        if not same_key:
            del self._pending_by_key[job.request.key]
        self._holds.pop(job.job_id, None)
        self._make_unready(job)

    def _show(self, job: JobRecord) -> None:
        self._ready_jobs[job.job_id] = shown = pending_view(job)
        if self.lengths is not None:
            self.lengths.put(shown)

    def _make_ready(self, job: JobRecord) -> None:
        if job.job_id not in self._ready_jobs:
            insort(self._ready, (job.submitted_at_ms, job.job_id))
        self._show(job)
        self.decisions.expect(job.job_id)

    def _make_unready(self, job: JobRecord) -> None:
        if self._ready_jobs.pop(job.job_id, None) is not None:
            del self._ready[bisect_left(self._ready, (job.submitted_at_ms, job.job_id))]
        if self.lengths is not None:
            self.lengths.remove(job.job_id)

    def set_hold(self, job_id: str, reason: Reason | None) -> None:
        """Hold a pending job back from the policy, or (None) show it again."""
        job = self._jobs[job_id]
        if reason is None:
            self._holds.pop(job_id, None)
            self._make_ready(job)
            return
        self._holds[job_id] = reason
        self._make_unready(job)
        self.decisions.record(Hold(job_id=job_id, reason=reason, until_ms=job.not_before_ms))

    def _forget_oldest(self) -> None:
        ended = sum(len(self._by_phase[phase]) for phase in ENDED_PHASES)
        if ended <= self.ended_jobs_max:
            return
        oldest = min(
            (next(iter(self._by_phase[phase])) for phase in sorted(ENDED_PHASES) if self._by_phase[phase]),
            key=lambda job_id: (self._jobs[job_id].finished_at_ms, job_id),
        )
        del self._by_phase[self._jobs[oldest].phase][oldest]
        del self._jobs[oldest]

    def _update_occupancy(self, job: JobRecord, before: JobRecord | None) -> None:
        held_before = before.occupied_bytes if before is not None else {}
        held_now = job.occupied_bytes
        if not held_before and not held_now:
            return
        for gpu_id in held_before:
            self._holders[gpu_id].remove(job.job_id)
        for gpu_id in held_now:
            insort(self._holders.setdefault(gpu_id, []), job.job_id, key=lambda job_id: self._jobs[job_id].fence)
        nodes = self._refresh_gpus(held_before | held_now)
        if job.request.cpu_cores or job.request.host_memory_bytes:
            self._refresh_hosts(nodes)

    def touch_running(self, key: str) -> None:
        """Note that something else is predicted of a key than before."""
        use = self._living_keys.get(key)
        if use is not None and use.jobs > len(self._pending_by_key.get(key, ())):
            self.touched_job_ids.update(name for name, job in self._running.items() if job.request.key == key)

    def put_abandoned(self, abandoned: AbandonedAttempt) -> None:
        """Remember an attempt that must end although nobody wants it any more."""
        self._abandoned_attempts[abandoned.job_id, abandoned.attempt, abandoned.fence] = abandoned
        self._refresh_gpus(abandoned.gpu_ids)

    def drop_abandoned(self, key: tuple[str, int, int]) -> bool:
        """Forget a ghost whose end was confirmed; False when there was none."""
        abandoned = self._abandoned_attempts.pop(key, None)
        if abandoned is None:
            return False
        self._refresh_gpus(abandoned.gpu_ids)
        return True

    def put_node(self, node: Node) -> None:
        """Store a node with its GPUs and bring the indexes up to date."""
        before = self._nodes.get(node.node_id)
        self._nodes[node.node_id] = node
        kept = {gpu.gpu_id for gpu in node.gpus}
        for gpu in before.gpus if before is not None else ():
            if gpu.gpu_id not in kept:
                del self._gpus[gpu.gpu_id]
                self._slowdown_ewma_ratios.pop(gpu.gpu_id, None)
        for gpu in node.gpus:
            self._devices[gpu.device] = min(gpu.memory_bytes, self._devices.get(gpu.device, gpu.memory_bytes))
            self._gpus[gpu.gpu_id] = GpuView(gpu=gpu, node_id=node.node_id)
        self._rebuild_usable()
        self._refresh_hosts(self._refresh_gpus(kept))

    def load_registers(self, *, living_keys: Mapping[str, KeyUse], devices: Mapping[str, int]) -> None:
        """Replace what was counted while loading by what was counted in life."""
        self._living_keys, self._devices = dict(living_keys), dict(devices)

    def put_slowdown_ewma(self, gpu_id: str, ratio: float) -> None:
        """Store the moving average of the slowdowns seen on a GPU."""
        self._slowdown_ewma_ratios[gpu_id] = ratio

    def _rebuild_usable(self) -> None:
        """Keep the order by node and index; nodes change rarely."""
        self.layout += 1
        self._inventory = None
        nodes = sorted(self._nodes.values(), key=lambda node: node.node_id)
        self._usable_nodes = {node.node_id: node for node in nodes if node.connected and node.schedulable}
        self._usable_gpus = {
            gpu.gpu_id: self._gpus[gpu.gpu_id]
            for node in self._usable_nodes.values()
            for gpu in sorted(node.gpus, key=lambda gpu: (gpu.index, gpu.gpu_id))
            if gpu.healthy
        }
        self._open.rebuild(self._usable_gpus.values())
        self.lengths = None

    def _refresh_gpus(self, gpu_ids: Collection[str]) -> Collection[str]:
        """Bring what GPUs hold up to date; return their nodes."""
        haunted = {gpu_id for abandoned in self._abandoned_attempts.values() for gpu_id in abandoned.gpu_ids}
        touched_nodes: dict[str, None] = {}
        self.touched_gpu_ids.update(gpu_ids)
        for gpu_id in gpu_ids:
            view = self._gpus.get(gpu_id)
            if view is None:
                continue
            self._gpus[gpu_id] = view = self._occupied(view, is_haunted=gpu_id in haunted)
            touched_nodes[view.node_id] = None
            if gpu_id in self._usable_gpus:
                self._usable_gpus[gpu_id] = view
                self._open.put(view)
                self.touched_job_ids.update(view.job_ids)
        return touched_nodes

    def _refresh_hosts(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            jobs = (self._jobs[job_id] for job_id in self.jobs_on_node(node_id))
            self._host_use[node_id] = host_use_of(jobs, self._nodes[node_id])

    def _occupied(self, view: GpuView, *, is_haunted: bool) -> GpuView:
        gpu_id = view.gpu.gpu_id
        jobs = [self._jobs[job_id] for job_id in self._holders.get(gpu_id, ())]
        return GpuView(
            gpu=view.gpu,
            node_id=view.node_id,
            job_ids=tuple(job.job_id for job in jobs),
            memory_reserved_bytes=sum(job.bytes_on(gpu_id) for job in jobs),
            is_releasing=is_haunted or any(job.phase is Phase.STOPPING for job in jobs),
        )
