"""Which of a node's GPUs a placed job will have, where Slurm itself chooses among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cotenant.engines.records import EngineGpu, EngineJob, EngineNode, EnginePhase

_PROMISED = (EnginePhase.PLACED, EnginePhase.INTERRUPTED)


def settled(jobs: Iterable[EngineJob], nodes: Mapping[str, EngineNode]) -> tuple[EngineJob, ...]:
    """Move promises off GPUs that Slurm gave to others meanwhile: else one GPU counts twice, and another as free."""
    jobs = tuple(jobs)
    gpus = {gpu.gpu_id: gpu for node in nodes.values() for gpu in node.gpus}
    taken = {gpu_id for job in jobs if job.phase is EnginePhase.RUNNING for gpu_id in job.held_slots}
    return tuple(_settled(job, gpus, nodes, taken) for job in jobs)


def _settled(
    job: EngineJob, gpus: Mapping[str, EngineGpu], nodes: Mapping[str, EngineNode], taken: set[str]
) -> EngineJob:
    if job.phase not in _PROMISED or not job.held_slots:
        return job
    [promised] = job.held_slots
    if gpus[promised].is_interchangeable:
        promised = next((gpu_id for gpu_id in _alike(gpus[promised], nodes) if gpu_id not in taken), promised)
        taken.add(promised)
    return replace(job, held_slots={promised: next(iter(job.held_slots.values()))})


def _alike(gpu: EngineGpu, nodes: Mapping[str, EngineNode]) -> Iterator[str]:
    """Yield the GPU itself, then those among which Slurm chooses."""
    yield gpu.gpu_id
    for other in nodes[gpu.gpu_id.partition("/")[0]].gpus:
        if other.device == gpu.device:
            yield other.gpu_id
