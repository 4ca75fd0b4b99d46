"""Horus' placement solved exactly: as many GPUs' worth of jobs as possible, then the least cost of the final loads.

Every set of jobs that one GPU may hold is a pattern of that GPU, priced at the load that it ends up with, once for each
of them. The printed program (Eq. 3-6) prices the jobs of a round independently and is infeasible unless all of them
fit; this one is what it must mean.

Source:
    Yeung et al., "Horus: Interference-Aware and Prediction-Based Scheduling in Deep Learning Systems", section 4.2,
    Eq. 3-10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.exact_rulers.integer_program import IntegerProgram
from scheduler_service.core.predictions.ratio_sums import exceeds, rounded_sum
from scheduler_service.policies.placement.horus_costs import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGpu:
    """A GPU and what runs there already."""

    gpu_id: str
    device: str = ""
    memory_bytes: int
    memory_used_bytes: int = 0
    utilization_ratio: float = 0.0
    jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedJob:
    """A job that wants `gpus` GPUs and asks the same of each."""

    name: str
    gpus: int
    memory_bytes: int
    utilization_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPlacement:
    """An optimum.

    Attributes:
        placed: GPUs by job; jobs that wait are absent.
        cost: Summed over every placed (job, GPU) at the GPU's final load.
    """

    placed: Mapping[str, tuple[str, ...]]
    cost: float

    @property
    def gpus_placed(self) -> int:
        """How many GPUs' worth of jobs runs."""
        return sum(map(len, self.placed.values()))


def place_exactly(jobs: Sequence[PricedJob], gpus: Sequence[LoadedGpu], costs: CostModel) -> ExactPlacement:
    """Return the best placement; the number of patterns grows with jobs ** max_jobs_per_gpu per GPU."""
    program = IntegerProgram()
    is_placed = {job.name: program.add(0.0) for job in jobs}
    uses: dict[str, dict[int, float]] = {job.name: {} for job in jobs}
    holders: dict[int, tuple[str, tuple[PricedJob, ...], float]] = {}
    for gpu in gpus:
        here: dict[int, float] = {}
        for size in range(1, costs.max_jobs_per_gpu - gpu.jobs + 1):
            for together in combinations(jobs, size):
                cost = _cost(gpu, together, costs)
                if cost is not None:
                    number = program.add(cost * size)
                    holders[number] = (gpu.gpu_id, together, cost * size)
                    here[number] = 1.0
                    for job in together:
                        uses[job.name][number] = 1.0
        program.require(here, most=1.0)
    # One more GPU placed is worth more than all costs together.
    worth = 1.0 + sum(abs(price) for price in program.prices)
    for job in jobs:
        program.prices[is_placed[job.name]] = -worth * job.gpus
        program.require({**uses[job.name], is_placed[job.name]: -float(job.gpus)}, least=0.0, most=0.0)
    return _placement(program.solve() or [], holders)


def _cost(gpu: LoadedGpu, together: Sequence[PricedJob], costs: CostModel) -> float | None:
    """Return the cost of a GPU's final load (Eq. 7), or None where the limits forbid it."""
    used_bytes = gpu.memory_used_bytes + sum(job.memory_bytes for job in together)
    utilization_ratio = rounded_sum([gpu.utilization_ratio, *(job.utilization_ratio for job in together)])
    is_shared = gpu.jobs + len(together) > 1
    if used_bytes > gpu.memory_bytes * (costs.memory_max_ratio if is_shared else 1.0):
        return None
    if is_shared and exceeds(utilization_ratio, costs.utilization_max_ratio):
        return None
    return costs.cost(
        memory_ratio=used_bytes / gpu.memory_bytes, utilization_ratio=utilization_ratio, device=gpu.device
    )


def _placement(uses: Sequence[int], holders: Mapping[int, tuple[str, tuple[PricedJob, ...], float]]) -> ExactPlacement:
    placed: dict[str, list[str]] = {}
    total = 0.0
    for number, (gpu_id, together, cost) in holders.items():
        if number < len(uses) and uses[number]:
            total += cost
            for job in together:
                placed.setdefault(job.name, []).append(gpu_id)
    return ExactPlacement(placed={name: tuple(gpu_ids) for name, gpu_ids in placed.items()}, cost=total)
