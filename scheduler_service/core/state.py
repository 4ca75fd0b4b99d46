"""Everything the engine knows, with the indexes that keep it from scanning.

`ClusterState` is changed by the engine alone; all others read its mappings, which are read-only views of the live
dictionaries. Records are frozen: a change is a replacement, so that a reader never sees half of one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_facts import DeviceFacts
from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.cluster_view.inventory import newest_calibration
from scheduler_service.core.cluster_view.occupancy import Occupancy
from scheduler_service.core.cluster_view.progress_extrapolation import ReportedJobs
from scheduler_service.core.cluster_view.view import RunningJob
from scheduler_service.core.decisions import Hold
from scheduler_service.core.event_effects import PutOff
from scheduler_service.core.jobs.job_records import (
    HOLDING_PHASES,
    JobRecord,
    RejectedDecision,
    has_same_occupancy,
)
from scheduler_service.core.predictions.key_use import KeyUse, KeyUses
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.queue.queue_register import QueueRegister
from scheduler_service.core.queue.queue_terms import NO_TERMS
from scheduler_service.core.queue.ready_queue import WaitingJobs
from scheduler_service.core.queue.tenants import TenantUse
from scheduler_service.core.reasons.decision_log import DecisionLog
from scheduler_service.core.records import ENDED_PHASES, REPORT_INTERVAL_MS, Node, Phase, Reason

# A name of the module is found four times as fast as a member of its enum, on every fact.
_PENDING: Final = Phase.PENDING
_STARTING: Final = Phase.STARTING


class ClusterState:
    """Jobs, nodes, GPUs and predictions.

    Args:
        seed: Seed handed to policies in every view.
        ended_jobs_max: Ended jobs kept; the oldest leave first.

    Attributes:
        report_interval_ms: Between two reports of a node about what runs there.
        put_off: What is to be decided with the next fact; None = nothing.
        stands_at_ms: When the policy was asked last, or its answer was found to stand; None = a fact that it heeds has
            come since of which it was not asked.
        silence: Why the policy is not asked any more, until one is chosen; empty = it is.
        settled_at_ms: After a restore no waiting job starts before it: `IncarnationBegan`.
        jobs: Every living job and the newest ended ones, by id.
        keys: What living jobs of one key share; `living_keys` is its own.
        running: Jobs that hold GPUs, as policies see them, in start order.
        waiting: The pending jobs: ready, or held back.
        on_trial: Jobs that joined another one on trial, in the order of their launches.
        pauses: Jobs of which a pause was ordered or lasts, in the order of the orders.
        checkpointed_job_ids: Jobs that hold GPUs and have written a checkpoint that is believed.
        lost_ratios: The share of its steps per second that each job lost which holds GPUs and is slower than alone.
        running_by_class: Jobs that hold GPUs, by class and tenant.
        register: Which jobs wait for which, arrays, time limits.
        tenants: What tenants hold and have had.
        occupancy: Nodes and GPUs with what is on them; `nodes`, `gpus`, `usable_gpus` and `abandoned_attempts` are its
            own.
    """

    def __init__(self, *, seed: int = 0, ended_jobs_max: int = 10_000) -> None:
        self.now_ms = 0
        self.seed = seed
        self.report_interval_ms = REPORT_INTERVAL_MS
        self.next_fence = 1
        self.settled_at_ms = 0
        self.policy = ""
        self.parameters: Mapping[str, object] = {}
        self.silence = ""
        self.predictions = PredictionStore()
        self.keys = KeyUses(self.predictions.changes)
        self.living_keys = self.keys.living
        self.decided_at_ms = 0
        self.put_off: PutOff | None = None
        self.stands_at_ms: int | None = None
        self.rejected: deque[RejectedDecision] = deque(maxlen=1_000)
        self.ended_jobs_max = ended_jobs_max
        self._jobs: dict[str, JobRecord] = {}
        self.jobs: Mapping[str, JobRecord] = MappingProxyType(self._jobs)
        self._by_phase: dict[Phase, dict[str, None]] = {phase: {} for phase in Phase}
        self._running = ReportedJobs()
        self.running: Mapping[str, RunningJob] = self._running
        self.checkpointed_job_ids: AbstractSet[str] = self._running.checkpointed_job_ids
        self.lost_ratios: Mapping[str, float] = self._running.lost_ratios
        self.running_by_class: Mapping[tuple[int, str], AbstractSet[str]] = self._running.ids_by_class
        self.waiting = WaitingJobs()
        self.decisions = DecisionLog(self.waiting.lane_of, lambda job_id: self._jobs[job_id].request)
        self.holds = self.waiting.holds
        self.register, self.tenants = QueueRegister(), TenantUse()
        self.on_trial: dict[str, None] = {}
        self.occupancy = Occupancy(self._jobs)
        self.nodes, self.gpus = self.occupancy.nodes, self.occupancy.gpus
        self.usable_gpus, self.abandoned_attempts = self.occupancy.usable_gpus, self.occupancy.abandoned_attempts
        self._pauses: dict[str, None] = {}
        self.pauses: AbstractSet[str] = self._pauses.keys()
        self._devices: dict[str, int] = {}
        self._calibrations: dict[str, DeviceCalibration] = {}
        self._ways: dict[str, Counter[DeviceSharing]] = {}
        self._device_facts: dict[str, DeviceFacts] = {}

    @property
    def devices(self) -> Mapping[str, int]:
        """Smallest memory in bytes of every device type ever joined."""
        return MappingProxyType(self._devices)

    @property
    def gpus_free(self) -> int:
        """How many usable GPUs hold nothing and release nothing."""
        return len(self.occupancy.free_gpu_ids)

    @property
    def has_ready_jobs(self) -> bool:
        """Whether a job waits for a policy."""
        return len(self._by_phase[_PENDING]) > len(self.holds)

    def keep_back(self, gpu_ids: Iterable[str]) -> None:
        """Let no job start on these GPUs until others are named; for one decision."""
        self.occupancy.keep_back(gpu_ids)

    def without_jobs(self, gpu_ids: Iterable[str]) -> Sequence[str]:
        """Return those among some GPUs that are usable and that no job holds."""
        return [gpu_id for gpu_id in gpu_ids if gpu_id in self.usable_gpus and not self.usable_gpus[gpu_id].job_ids]

    @property
    def calibrations(self) -> Mapping[str, DeviceCalibration]:
        """What was measured of a device by its type; handed on with every question about the type."""
        return MappingProxyType(self._calibrations)

    @property
    def device_facts(self) -> Mapping[str, DeviceFacts]:
        """What a driver says of a device by its type; handed on likewise."""
        return MappingProxyType(self._device_facts)

    def in_phase(self, phase: Phase) -> AbstractSet[str]:
        """Return the ids of the jobs in a phase, in the order in which they entered it."""
        return self._by_phase[phase].keys()

    # --- changes: the engine only -------------------------------------------------------------------------------

    def put_job(self, job: JobRecord) -> None:
        """Store a job and bring every index up to date; a job that becomes pending is ready unless held."""
        job_id, phase = job.request.job_id, job.phase
        before = self._jobs.get(job_id)
        self._jobs[job_id] = job
        if before is None and not job.has_ended:
            self.keys.add(job)
        if job.request.terms is not NO_TERMS:
            self.register.note(job, before)
        if before is None or before.phase is not phase:
            self._move_phase(job, before)
        elif phase is _PENDING:
            self.waiting.change(job)
        if phase in HOLDING_PHASES:
            self._running.put(job)
            self.occupancy.touched_job_ids.add(job_id)
        if job.pause is not None or job.trial is not None or self._pauses or self.on_trial:
            self._note_pause_and_trial(job)
        if before is None or not has_same_occupancy(job, before):
            self.occupancy.update(job, before)
            if self.tenants.rules is not None:
                self._count_gpus(job, before)

    def _note_pause_and_trial(self, job: JobRecord) -> None:
        if job.pause is not None:
            self._pauses[job.job_id] = None
        elif self._pauses:
            self._pauses.pop(job.job_id, None)
        if job.trial is not None and job.trial.is_incoming:
            self.on_trial[job.job_id] = None
        elif self.on_trial:
            self.on_trial.pop(job.job_id, None)

    def _count_gpus(self, job: JobRecord, before: JobRecord | None) -> None:
        more = job.held_gpus - (before.held_gpus if before is not None else 0)
        if more:
            self.tenants.change(job.request.tenant, more, self.now_ms)

    def _move_phase(self, job: JobRecord, before: JobRecord | None) -> None:
        job_id = job.request.job_id
        if before is not None:
            self._by_phase[before.phase].pop(job_id, None)
            if before.phase is _PENDING:
                self.waiting.remove(before)
        self._by_phase[job.phase][job_id] = None
        if job.phase is _PENDING:
            self.waiting.add(job)
            self.decisions.expect(job_id)
        if job.phase not in HOLDING_PHASES:
            self._running.drop(job_id)
            if before is not None and before.phase in HOLDING_PHASES:
                self.occupancy.touch_left(job_id, self._running.keys())
        elif job.phase is _STARTING:
            self._running.drop(job_id)  # a job that was moved is the newest again
        if job.phase in ENDED_PHASES:
            if before is not None:
                self.keys.end(job.request.key)
            self.decisions.forget(job_id)
            self._forget_oldest()

    def set_hold(self, job_id: str, reason: Reason | None) -> None:
        """Hold a pending job back from the policy, or (None) show it again."""
        job = self._jobs[job_id]
        self.waiting.set_hold(job, reason)
        if reason is None:
            self.decisions.expect(job_id)
            return
        self.decisions.record(Hold(job_id=job_id, reason=reason, until_ms=job.times.not_before_ms))

    def _forget_oldest(self) -> None:
        by_phase = self._by_phase
        ended = [job_ids for phase in ENDED_PHASES if (job_ids := by_phase[phase])]
        if sum(map(len, ended)) <= self.ended_jobs_max:
            return
        oldest = min(
            [next(iter(job_ids)) for job_ids in ended],
            key=lambda job_id: (self._jobs[job_id].times.finished_at_ms, job_id),
        )
        del self._by_phase[self._jobs[oldest].phase][oldest]
        self.register.forget(self._jobs.pop(oldest))

    def touch_running(self, key: str) -> None:
        """Note that something else is predicted of a key than before, for its running jobs."""
        use = self.living_keys.get(key)
        if use is not None and use.jobs > len(self.waiting.with_key(key)):
            self.occupancy.touched_job_ids.update(name for name, job in self._running.items() if job.request.key == key)

    def touch_jobs_of(self, key: str) -> None:
        """Note that other step times are known of a key than before: its jobs are shorter or longer."""
        self.touch_running(key)
        for job_id in self.waiting.with_key(key):
            self.waiting.change(self._jobs[job_id])

    def put_node(self, node: Node) -> None:
        """Store a node with its GPUs and bring the indexes up to date."""
        for gpu in node.gpus:
            self._devices[gpu.device] = min(gpu.memory_bytes, self._devices.get(gpu.device, gpu.memory_bytes))
            if gpu.facts is not None:
                self._device_facts.setdefault(gpu.device, gpu.facts)
        before = self.nodes.get(node.node_id)
        self.occupancy.put_node(node)
        self._recall_calibrations(node, before)
        self._recall_sharing(node, before)
        self.waiting.forget_lengths()

    def drop_node(self, node_id: str) -> None:
        """Forget a node with its GPUs; no job may hold one."""
        before = self.nodes[node_id]
        self.occupancy.drop_node(node_id)
        self._recall_calibrations(before, None)
        self._recall_sharing(None, before)
        self.waiting.forget_lengths()

    def _recall_calibrations(self, node: Node, before: Node | None) -> None:
        gpus = (*node.gpus, *(before.gpus if before is not None else ()))
        for device in sorted({gpu.device for gpu in gpus if gpu.calibration is not None}):
            newest = newest_calibration(self.nodes.values(), device)
            if newest is None:
                self._calibrations.pop(device, None)
            else:
                self._calibrations[device] = newest

    def _recall_sharing(self, node: Node | None, before: Node | None) -> None:
        """Count how GPUs are shared; what not all GPUs of a type say alike is asked about for each way."""
        gone, come = (one.gpus if one is not None else () for one in (before, node))
        for gpu in come:
            self._ways.setdefault(gpu.device, Counter())[gpu.sharing] += 1
        for gpu in gone:
            self._ways[gpu.device][gpu.sharing] -= 1
        for device in dict.fromkeys(gpu.device for gpu in (*gone, *come)):
            self.predictions.share(device, *(way for way, gpus in self._ways[device].items() if gpus > 0))

    def load_registers(self, *, living_keys: Mapping[str, KeyUse], devices: Mapping[str, int]) -> None:
        """Replace what was counted while loading by what was counted in life."""
        self.keys.load(living_keys)
        self._devices = dict(devices)
