"""Small random instances that a heuristic and its exact ruler both solve, and what either solution is worth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.exact_rulers.best_sharing import SharingJob
from benchmarks.exact_rulers.fewest_gpus import PackedJob
from benchmarks.exact_rulers.least_cost_placement import ExactPlacement, LoadedGpu, PricedJob
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.records import Share
from scheduler_service.policies.horus import DEFAULT_CURVE
from scheduler_service.policies.packing.opportunistic_memory import Demand
from scheduler_service.policies.packing.packing_rules import Best, MemoryModel, PackingRules
from scheduler_service.policies.pairing.pair_sharing import CoLocatedJob, shared_sum_ms, waiting_sum_ms
from scheduler_service.policies.placement.horus_costs import CostModel
from scheduler_service.policies.sjf_bsbf import SjfBsbf
from tests.support.packing import Instance
from tests.support.scheduling import GIB, all_pairs, job, memory, node, pair, pending, prediction, running, store, view

OJPP_RULES = PackingRules(
    best=Best.LEAST_INTERFERENCE,
    memory=MemoryModel.ONE_SURGE,
    compute_requirement="sm_activity",
    tau_max=0.1,
    theta_max=0.2,
    theta_diff=0.1,
)
HORUS_COSTS = CostModel(
    weight_memory=0.5,
    weight_utilization=0.5,
    max_jobs_per_gpu=2,
    memory_max_ratio=1.0,
    utilization_max_ratio=2.0,
    locality_gpus=8,
    curves={},
    default_curve=DEFAULT_CURVE,
)


def packed_jobs(instance: Instance) -> list[PackedJob]:
    """Return the jobs of a packing instance as the ruler reads them."""
    return [
        PackedJob(
            name=one.name,
            workers=one.workers,
            demand=Demand(
                compute_ratio=one.alpha, base_ratio=one.gamma, surge_ratio=one.delta, surge_probability_ratio=one.p
            ),
        )
        for one in instance.jobs
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HorusInstance:
    """Equal devices of 8 GiB on one node, some of them in use, and jobs that all consent."""

    gpus: tuple[LoadedGpu, ...]
    jobs: tuple[PricedJob, ...]

    @classmethod
    def drawn(cls, seed: int) -> HorusInstance:
        """Draw one."""
        generator = random.Random(seed)
        gpus = tuple(
            LoadedGpu(
                gpu_id=f"n0.{index}",
                memory_bytes=8 * GIB,
                memory_used_bytes=(used := generator.choice((0, 0, 2, 4))) * GIB,
                utilization_ratio=generator.choice((0.2, 0.5, 0.8)) if used else 0.0,
                jobs=int(used > 0),
            )
            for index in range(generator.randint(2, 4))
        )
        jobs = tuple(
            PricedJob(
                name=f"j{index}",
                gpus=generator.choice((1, 1, 1, 2)),
                memory_bytes=generator.choice((1, 2, 3, 5)) * GIB,
                utilization_ratio=generator.choice((0.1, 0.3, 0.6, 0.9)),
            )
            for index in range(generator.randint(2, 5))
        )
        return cls(gpus=gpus, jobs=jobs)

    def view(self) -> SchedulingView:
        """Return the instance as a policy sees it."""
        held = [gpu for gpu in self.gpus if gpu.jobs]
        sizes = {f"key-{one.name}": (one.memory_bytes, one.utilization_ratio) for one in self.jobs}
        sizes |= {f"key-r{gpu.gpu_id}": (gpu.memory_used_bytes, gpu.utilization_ratio) for gpu in held}
        known = store(
            [
                prediction(key, memory=memory(size / GIB), utilization_ratio=utilization)
                for key, (size, utilization) in sizes.items()
            ],
            all_pairs(list(sizes), 0.0),
        )
        return view(
            nodes=[node("n0", len(self.gpus))],
            waiting=[
                pending(job(one.name, gpus=one.gpus, global_batch_size=one.gpus, share=Share.ANY), index)
                for index, one in enumerate(self.jobs)
            ],
            holding=[running(job(f"r{gpu.gpu_id}", share=Share.ANY), [gpu.gpu_id]) for gpu in held],
            predictions=known,
        )

    def worth(self, placed: Mapping[str, Sequence[str]]) -> ExactPlacement:
        """Return what a placement costs at its final loads."""
        total = 0.0
        for gpu in self.gpus:
            here = [one for one in self.jobs if gpu.gpu_id in placed.get(one.name, ())]
            used = gpu.memory_used_bytes + sum(one.memory_bytes for one in here)
            utilization = gpu.utilization_ratio + sum(one.utilization_ratio for one in here)
            cost = HORUS_COSTS.cost(memory_ratio=used / gpu.memory_bytes, utilization_ratio=utilization, device="")
            total += len(here) * cost
        return ExactPlacement(placed={name: tuple(gpu_ids) for name, gpu_ids in placed.items()}, cost=total)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingInstance:
    """One running job per GPU, and new jobs; memory never matters, so that only times do.

    Attributes:
        remaining_times: Seconds that the running job of each GPU still needs.
        jobs: Seconds that each new job needs, and its GPUs.
        slowdowns: (victim, other) -> ratio.
    """

    remaining_times: tuple[int, ...]
    jobs: tuple[tuple[int, int], ...]
    slowdowns: Mapping[tuple[str, str], float]

    @classmethod
    def drawn(cls, seed: int) -> SharingInstance:
        """Draw one."""
        generator = random.Random(seed)
        remaining_times = tuple(generator.randrange(10, 500) for _ in range(generator.randint(2, 5)))
        jobs = tuple(
            (generator.randrange(10, 500), generator.choice((1, 1, 2))) for _ in range(generator.randint(1, 4))
        )
        names = [*(f"r{index}" for index in range(len(remaining_times))), *(f"j{index}" for index in range(len(jobs)))]
        drawn = {(one, two): generator.choice((0.0, 0.2, 0.6, 1.5)) for one in names for two in names if one != two}
        return cls(remaining_times=remaining_times, jobs=jobs, slowdowns=drawn)

    def view(self) -> SchedulingView:
        """Return the instance as a policy sees it: every step takes a second."""
        names = [
            *(f"r{index}" for index in range(len(self.remaining_times))),
            *(f"j{index}" for index in range(len(self.jobs))),
        ]
        known = store(
            [
                prediction(f"key-{name}", memory=memory(0.5), step_ms={(gpus, 1): 1_000.0 for gpus in (1, 2)})
                for name in names
            ],
            [pair(f"key-{one}", f"key-{two}", ratio) for (one, two), ratio in self.slowdowns.items()],
        )
        consent = {"share": Share.ANY, "max_slowdown_ratio": 9.0}
        return view(
            nodes=[node("n0", len(self.remaining_times))],
            waiting=[
                pending(job(f"j{index}", gpus=gpus, global_batch_size=gpus, steps_total=seconds, **consent), index)
                for index, (seconds, gpus) in enumerate(self.jobs)
            ],
            holding=[
                running(job(f"r{index}", steps_total=seconds, **consent), [f"n0.{index}"])
                for index, seconds in enumerate(self.remaining_times)
            ],
            predictions=known,
        )

    def sharing_jobs(self) -> list[SharingJob]:
        """Return the new jobs as the ruler reads them."""
        return [
            SharingJob(
                name=f"j{index}",
                gpus=gpus,
                remaining_times_ms={1: seconds * 1_000.0},
                co_located={
                    (f"n0.{there}", 1): self._co_located(index, there) for there in range(len(self.remaining_times))
                },
                partner_of={f"n0.{there}": f"r{there}" for there in range(len(self.remaining_times))},
            )
            for index, (seconds, gpus) in enumerate(self.jobs)
        ]

    def _co_located(self, index: int, there: int) -> CoLocatedJob:
        return CoLocatedJob(
            remaining_ms=self.remaining_times[there] * 1_000.0,
            slowdown_ratio=self.slowdowns[f"r{there}", f"j{index}"],
            incoming_slowdown_ratio=self.slowdowns[f"j{index}", f"r{there}"],
        )

    def gain_ms(self, shares: Mapping[str, Sequence[str]]) -> float:
        """Return what these jobs gain by sharing against waiting for their partners."""
        total = 0.0
        for name, gpu_ids in shares.items():
            index = int(name[1:])
            remaining_ms = self.jobs[index][0] * 1_000.0
            co_located = [self._co_located(index, int(gpu_id.split(".")[1])) for gpu_id in gpu_ids]
            total += waiting_sum_ms(remaining_ms, co_located) - shared_sum_ms(remaining_ms, co_located)
        return total

    def heuristic(self) -> dict[str, list[str]]:
        """Return which jobs share under sjf_bsbf."""
        decisions = unfolded(SjfBsbf().decide(self.view()))
        return {one.job_id: [part.gpu_id for part in one.assignments] for one in decisions if isinstance(one, Start)}
