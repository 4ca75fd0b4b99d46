"""Where SJF with sharing places a job: on free GPUs; where they do not suffice, on GPUs that hold exactly one job.

Source:
    The SJF-BSBF paper, Algorithm 1 lines 4-22. Lines 16-18 never add the free GPUs that line 11 counts; here they are
    used last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain

from scheduler_service.core.cluster_view.capacity import resident_on, samples_per_gpu
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Candidate, Start
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.pairing.gangs import Gang, GangSearch, candidate_table, start_gang
from scheduler_service.policies.pairing.occupied_gpu import JOBS_PER_GPU_MAX
from scheduler_service.policies.pairing.offers import Offer, Offers, SharingRule
from scheduler_service.policies.pairing.pair_arrays import PairArrays, Shortlist
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound
from scheduler_service.policies.placement.reasons import nearest_obstacle

GPUS_IN_ARRAYS_MIN = 64
"""With fewer GPUs that have a place, looking at each costs less than building arrays."""


class OpenPlaces:
    """The GPUs that are free or hold one job that stays; a round fills them.

    Args:
        ledger: The cluster with what this round has given away.

    Attributes:
        count: How many there are.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._view = ledger, ledger.view
        self._before = self._view.index.free_gpu_ids, self._view.index.single_job_gpu_ids
        self._filled: set[str] = set()
        self.count = sum(map(len, self._before))

    def gpu_ids(self) -> Iterator[str]:
        """Yield them."""
        return (gpu_id for gpu_id in chain(*self._before) if gpu_id not in self._filled)

    def is_open(self, gpu_id: str) -> bool:
        """Return whether a GPU has a place."""
        is_leaving = self._view.gpus[gpu_id].is_releasing
        return not is_leaving and self._ledger.job_count(gpu_id) < JOBS_PER_GPU_MAX

    def note(self, gpu_ids: Iterable[str]) -> None:
        """Note that a job has come to these."""
        filled = [gpu_id for gpu_id in gpu_ids if not self.is_open(gpu_id)]
        self._filled.update(filled)
        self.count -= len(filled)

    def widest(self) -> int:
        """Return on how many of them one job could be at most."""
        if self._view.nodes_per_job_max != 1:
            return self.count
        on_node = Counter(self._view.gpus[gpu_id].node_id for gpu_id in self.gpu_ids())
        return max(on_node.values(), default=0)


def none_passed_over() -> int:
    """Return that every job was looked at."""
    return 0


class WeighingLimit:
    """How many different jobs may be weighed in vain before a round only fills free GPUs.

    Args:
        jobs_max: So many.

    Attributes:
        is_reached: No further job is weighed.
    """

    def __init__(self, jobs_max: int) -> None:
        self._jobs_max = jobs_max
        self._weighed: set[object] = set()
        self.is_reached = False
        self.passed_over: Callable[[], int] = none_passed_over
        """Counts those that would have been weighed in vain before the present job, but were not looked at."""

    @cached_property
    def reason(self) -> Reason:
        """Why those wait that are not weighed."""
        return Reason(code="TOO_MANY_WEIGHED", numbers={"jobs_weighed_max": self._jobs_max})

    def has_weighed(self, key: object) -> bool:
        """Return whether such a job counts among those that were weighed in vain."""
        return key in self._weighed

    def count(self, key: object) -> Reason | None:
        """Count a job as weighed in vain, or return that there are too many."""
        if not self.is_reached and key not in self._weighed:
            self.is_reached = len(self._weighed) + self.passed_over() >= self._jobs_max
        if self.is_reached:
            return self.reason
        self._weighed.add(key)
        return None

    def forget(self, key: object) -> None:
        """A job was not weighed in vain: it starts."""
        self._weighed.discard(key)


class SjfSharing:
    """What earlier jobs took is gone for later ones, and they may be shared in their turn.

    Args:
        view: The cluster.
        rule: Decides about second places.
        weighed_jobs_max: Different jobs that may fail to share with running ones before the rest of the queue waits.

    Attributes:
        free: Starts jobs alone.
        places: The GPUs with a place.
        limit: On jobs that are weighed in vain.
    """

    def __init__(self, view: SchedulingView, rule: SharingRule, *, weighed_jobs_max: int) -> None:
        self.free = ExclusiveRound(view)
        self._ledger = ledger = self.free.ledger
        self._view, self._rule = view, rule
        self.places, self.limit = OpenPlaces(ledger), WeighingLimit(weighed_jobs_max)
        self._offers, self._gangs = Offers(ledger, rule), GangSearch(ledger)
        self._started: list[tuple[PendingJob, Start]] = []

    @property
    def pairs(self) -> PairArrays:
        """The GPUs with one job as arrays, built when they are first read."""
        pairs = self._offers.pairs
        if pairs is None:
            pairs = self._offers.pairs = PairArrays(self._view)
            for before, start in self._started:
                self._note_in_arrays(pairs, before, start)
        return pairs

    @property
    def is_large(self) -> bool:
        """There are many GPUs to look at."""
        return self.places.count >= GPUS_IN_ARRAYS_MIN

    def key(self, job: PendingJob) -> object:
        """Return the shape of a job, and its length where that matters."""
        return shape_of(job.request), self._rule.length(job)

    def closed(self) -> Reason | None:
        """Return why no job can start any more, or None while a GPU has a place."""
        return None if self.places.count or not self._view.gpus else self._full

    def opens_places(self, start: Start) -> bool:
        """A GPU that was free until now has a second place to offer."""
        return any(self.places.is_open(part.gpu_id) for part in start.assignments)

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return how every GPU looks for a job that waits; nothing where no table is wanted."""
        if not self._view.wants_table(job.request.job_id):
            return ()
        return candidate_table(*self._offers.look(job, self._view.gpus), None)

    def place(self, job: PendingJob) -> Start | Reason:
        """Start a job alone, else sharing with others, or return why not."""
        found = self.free.start(job) or self._share(job)
        if isinstance(found, Start):
            self._note(job, found)
        return found

    def start_only_job(self) -> Start | None:
        """Start the job that waits alone, on free GPUs; None = there are several, or too few free GPUs for it.

        Most jobs come to a cluster where no job waits: they need no order, and no round after them.
        """
        if len(self._view.pending) != 1:
            return None
        request = self._view.pending[0].request
        gpu_ids = self.free.place_for(request)
        return self.free.start_at(request, gpu_ids) if gpu_ids is not None else None

    def rest_reason(self) -> Reason:
        """Return why those wait that were not looked at."""
        if self.limit.is_reached:
            return self.limit.reason
        return self.closed() or Reason(code="TOO_FEW_PLACES", numbers={"gpus_with_place": self.places.count})

    def is_free_gang(self, request: JobRequest) -> bool:
        """The best of all GPUs decide about a job: a gang that may be anywhere, without smaller micro-batches."""
        is_gang = request.gpus > 1 and samples_per_gpu(request, request.gpus) == 1
        return is_gang and self._rule.recheck_gang and self._is_open_choice(request)

    @cached_property
    def _full(self) -> Reason:
        return Reason(code="CLUSTER_FULL", numbers={"gpus_in_cluster": len(self._view.gpus)})

    def _share(self, job: PendingJob) -> Start | Reason:
        request, key = job.request, self.key(job)
        full = None if self.places.count else self._full
        obstacle = self.free.impossible(request) or full or self.limit.count(key)
        if obstacle is not None:
            return obstacle
        obstacles: dict[str, Reason] = {}
        refusals: list[Reason] = []
        for gpu_ids in self._looks(job, refusals):
            offers, obstacles = self._offers.look(job, gpu_ids)
            gangs, refusals[:] = self._gangs.find(request, offers)
            for gang in gangs:
                objection = self._rule.objection(job, gang.occupied_gpus, gang.micro_batch_size)
                if objection is None:
                    self.limit.forget(key)
                    return self._start(job, gang, offers, obstacles)
                refusals.append(objection)
        return nearest_obstacle(refusals or obstacles.values())

    def _looks(self, job: PendingJob, refusals: Sequence[Reason]) -> Iterator[Iterable[str]]:
        """Yield the GPUs to look at: on a large cluster first those that arrays show to be the best, then all of them.

        Where arrays show none that is worth it, one GPU of each load class is enough to find out why.
        """
        is_explained = self._view.wants_table(job.request.job_id)
        if not self.is_large or not self._rule.weighs_pairs or is_explained:
            yield self._view.gpus if is_explained else self.places.gpu_ids()
            return
        shortlist = self.pairs.shortlist(job)
        yield shortlist.gpu_ids or self.pairs.alike()
        if shortlist.gpu_ids and not self._is_settled(job.request, shortlist, refusals):
            yield self.places.gpu_ids()

    def _is_open_choice(self, request: JobRequest) -> bool:
        """Any GPUs may be together in a gang: they are of one kind, on whatever nodes, and ask nothing of hosts."""
        asks_hosts = request.cpu_cores or request.host_memory_bytes
        return not self._view.nodes_per_job_max and not asks_hosts and self.pairs.is_one_kind

    def _is_settled(self, request: JobRequest, shortlist: Shortlist, refusals: Sequence[Reason]) -> bool:
        """Return whether all GPUs together would offer the same gang as the best of them, or none again."""
        if not self._is_open_choice(request):
            return False
        is_same_gang = bool(refusals) and all(reason.code == "SHARING_NOT_WORTH_IT" for reason in refusals)
        return shortlist.is_whole or is_same_gang

    def _start(self, job: PendingJob, gang: Gang, offers: Sequence[Offer], obstacles: dict[str, Reason]) -> Start:
        request, gpu = job.request, gang.offers[0].entry.gpu
        resident = resident_on(request, self._view.predictions.job(request.key, gpu.device), gang.micro_batch_size, gpu)
        if resident is None:
            raise AssertionError(f"{request.job_id} was offered {gpu.gpu_id} without fitting it")
        table = candidate_table(offers, obstacles, gang) if self._view.wants_table(request.job_id) else ()
        start = start_gang(self._ledger, resident, gang, table)
        self.free.take(part.gpu_id for part in start.assignments)
        return start

    def _note(self, job: PendingJob, start: Start) -> None:
        gpu_ids = [part.gpu_id for part in start.assignments]
        self._started.append((job, start))
        if self._offers.pairs is not None:
            self._note_in_arrays(self._offers.pairs, job, start)
        self._offers.note(job, gpu_ids)
        self.places.note(gpu_ids)

    def _note_in_arrays(self, pairs: PairArrays, job: PendingJob, start: Start) -> None:
        gpu_ids = [assignment.gpu_id for assignment in start.assignments]
        there = self._ledger.residents(gpu_ids[0])
        pairs.start(job, next(one for one in there if one.request.job_id == start.job_id), gpu_ids)
