"""Clusters of any size as a policy sees them, partly in use, with a queue: what the benchmarks of decisions look at.

Jobs come from a number of families with equal settings and therefore equal predictions, as in every production trace;
`families` equal to the number of jobs makes every job unlike any other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.view import GpuView, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import (
    Assignment,
    Gpu,
    JobPrediction,
    JobRequest,
    MemoryPoint,
    MemoryTriple,
    Node,
    PairPrediction,
    Share,
)

GIB = 2**30
DEVICE = "gpu-80"
DEVICE_BYTES = 80 * GIB
BATCH_PER_GPU = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeCluster:
    """What to build.

    Attributes:
        running_ratio: Share of the GPUs that hold one job each.
        gangs: GPU counts of pending jobs, one of them drawn for each.
        families: Different jobs.
        nodes_per_job_max: As in the view.
    """

    nodes: int
    gpus_per_node: int = 8
    pending: int = 1
    running_ratio: float = 0.5
    gangs: tuple[int, ...] = (1, 1, 1, 1, 2, 4, 8)
    families: int = 50
    nodes_per_job_max: int = 1
    seed: int = 1

    def view(self) -> SchedulingView:
        """Build it; the same seed gives the same view."""
        generator = random.Random(self.seed)
        nodes = {f"n{index:05}": self._node(f"n{index:05}") for index in range(self.nodes)}
        all_gpus = [(gpu, node.node_id) for node in nodes.values() for gpu in node.gpus]
        used = sorted(generator.sample(range(len(all_gpus)), k=int(self.running_ratio * len(all_gpus))))
        running = {job.request.job_id: job for job in self._running(generator, [all_gpus[index][0] for index in used])}
        holder = {job.assignments[0].gpu_id: job for job in running.values()}
        gpus = {gpu.gpu_id: _gpu_view(gpu, node_id, holder.get(gpu.gpu_id)) for gpu, node_id in all_gpus}
        return SchedulingView(
            now_ms=10_000_000,
            nodes=nodes,
            gpus=gpus,
            pending=sorted(self._pending(generator), key=lambda job: (job.submitted_at_ms, job.request.job_id)),
            running=running,
            predictions=self._predictions(generator),
            nodes_per_job_max=self.nodes_per_job_max,
            index=FreshIndex(),
        )

    def _node(self, node_id: str) -> Node:
        gpus = tuple(
            Gpu(gpu_id=f"{node_id}.{index}", device=DEVICE, memory_bytes=DEVICE_BYTES, index=index)
            for index in range(self.gpus_per_node)
        )
        return Node(node_id=node_id, gpus=gpus)

    def _running(self, generator: random.Random, gpus: list[Gpu]) -> Iterator[RunningJob]:
        for index, gpu in enumerate(gpus):
            request = self._request(generator, f"r{index:06}", 1)
            yield RunningJob(
                request=request,
                attempt=1,
                assignments=(Assignment(gpu_id=gpu.gpu_id),),
                micro_batch_size=BATCH_PER_GPU,
                submitted_at_ms=index,
                started_at_ms=index,
                steps_done=generator.randrange(request.steps_total),
                memory_reserved_bytes=_memory(request.key, BATCH_PER_GPU).memory_bytes_upper_99,
            )

    def _pending(self, generator: random.Random) -> Iterator[PendingJob]:
        for index in range(self.pending):
            yield PendingJob(
                request=self._request(generator, f"p{index:06}", generator.choice(self.gangs)),
                submitted_at_ms=generator.randrange(10_000_000),
            )

    def _request(self, generator: random.Random, job_id: str, gpus: int) -> JobRequest:
        return JobRequest(
            job_id=job_id,
            key=f"family-{generator.randrange(self.families)}",
            gpus=gpus,
            global_batch_size=BATCH_PER_GPU * gpus,
            steps_total=generator.randrange(1_000, 100_000),
            share=Share.SAFE,
            max_slowdown_ratio=0.4,
        )

    def _predictions(self, generator: random.Random) -> PredictionStore:
        store = PredictionStore(keys_max=10**9)
        keys = [f"family-{index}" for index in range(self.families)]
        for key in keys:
            store.put_job(_prediction(generator, key))
        # Where every job is a family of its own, pairs are known for some of them only, as the engine bounds them.
        for victim in keys[:200]:
            for other in keys[:200]:
                store.put_pair(_pair(generator, victim, other))
        return store


def _prediction(generator: random.Random, key: str) -> JobPrediction:
    pass_ms = generator.uniform(20.0, 200.0)
    return JobPrediction(
        key=key,
        device=DEVICE,
        utilization_ratio=generator.uniform(0.1, 0.9),
        sm_activity_ratio=generator.uniform(0.05, 0.5),
        memory={micro_batch_size: _memory(key, micro_batch_size) for micro_batch_size in (32, 16, 8, 4, 2, 1)},
        step_ms={
            (gpus, micro_batch_size): pass_ms * (0.2 + 0.8 * micro_batch_size / BATCH_PER_GPU) + 5.0 * (gpus > 1)
            for gpus in range(1, 11)
            for micro_batch_size in (32, 16, 8, 4, 2, 1)
        },
        memory_triple=MemoryTriple(
            gamma_ratio=0.1, delta_ratio=0.1, high_state_ratio=generator.choice((0.0, 0.2, 0.5))
        ),
    )


def _memory(key: str, micro_batch_size: int) -> MemoryPoint:
    gib = 4 + sum(map(ord, key)) % 20 + micro_batch_size / 2
    return MemoryPoint(memory_bytes=int(gib * GIB), memory_bytes_upper_99=int(1.1 * gib * GIB))


def _pair(generator: random.Random, victim: str, other: str) -> PairPrediction:
    ratio = generator.uniform(0.0, 0.5)
    return PairPrediction(
        victim_key=victim, other_key=other, device=DEVICE, slowdown_ratio=ratio, upper_ratio=ratio + 0.1
    )


def _gpu_view(gpu: Gpu, node_id: str, holder: RunningJob | None) -> GpuView:
    if holder is None:
        return GpuView(gpu=gpu, node_id=node_id)
    job_id, reserved = holder.request.job_id, holder.memory_reserved_bytes
    return GpuView(gpu=gpu, node_id=node_id, job_ids=(job_id,), memory_reserved_bytes=reserved)
