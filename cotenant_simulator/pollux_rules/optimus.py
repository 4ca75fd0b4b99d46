"""Optimus as the artifact runs it: true step times, true remaining epochs, one GPU at a time to the largest gain.

Source:
    Algorithm 1 of the Optimus paper with all-reduce in place of parameter servers, and the choices that make every
    published completion time of the Pollux artifact's "Optimus+Oracle" come out (docs/pollux_rules.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

from cotenant_simulator.pollux_rules.applications import Application
from cotenant_simulator.pollux_rules.batch_plan import iteration_s, split_batch
from cotenant_simulator.pollux_rules.cluster import ClusterShape, FreeGpus
from cotenant_simulator.pollux_rules.exclusive import packed
from cotenant_simulator.pollux_rules.training_job import Allocation, TrainingJob


class Optimus:
    """Marginal gains over GPU counts, every round anew.

    Args:
        cluster: The nodes.
    """

    def __init__(self, cluster: ClusterShape) -> None:
        self._cluster = cluster
        self._iteration_s: dict[tuple[str, int, int], float] = {}
        self._savings_s: dict[tuple[str, int], list[float]] = {}
        self._remaining: dict[tuple[str, int, int], float] = {}
        self._state: tuple[tuple[str, int], ...] = ()
        self._allocations: Mapping[str, Allocation] = {}

    def allocate(self, active: Sequence[TrainingJob], now_s: int) -> Mapping[str, Allocation]:
        """Return the allocations until the next round; they depend on the present jobs and completed epochs only."""
        del now_s
        state = tuple((job.job_id, job.epochs_done) for job in active)
        if state != self._state:
            self._state, self._allocations = state, self._place(active, self.counts(active))
        return self._allocations

    def counts(self, active: Sequence[TrainingJob]) -> list[int]:
        """Return GPUs per job, in the same order."""
        left = self._cluster.gpus
        counts = [1] * min(left, len(active)) + [0] * max(len(active) - left, 0)
        left -= sum(counts)
        remaining = [self._remaining_iterations(job) for job in active]
        served = active[: sum(counts)]
        # Of equal gains the first job in order of arrival wins.
        heap = [(-self._gain(job, 1, remaining[position]), position) for position, job in enumerate(served)]
        heapify(heap)
        while left > 0 and heap and heap[0][0] < 0:
            position = heap[0][1]
            counts[position] += 1
            left -= 1
            gain = self._gain(active[position], counts[position], remaining[position])
            heapreplace(heap, (-gain, position))
        return counts

    def _gain(self, job: TrainingJob, gpus: int, remaining: float) -> float:
        """Return the seconds saved by one more GPU; 0 where the job cannot use it."""
        application = job.application
        if gpus + 1 > (application.gpus_forced_max or job.batch // application.local_samples_min):
            return 0.0
        savings_s = self._savings_s.setdefault((application.name, job.batch), [])
        while len(savings_s) < gpus:
            count = len(savings_s) + 1
            fewer_s, more_s = (self.step_s(application, job.batch, one) for one in (count, count + 1))
            savings_s.append(fewer_s - more_s)
        return savings_s[gpus - 1] * remaining

    def _remaining_iterations(self, job: TrainingJob) -> float:
        """Return the steps of the epochs after the current one, which never counts; at least 1."""
        application, done = job.application, job.epochs_done
        key = (application.name, job.batch, done)
        if key not in self._remaining:
            last = application.epochs
            self._remaining[key] = (
                application.iterations(job.batch, last) - application.iterations(job.batch, done + 1)
                if done < last - 1
                else 1.0
            )
        return self._remaining[key]

    def step_s(self, application: Application, batch: int, gpus: int) -> float:
        """Return the predicted time of one step in seconds on packed nodes, whatever nodes are free."""
        key = (application.name, batch, gpus)
        if key not in self._iteration_s:
            plan = split_batch(application, batch, gpus, accumulates_alone=True)
            self._iteration_s[key] = iteration_s(application, packed(gpus, self._cluster.gpus_per_node), plan)
        return self._iteration_s[key]

    def _place(self, active: Sequence[TrainingJob], counts: Sequence[int]) -> Mapping[str, Allocation]:
        free = FreeGpus(self._cluster)
        allocations: dict[str, Allocation] = {}
        moving = []
        for position, (job, gpus) in enumerate(zip(active, counts, strict=True)):
            if gpus == job.gpus_held:
                allocations[job.job_id] = job.allocation
                free.keep(job.allocation)
            else:
                moving.append((gpus, position))
        for gpus, position in sorted(moving):
            allocations[active[position].job_id] = free.take(gpus)
        return allocations
