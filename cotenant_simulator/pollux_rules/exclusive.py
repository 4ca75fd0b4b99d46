"""FIFO and SJF under the artifact's clock: one job per GPU, no job is stopped. A check of the arithmetic, no peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotenant_simulator.pollux_rules.batch_plan import iteration_s, split_batch
from cotenant_simulator.pollux_rules.cluster import ClusterShape, FreeGpus
from cotenant_simulator.pollux_rules.training_job import Allocation, TrainingJob


class Exclusive:
    """Starts waiting jobs in order while GPUs last.

    Args:
        cluster: The nodes.
        shortest_first: By the time that a job takes alone instead of by arrival.
        skips: Goes on past a job that does not fit instead of stopping there.
    """

    def __init__(self, cluster: ClusterShape, *, shortest_first: bool, skips: bool) -> None:
        self._cluster = cluster
        self._shortest_first = shortest_first
        self._skips = skips
        self._alone_s: dict[str, float] = {}

    def allocate(self, active: Sequence[TrainingJob], now_s: int) -> Mapping[str, Allocation]:
        """Return the allocations until the next round."""
        del now_s
        free = FreeGpus(self._cluster)
        allocations = {job.job_id: job.allocation for job in active if job.allocation}
        for allocation in allocations.values():
            free.keep(allocation)
        waiting = [job for job in active if not job.allocation]
        if self._shortest_first:
            waiting.sort(key=self._order)
        for job in waiting:
            if job.gpus <= free.count():
                allocations[job.job_id] = free.take(job.gpus)
            elif not self._skips:
                break
        return allocations

    def _order(self, job: TrainingJob) -> tuple[float, int]:
        if job.job_id not in self._alone_s:
            self._alone_s[job.job_id] = isolated_s(job, self._cluster.gpus_per_node)
        return self._alone_s[job.job_id], job.order


def isolated_s(job: TrainingJob, gpus_per_node: int) -> float:
    """Return how long a job takes alone on packed nodes, in seconds, without rounding and without a pause."""
    application = job.application
    plan = split_batch(application, job.batch, job.gpus)
    step_s = iteration_s(application, packed(job.gpus, gpus_per_node), plan)
    before, total = 0.0, 0.0
    for epoch, goal in enumerate(application.goals[: application.epochs]):
        total += (goal - before) * step_s / application.gain(plan.batch, epoch)
        before = goal
    return total


def packed(gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return GPUs by node on as few nodes as possible, the rest on the last."""
    full, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())
