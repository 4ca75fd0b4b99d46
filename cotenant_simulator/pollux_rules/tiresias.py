"""Tiresias as the artifact runs it: two queues, demotion by attained GPU time, no job is promoted.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/tiresias.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotenant_simulator.pollux_rules.cluster import ClusterShape, FreeGpus
from cotenant_simulator.pollux_rules.engine import INTERVAL_S
from cotenant_simulator.pollux_rules.training_job import Allocation, TrainingJob

_DEMOTION_GPU_S = 57_600


class Tiresias:
    """Jobs that have had little come first; a job that no longer fits loses its GPUs at once.

    Args:
        cluster: The nodes.
    """

    def __init__(self, cluster: ClusterShape) -> None:
        self._cluster = cluster
        self._queues: tuple[dict[str, TrainingJob], dict[str, TrainingJob]] = ({}, {})
        self._executed_s: dict[str, int] = {}
        self._running: set[str] = set()

    def allocate(self, active: Sequence[TrainingJob], now_s: int) -> Mapping[str, Allocation]:
        """Return the allocations until the next round."""
        del now_s
        self._requeue(active)
        left = self._cluster.gpus
        chosen = []
        for queue in self._queues:
            for job in queue.values():
                if job.gpus <= left:
                    left -= job.gpus
                    chosen.append(job)
        self._running = {job.job_id for job in chosen}
        return place_in_order(self._cluster, chosen)

    def _requeue(self, active: Sequence[TrainingJob]) -> None:
        new, old = self._queues
        here = {job.job_id for job in active}
        for queue in self._queues:
            for job_id in [job_id for job_id in queue if job_id not in here]:
                del queue[job_id]
        for job in active:
            job_id = job.job_id
            if job_id not in self._executed_s:
                self._executed_s[job_id] = 0
                new[job_id] = job
            if job_id in self._running:
                self._executed_s[job_id] += INTERVAL_S
            if job_id in new and self._executed_s[job_id] * job.gpus >= _DEMOTION_GPU_S:
                old[job_id] = new.pop(job_id)


def place_in_order(cluster: ClusterShape, chosen: Sequence[TrainingJob]) -> Mapping[str, Allocation]:
    """Place jobs at their own GPU counts: those that hold GPUs keep them, the others follow in order."""
    free = FreeGpus(cluster)
    for job in chosen:
        free.keep(job.allocation)
    return {job.job_id: job.allocation or free.take(job.gpus) for job in chosen}
