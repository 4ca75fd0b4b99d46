"""How long a step takes with parameter servers, by where workers and servers are: computing, exchanging, updating.

Every server sends its part of the model to every worker and gets as many gradients back. Tasks of one node exchange
for nothing; the exchange with other nodes takes as long as it takes the task that has most to exchange.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", Eq. 2 to 4 (section
    3.2), Fig. 10 (section 4.2), and the proof of Theorem 1 for the exchange between nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOTH_WAYS = 2
"""Gradients are pushed, parameters are pulled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTasks:
    """The tasks of one job on one node.

    Attributes:
        workers: Workers there.
        servers: Parameter servers there.
        bandwidth_ratio: What each of them gets of a task's usual bandwidth; below 1 where many share the link.
    """

    workers: int
    servers: int
    bandwidth_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTraining:
    """A training with parameter servers.

    Attributes:
        is_synchronous: All workers wait for each other in every step.
        batch: Samples of all workers together in one synchronous step.
        sample_ms: Time of a worker for one sample of a synchronous step.
        fixed_ms: Time of a worker for every step, however many samples it takes.
        model_bytes: Parameters; gradients are as many.
        task_bytes_per_ms: Bandwidth of every worker and every server.
        update_ms: Time of a single server for the gradients of one worker.
        per_worker_ms: Overhead of every step by worker.
        per_server_ms: The same by server.
        concurrency_ratio: Share of the workers that exchange with a server at the same time; 1 where they wait for
            each other.
        imbalance_ratio: Parameters of the fullest server over the mean of all; 1 = balanced.
    """

    is_synchronous: bool
    batch: int
    sample_ms: float
    fixed_ms: float
    model_bytes: float
    task_bytes_per_ms: float
    update_ms: float
    per_worker_ms: float
    per_server_ms: float
    concurrency_ratio: float = 1.0
    imbalance_ratio: float = 1.0

    def step_ms(self, nodes: Sequence[NodeTasks], *, computing_ratios: Sequence[float] = ()) -> float:
        """Return the time of one step of the job; with n asynchronous workers, 1/n of a worker's.

        Args:
            nodes: Where its tasks are; at least one worker and one server in all.
            computing_ratios: How many times longer than usual each worker computes; empty = all as usual.
        """
        workers = sum(node.workers for node in nodes)
        servers = sum(node.servers for node in nodes)
        ratios = computing_ratios or (1.0,) * workers
        computing_ms = self.computing_ms(workers)
        others_ms = self.exchange_ms(nodes) + self._serving_ms(workers, servers)
        if self.is_synchronous:
            return computing_ms * max(ratios) + others_ms
        return 1.0 / sum(1.0 / (computing_ms * ratio + others_ms) for ratio in ratios)

    def remote_step_ms(self, workers: int, servers: int) -> float:
        """Return the time of one step with every task on a node of its own: Eq. 3 and 4 for workers >= servers.

        With fewer workers than servers Eq. 3 and 4 go on falling, while a worker still exchanges the whole model.
        """
        nodes = [NodeTasks(workers=1, servers=0)] * workers + [NodeTasks(workers=0, servers=1)] * servers
        return self.step_ms(nodes)

    def paired_step_ms(self, workers_by_node: Sequence[int]) -> float:
        """Return the time of one step with one server per worker."""
        return self.step_ms([NodeTasks(workers=count, servers=count) for count in workers_by_node])

    def exchange_ms(self, nodes: Sequence[NodeTasks]) -> float:
        """Return the time of a step's exchange between nodes: that of the task with most to exchange."""
        workers = sum(node.workers for node in nodes)
        servers = sum(node.servers for node in nodes)
        part_bytes = BOTH_WAYS * self.concurrency_ratio * self.model_bytes / servers
        longest_ms = 0.0
        for node in nodes:
            bytes_per_ms = self.task_bytes_per_ms * node.bandwidth_ratio
            if node.servers:
                remote = self.imbalance_ratio * (workers - node.workers)
                longest_ms = max(longest_ms, part_bytes * remote / bytes_per_ms)
            if node.workers:
                longest_ms = max(longest_ms, part_bytes * (servers - node.servers) / bytes_per_ms)
        return longest_ms

    def computing_ms(self, workers: int) -> float:
        """Return how long a worker computes in a step."""
        samples = self.batch / workers if self.is_synchronous else 0.0
        return self.sample_ms * samples + self.fixed_ms

    def _serving_ms(self, workers: int, servers: int) -> float:
        updating_ms = self.update_ms * self.concurrency_ratio * self.imbalance_ratio * workers / servers
        return updating_ms + self.per_worker_ms * workers + self.per_server_ms * servers
