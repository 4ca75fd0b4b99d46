"""The one index of a view: kept by the engine from event to event, or found in the records of a view made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from weakref import ref

from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.cluster_view.empty_cluster import EmptyCluster
from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, build_arrays, load_of
from scheduler_service.core.cluster_view.inventory import Inventory, count_gpus, kind_of
from scheduler_service.core.cluster_view.kept_times import KeptTimes
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.open_gpus import FreePlaces, OpenGpus
from scheduler_service.core.cluster_view.progress_extrapolation import lost_ratio
from scheduler_service.core.cluster_view.remaining_time_queue import RemainingTimeQueue, ServiceQueue
from scheduler_service.core.cluster_view.remaining_times import (
    KeptRemainingTimes,
    RemainingTimes,
    ServiceTimes,
    build_remaining_times,
)
from scheduler_service.core.cluster_view.service_measures import KeptServiceMeasures, ServiceRules
from scheduler_service.core.cluster_view.view import GpuView, HostUse, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.state import ClusterState

UNUSED_CLASSES_MAX = 10_000
"""Classes beyond the number of GPUs after which everything is built anew, since classes are never forgotten."""


IDS_PER_JOB_MAX = 2
UNREAD_JOBS_MAX = 1_000
"""Of more touched jobs than these, and so many for each that runs, those that run no more are not named any more."""


class FreshIndex:
    """Finds everything in the records of one view.

    Args:
        view: None = of no view yet: `FreshIndex()` is what a view is made with. It has its index, not the index it: in
            a ring both would stay until a collection, with all that thousands of GPUs hold.
        empty: The cluster without what it holds, which views on it have in common; None = each finds it itself.
    """

    lengths = None

    def __init__(self, view: SchedulingView | None = None, empty: EmptyCluster | None = None) -> None:
        self._known_view, self._empty = None if view is None else ref(view), empty

    def of(self, view: SchedulingView) -> FreshIndex:
        """Return the index of a view."""
        return FreshIndex(view, self._empty)

    @property
    def _view(self) -> SchedulingView:
        view = None if self._known_view is None else self._known_view()
        if view is None:
            raise ValueError("an index is read through its view: view.index")
        return view

    @cached_property
    def _known_empty(self) -> EmptyCluster | None:
        """The cluster without what it holds, where that is known and the view is of all of it."""
        return self._empty if self._empty is not None and self._empty.is_of(self._view) else None

    @cached_property
    def _occupied(self) -> Sequence[GpuView]:
        """The GPUs that are not as they are when they hold nothing, where that cluster is known."""
        return () if self._known_empty is None else self._known_empty.occupied_in(self._view)

    @cached_property
    def _open(self) -> OpenGpus:
        found = OpenGpus()
        found.rebuild(self._view.gpus.values())
        return found

    @cached_property
    def free_gpu_ids(self) -> AbstractSet[str]:
        """GPUs that hold nothing and release nothing; where they lie costs five times as much to find."""
        gpus = self._view.gpus
        # Of a known cluster only the GPUs that hold something need a look.
        looked_at = gpus.values() if self._known_empty is None else self._occupied
        taken = {one.gpu.gpu_id for one in looked_at if one.job_ids or one.is_releasing}
        return dict.fromkeys([name for name in gpus if name not in taken]).keys()

    @cached_property
    def single_job_gpu_ids(self) -> AbstractSet[str]:
        """GPUs that hold one job and release nothing."""
        gpus = self._view.gpus.items()
        return dict.fromkeys([name for name, one in gpus if len(one.job_ids) == 1 and not one.is_releasing]).keys()

    @property
    def free_places(self) -> FreePlaces:
        """The free GPUs by kind and node."""
        return self._open.free_places

    @cached_property
    def inventory(self) -> Inventory:
        """What the GPUs are."""
        return count_gpus(self._view.gpus.values()) if self._known_empty is None else self._known_empty.inventory

    @cached_property
    def pending_by_id(self) -> Mapping[str, PendingJob]:
        """The pending jobs by id."""
        return {job.request.job_id: job for job in self._view.pending}

    @property
    def reported(self) -> Mapping[str, RunningJob]:
        """The running jobs."""
        return self._view.running

    @cached_property
    def checkpointed_job_ids(self) -> AbstractSet[str]:
        """The running jobs that have written a checkpoint."""
        return {job_id for job_id, job in self._view.running.items() if job.has_checkpoint}

    @cached_property
    def lost_ratios(self) -> Mapping[str, float]:
        """What the running jobs that were measured to be slower than alone lost of their steps per second."""
        running = self._view.running.items()
        return {job_id: lost_ratio(job) for job_id, job in running if 0 < job.solo_step_ms < job.step_ms}

    @cached_property
    def arrays(self) -> GpuArrays:
        """The GPUs as arrays."""
        if self._known_empty is None:
            return build_arrays(self._view)
        arrays = self._known_empty.arrays.for_one_view()
        arrays.put_loads(self._view, self._occupied)
        arrays.put_hosts(self._view)
        return arrays

    @property
    def counted_arrays(self) -> GpuArrays:
        """The same."""
        return self.arrays

    @cached_property
    def _times(self) -> KeptRemainingTimes:
        return build_remaining_times(self._view, self.arrays.position_of)

    @property
    def remaining_times(self) -> RemainingTimes:
        """How long the one job on each GPU still runs."""
        return self._times.at(self._view.now_ms)

    @property
    def service_times(self) -> ServiceTimes:
        """What the one job on each GPU has had."""
        return self._times.services_at(self._view.now_ms)

    def service_measures(self, rules: ServiceRules) -> KeptServiceMeasures | None:
        """Nothing: one instant is found in columns."""
        return None

    def by_service(self, limits_gpu_ms: Sequence[float] = ()) -> ServiceQueue | None:
        """Nothing: building it costs as much as a look at each job."""
        return None

    @cached_property
    def prediction_changes(self) -> ChangeLog:
        """Nothing: a view is one instant."""
        return ChangeLog()

    @cached_property
    def kept_answers(self) -> dict[object, object]:
        """Of this view alone."""
        return {}

    @cached_property
    def turn_memo(self) -> dict[object, object]:
        """Of this view alone."""
        return {}


class KeptIndex:
    """The index of the present instant of a state, for its engine's views.

    Args:
        state: Says what events have touched since the last reading.

    Attributes:
        free_gpu_ids: Usable GPUs that hold nothing and release nothing.
        single_job_gpu_ids: Usable GPUs that hold exactly one job and release nothing.
        free_places: The free GPUs by kind and node.
        reported: The running jobs as their newest reports show them.
        checkpointed_job_ids: The running jobs that have written a checkpoint.
        lost_ratios: What the running jobs that were measured to be slower than alone lost of their steps per second.
        prediction_changes: What changed in the predictions.
        kept_answers: Kept from decision to decision.
        turn_memo: Emptied by the engine before every decision.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        occupancy = state.occupancy
        self.free_gpu_ids, self.single_job_gpu_ids = occupancy.free_gpu_ids, occupancy.single_job_gpu_ids
        self.free_places, self.reported = occupancy.free_places, state.running
        self.checkpointed_job_ids, self.lost_ratios = state.checkpointed_job_ids, state.lost_ratios
        self.prediction_changes = state.predictions.changes
        self._arrays = KeptArrays(state)
        self._times = KeptTimes(state)
        self._view: SchedulingView | None = None
        self._measures: KeptServiceMeasures | None = None
        self.kept_answers: dict[object, object] = {}
        self.turn_memo: dict[object, object] = {}

    def of(self, view: SchedulingView) -> KeptIndex:
        """Return itself for the newest view; one that was made before it is read no more."""
        self._view = view
        return self

    @property
    def inventory(self) -> Inventory:
        """What the usable nodes have."""
        return self._state.occupancy.inventory

    @property
    def pending_by_id(self) -> Mapping[str, PendingJob]:
        """The jobs that a policy may start now, by id."""
        return self._state.waiting.ready_jobs().by_id

    @property
    def arrays(self) -> GpuArrays:
        """The GPUs as arrays, brought up to date."""
        return self._arrays.read(self._present)

    @property
    def counted_arrays(self) -> GpuArrays:
        """The GPUs as arrays, of which only the counts of jobs were brought up to date."""
        return self._arrays.count(self._present)

    @property
    def remaining_times(self) -> RemainingTimes:
        """How long the one job on each GPU still runs, brought up to date."""
        return self._read_times().at(self._present.now_ms)

    @property
    def service_times(self) -> ServiceTimes:
        """What the one job on each GPU has had, brought up to date."""
        return self._read_times().services_at(self._present.now_ms)

    def service_measures(self, rules: ServiceRules) -> KeptServiceMeasures | None:
        """Return where running jobs stand by their service now; kept for the newest rules."""
        arrays, measures = self.counted_arrays, self._hand_on_touched()
        if measures is None or not measures.is_of(rules, arrays):
            self._measures = measures = KeptServiceMeasures(rules, self._state, arrays)
        measures.advance(self._present.now_ms)
        return measures

    def by_service(self, limits_gpu_ms: Sequence[float] = ()) -> ServiceQueue | None:
        """Return the ready jobs by the GPU time that they have had."""
        return self._state.waiting.read_services(tuple(limits_gpu_ms))

    @property
    def lengths(self) -> RemainingTimeQueue:
        """The ready jobs by remaining time."""
        return self._state.waiting.read_lengths((device for device, *_ in self.inventory.gpus), self._state.predictions)

    def _read_times(self) -> KeptRemainingTimes:
        self._hand_on_touched()
        return self._times.read(self._present, self.counted_arrays)

    def _hand_on_touched(self) -> KeptServiceMeasures | None:
        """Tell all that is kept of running jobs which of them events have touched; return the measures, if any are."""
        state, measures = self._state, self._measures
        touched = state.occupancy.touched_job_ids
        if not touched:
            return measures
        most = UNREAD_JOBS_MAX + IDS_PER_JOB_MAX * len(state.running)
        for unread in (self._times.touched, measures.touched) if measures is not None else (self._times.touched,):
            unread.update(touched)
            if len(unread) > most:
                unread.intersection_update(state.running)
        touched.clear()
        return measures

    @property
    def _present(self) -> SchedulingView:
        if self._view is None:
            raise ValueError("an index is read through its view: view.index")
        return self._view


class KeptArrays:
    """The arrays of one state, built when they are first read.

    Args:
        state: Notes the GPUs that events touch, and every change of nodes.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._layout = -1
        self._arrays: GpuArrays | None = None
        self._unclassed: set[str] = set()

    def read(self, view: SchedulingView) -> GpuArrays:
        """Return the arrays as of a view of the state."""
        arrays = self.count(view)
        if self._unclassed:
            self._classify(view, arrays)
        return arrays

    def count(self, view: SchedulingView) -> GpuArrays:
        """Return the arrays of which `jobs_on` is as of a view; to find the classes costs ten times as much."""
        arrays, occupancy = self._arrays, self._state.occupancy
        if arrays is not None and self._layout == occupancy.layout and not occupancy.touched_gpu_ids:
            return arrays  # as it was read a moment ago, in the same decision
        has_stale_classes = arrays is not None and len(arrays.classes) > len(arrays.gpu_ids) + UNUSED_CLASSES_MAX
        if arrays is None or has_stale_classes or self._layout != occupancy.layout:
            self._layout = occupancy.layout
            arrays = self._arrays = build_arrays(view)
            self._unclassed.clear()
        else:
            gpus = view.gpus
            touched = {gpu_id: gpus[gpu_id] for gpu_id in occupancy.touched_gpu_ids if gpu_id in gpus}
            arrays.put_counts(touched)
            self._unclassed.update(touched)
        occupancy.touched_gpu_ids.clear()
        return arrays

    def _classify(self, view: SchedulingView, arrays: GpuArrays) -> None:
        ledger, node_ids, numbers = Ledger(view), set[str](), dict[object, int]()
        for gpu_id in sorted(self._unclassed):
            entry = view.gpus[gpu_id]
            # The GPUs of a wide job hold the same jobs.
            kind = *kind_of(entry.gpu), entry.gpu.sharing
            alike = kind, entry.job_ids, entry.memory_reserved_bytes, entry.is_releasing
            number = numbers.get(alike)
            if number is None:
                number = numbers[alike] = arrays.number_of_class(load_of(entry, ledger.residents(gpu_id)))
            arrays.put_class(gpu_id, number)
            node_ids.add(entry.node_id)
        for node_id in node_ids:
            arrays.put_host(view.nodes[node_id], view.host_use.get(node_id) or HostUse())
        self._unclassed.clear()
