"""What a policy sees: one frozen instant of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.cluster_view.interference_curves import InterferenceCurve
from scheduler_service.core.cluster_view.inventory import Inventory
from scheduler_service.core.copied_record import CopiedRecord, quick_record, slotted_record
from scheduler_service.core.decisions import Decision
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge
from scheduler_service.core.records import (
    REPORT_INTERVAL_MS,
    Assignment,
    Gpu,
    JobPause,
    JobPrediction,
    JobRequest,
    Node,
    PairPrediction,
)

if TYPE_CHECKING:
    from scheduler_service.core.change_log import ChangeLog
    from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays
    from scheduler_service.core.cluster_view.open_gpus import FreePlaces
    from scheduler_service.core.cluster_view.remaining_time_queue import RemainingTimeQueue, ServiceQueue
    from scheduler_service.core.cluster_view.remaining_times import RemainingTimes, ServiceTimes
    from scheduler_service.core.cluster_view.service_measures import KeptServiceMeasures, ServiceRules


@slotted_record
class PendingJob:
    """A job that waits."""

    request: JobRequest
    submitted_at_ms: int
    not_before_ms: int = 0
    steps_done: int = 0
    attained_gpu_ms: int = 0
    preemptions: int = 0
    trials: int = 0


@quick_record
class RunningJob(CopiedRecord):
    """A job that holds GPUs (starting, running or stopping).

    Attributes:
        step_ms: Mean step time of the newest window; 0 = not yet.
        solo_step_ms: Mean step time measured alone; 0 = not yet.
        moving_to: Where it goes on once it has stopped; empty = it leaves, or stays.
        neighbours_since_ms: When the set of its co-located jobs last changed.
        accrued_at_ms: Until when `steps_done` and `attained_gpu_ms` are counted.
        is_on_trial: It shares its GPU on trial, as the incoming job or as the one that was there.
        has_checkpoint: It has written one that is believed.
        pause: The pause that was ordered, or that lasts; None = there is none.
        move_ms: What a move was measured to cost it, or else others of its key; 0 = never measured.
        memory_surge: What of its memory it needs now and then; None = it holds all of it.
        lent_ms: How long it stood still in sum so that other jobs could be measured on its GPU.
        lent_pauses: How often it did so.
        is_trying_servers: It has its number of parameter servers only to be measured with it.
    """

    request: JobRequest
    attempt: int
    assignments: tuple[Assignment, ...]
    micro_batch_size: int
    accumulation_steps: int = 1
    submitted_at_ms: int
    started_at_ms: int
    steps_done: int = 0
    attained_gpu_ms: int = 0
    preemptions: int = 0
    observed_slowdown_ratio: float | None = None
    is_stopping: bool = False
    memory_reserved_bytes: int = 0
    step_ms: float = 0.0
    solo_step_ms: float = 0.0
    moving_to: tuple[Assignment, ...] = ()
    neighbours_since_ms: int = 0
    accrued_at_ms: int = 0
    is_on_trial: bool = False
    has_checkpoint: bool = False
    pause: JobPause | None = None
    move_ms: int = 0
    memory_surge: MemorySurge | None = None
    lent_ms: int = 0
    lent_pauses: int = 0
    is_trying_servers: bool = False

    @property
    def is_paused(self) -> bool:
        """It stands still at this instant, as its node has confirmed."""
        return self.pause is not None and self.pause.paused_at_ms > 0


@slotted_record
class GpuView:
    """A GPU with what it holds.

    Attributes:
        memory_reserved_bytes: Of all jobs there; of surges that take turns only the largest.
        is_releasing: Closed to others: a job there is stopped or paused, or will come.
        memory_surge_bytes: That largest surge.
    """

    gpu: Gpu
    node_id: str
    job_ids: tuple[str, ...] = ()
    memory_reserved_bytes: int = 0
    is_releasing: bool = False
    memory_surge_bytes: int = 0


@slotted_record
class HostUse:
    """What the jobs on a node occupy of its host."""

    cpu_cores: float = 0.0
    host_memory_bytes: int = 0


class Predictions(Protocol):
    """What is predicted, by key; never a call to anything outside."""

    @property
    def measured_alone(self) -> AbstractSet[tuple[str, str]]:
        """Keys and device types of which some job was measured alone on one GPU; in no order."""

    @property
    def sharing(self) -> Mapping[str, DeviceSharing]:
        """How devices are shared, by type, as far as that is said."""

    @property
    def ways_counts(self) -> Mapping[str, int]:
        """In how many ways GPUs of one type are shared, where it is more than one."""

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Return the prediction of a key on a device type, or None."""

    def pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        micro_batch_size: int = 0,
        other_micro_batch_size: int = 0,
    ) -> PairPrediction | None:
        """Return how much `other_key` slows `victim_key` down at these micro-batches (0 = any), or None."""


class ClusterIndex(Protocol):
    """What follows from the records of a view, found when it is first read, at no cost until then.

    The engine keeps it from event to event (`cluster_index.KeptIndex`); for a view made by hand it is found in the
    records (`cluster_index.FreshIndex`). It is read, never changed; what a round changes it copies first.
    """

    def of(self, view: SchedulingView) -> ClusterIndex:
        """Return the same index for a view, which asks for it when it is made."""

    @property
    def free_gpu_ids(self) -> AbstractSet[str]:
        """GPUs of the view that hold nothing and release nothing; in no order."""

    @property
    def single_job_gpu_ids(self) -> AbstractSet[str]:
        """GPUs of the view that hold one job and release nothing; in no order."""

    @property
    def free_places(self) -> FreePlaces:
        """The free GPUs by kind and node."""

    @property
    def inventory(self) -> Inventory:
        """What the GPUs are, counted by kind."""

    @property
    def pending_by_id(self) -> Mapping[str, PendingJob]:
        """The pending jobs by id."""

    @property
    def reported(self) -> Mapping[str, RunningJob]:
        """The running jobs as last reported: cheaper, and equal in all that time does not change."""

    @property
    def checkpointed_job_ids(self) -> AbstractSet[str]:
        """The running jobs that have written a checkpoint that is believed; in no order."""

    @property
    def lost_ratios(self) -> Mapping[str, float]:
        """What running jobs lost of their steps per second alone, where measured to be slower; in no order."""

    @property
    def arrays(self) -> GpuArrays:
        """The GPUs as arrays; a round works on `for_one_round` of them."""

    @property
    def counted_arrays(self) -> GpuArrays:
        """The same for readers of neither class nor host: at a tenth of the cost."""

    @property
    def remaining_times(self) -> RemainingTimes:
        """How long the one job on each GPU still runs, at the positions of `arrays`."""

    @property
    def service_times(self) -> ServiceTimes:
        """What the one job on each GPU has had, at the positions of `arrays`; read, never changed."""

    def service_measures(self, rules: ServiceRules) -> KeptServiceMeasures | None:
        """Return where running jobs stand by their service; None = that is not kept, and is to be found."""

    def by_service(self, limits_gpu_ms: Sequence[float] = ()) -> ServiceQueue | None:
        """Return the pending jobs by the GPU time that they have had; None = as of `lengths`.

        Args:
            limits_gpu_ms: GPU time at which a job leaves each level but the last; none = in the order of submission.
        """

    @property
    def lengths(self) -> RemainingTimeQueue | None:
        """The pending jobs by remaining time; None = they are not kept so, and each is to be looked at."""

    @property
    def prediction_changes(self) -> ChangeLog:
        """What changed in the predictions while the arrays were kept."""

    @property
    def kept_answers(self) -> dict[object, object]:
        """What policies worked out from predictions, each under a name of its own, until `prediction_changes` say else.

        A policy that keeps something here bounds it.
        """

    @property
    def turn_memo(self) -> dict[object, object]:
        """What a turn of a decision has found, and a later one, about other jobs, need not find again."""


@quick_record
class SchedulingView:
    """One instant of the cluster, and one index of it.

    Attributes:
        nodes: Connected and schedulable nodes by id.
        gpus: Healthy GPUs of these nodes by id, in node and index order.
        pending: The jobs that may start now, in submission order.
        running: By job id, in start order.
        explain: Candidate tables are wanted.
        explained_job_id: Of this job alone; empty = of every job.
        unpredictable_keys: Why a key has no prediction: the code of the failure (such jobs run exclusively).
        host_use: What jobs occupy of each node's host, by node id; absent = nothing.
        slowdown_ewma_ratios: Moving average of the slowdowns measured on each GPU, by GPU id; absent = 0.
        nodes_per_job_max: Nodes that one job may span; 0 = no limit.
        deferred: Pending jobs whose `not_before_ms` has not come; no policy decides about them.
        can_move: Running jobs may be migrated and reshaped here.
        protected_job_ids: Running jobs that make no room for those that wait now: of a higher class, or another tenant.
        report_interval_ms: Between two reports of a node about what runs there.
        opportunistic_tau_ratio: How often peaks of memory on one GPU may coincide; 0 = every job holds its reservation
            always.
        kept_gpu_ids: GPUs that are kept back for a job of another lane; they look as if they released something.
        interference_curves: Of the device types on which pairs were measured: slowdown over summed utilization.
        index: What follows from all this.
    """

    now_ms: int
    nodes: Mapping[str, Node]
    gpus: Mapping[str, GpuView]
    pending: Sequence[PendingJob]
    running: Mapping[str, RunningJob]
    predictions: Predictions
    seed: int = 0
    explain: bool = False
    explained_job_id: str = ""
    unpredictable_keys: Mapping[str, str] = field(default_factory=dict)
    host_use: Mapping[str, HostUse] = field(default_factory=dict)
    slowdown_ewma_ratios: Mapping[str, float] = field(default_factory=dict)
    nodes_per_job_max: int = 0
    deferred: Sequence[PendingJob] = ()
    can_move: bool = True
    protected_job_ids: AbstractSet[str] = frozenset()
    kept_gpu_ids: AbstractSet[str] = frozenset()
    interference_curves: Mapping[str, InterferenceCurve] = field(default_factory=dict)
    report_interval_ms: int = REPORT_INTERVAL_MS
    opportunistic_tau_ratio: float = 0.0
    index: ClusterIndex

    def __post_init__(self) -> None:
        """Have the index of this very view."""
        object.__setattr__(self, "index", self.index.of(self))

    def wants_table(self, job_id: str) -> bool:
        """Say whether the candidate table of a job is wanted; each costs a look at every GPU."""
        return self.explain and self.explained_job_id in ("", job_id)


class Policy(Protocol):
    """Decides; a frozen dataclass of its parameters that remembers nothing.

    A policy whose mind may change without any fact, as time goes by, has the parameter `interval_ms` and is then asked
    at every multiple of it while jobs wait or run. It may have `next_look_ms(view) -> int | None` besides: the first
    instant at which time alone may change its last answer, None = no such instant. Then it is asked at the next
    multiple after every fact, and after that not before that instant. By `heeds_report(lost_ratio=...) -> bool` it may
    say, too, whether the report of a running job that has lost this share of its steps per second is a fact to it; one
    by which a prediction changes always is.

    One whose answer stands once it is carried out, until another fact or that instant, says so by a class variable
    `settles`, which is true. It is asked upon a fact, or at the next multiple after it, and not once more; of reports
    that it does not heed it is asked after those alone that change a prediction while a job waits, a measured average
    by 1 % or more. Where that depends on the cluster it says so by a method `settles(view) -> bool` instead: at the
    next multiple after a fact it is asked that, and not to decide if its answer stands.

    One that leaves running jobs alone while no job waits says so by a class variable `decides_only_waiting`, which is
    true, and is not asked then.
    """

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return exactly one decision per pending job, further ones for running jobs, in execution order."""
