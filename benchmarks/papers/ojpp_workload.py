"""The workloads of OJPP's section 5, drawn from `workloads/ojpp.toml`, and what a placement of one is worth."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.exact_rulers.fewest_gpus import share_fewest
from cotenant_simulator.readers.measured_jobs import read_measured_jobs
from scheduler_service.policies.packing.packing_rules import Best, MemoryModel, PackingRules
from tests.support.packing import Instance, Packed, Placement
from tests.support.ruler_instances import packed_jobs

FILE = Path(__file__).parent / "workloads" / "ojpp.toml"
MEASURED = Path(__file__).parents[2] / "datasets" / "cpu_standin"
Matrix = Mapping[tuple[str, str], float]
"""Slowdown of the first type next to the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs of known types with the matrix that is true of them.

    Attributes:
        types: By name of the job.
        matrix: Of the types.
        instance: The jobs as the packing policies see them, with a device for every worker.
    """

    types: Mapping[str, str]
    matrix: Matrix
    instance: Instance

    @property
    def workers(self) -> int:
        """Workers of all jobs, which is the number of GPUs that they have when each is alone."""
        return sum(one.workers for one in self.instance.jobs)

    def predicting(self, matrix: Matrix) -> Workload:
        """Return the same jobs with another matrix."""
        return workload_of(self.instance.jobs, self.types, matrix)


def draw_workload(kind: str, seed: int, *, lonely: bool = False, workers_max: int | None = None) -> Workload:
    """Draw one workload; the matrix has a random generator of its own, so that all kinds of one seed meet the same.

    Args:
        kind: One of [workloads] in the file.
        seed: Of types, numbers of workers and the numbers of the matrix that the text does not state.
        lonely: With the matrix under which no job can share with ResNet.
        workers_max: Of a job, where it is not the file's.
    """
    plan = tomllib.loads(FILE.read_text(encoding="utf-8"))
    matrix = draw_matrix(plan, random.Random(f"matrix {seed}"), lonely=lonely)
    generator = random.Random(f"{kind} {seed}")
    least, most = plan["workers"]
    types = {f"j{number:02d}": generator.choice(plan["workloads"][kind]) for number in range(plan["jobs"])}
    jobs = tuple(
        _packed(plan, name, type_name, generator.randint(least, most if workers_max is None else workers_max))
        for name, type_name in types.items()
    )
    return workload_of(jobs, types, matrix)


def measured_workload(seed: int, folder: Path = MEASURED) -> Workload:
    """Draw as many jobs of the measured kinds, with the memory of low collision, for the text measured no other.

    A pair that was measured one way round only is as slow the other way; one never measured is as slow as the slowest.
    """
    plan = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found = read_measured_jobs(folder).slowdowns
    ratios = {(victim, other): ratio for (victim, other, _), ratio in found.items()}
    kinds = sorted({key for pair in ratios for key in pair})
    matrix = {
        (victim, other): ratios.get((victim, other), ratios.get((other, victim), max(ratios.values())))
        for victim, other in product(kinds, kinds)
    }
    generator = random.Random(f"measured {seed}")
    types = {f"j{number:02d}": generator.choice(kinds) for number in range(plan["jobs"])}
    memory = plan["memory"]
    jobs = [
        Packed(
            name=name,
            workers=generator.randint(*plan["workers"]),
            gamma=memory["gamma_ratio"],
            delta=memory["delta_ratio"],
            p=memory["p_low"],
        )
        for name in types
    ]
    return workload_of(jobs, types, matrix)


def workload_of(jobs: Sequence[Packed], types: Mapping[str, str], matrix: Matrix) -> Workload:
    """Return jobs with the matrix of their types, and a device for every worker."""
    gpus = sum(one.workers for one in jobs)
    instance = Instance(jobs=tuple(jobs), gpus=gpus, slowdowns=spread_over_jobs(types, matrix))
    return Workload(types=types, matrix=matrix, instance=instance)


def spread_over_jobs(types: Mapping[str, str], matrix: Matrix) -> dict[tuple[str, str], float]:
    """Return the slowdowns of jobs from those of their types."""
    return {(one, two): matrix[types[one], types[two]] for one, two in product(types, types)}


def gpus_saved_ratio(workload: Workload, placement: Placement) -> float:
    """Return 1 - GPUs used / workers."""
    return 1.0 - len({gpu for gpus in placement.values() for gpu in gpus}) / workload.workers


def slowdowns_of(workload: Workload, placement: Placement) -> dict[str, float]:
    """Return the slowdown of every job, which is that of its slowest worker; among several it is the sum of pairs."""
    on_gpu: dict[str, list[str]] = {}
    for name, gpus in placement.items():
        for gpu in gpus:
            on_gpu.setdefault(gpu, []).append(name)
    return {
        name: max(workload.instance.slowdown(name, [one for one in on_gpu[gpu] if one != name]) for gpu in gpus)
        for name, gpus in placement.items()
    }


def performance_ratio(slowdowns: Mapping[str, float]) -> float:
    """Return the mean over jobs of time alone / time shared."""
    return fmean(1.0 / (1.0 + slowdown) for slowdown in slowdowns.values())


def placement_on_fewest(workload: Workload, *, tau_max: float, theta_max: float, theta_diff: float) -> Placement:
    """Return one of the placements on fewest GPUs that keep all of OJPP's limits, compute not counted."""
    rules = PackingRules(
        best=Best.LEAST_INTERFERENCE,
        memory=MemoryModel.ONE_SURGE,
        compute_requirement="zero",
        tau_max=tau_max,
        theta_max=theta_max,
        theta_diff=theta_diff,
    )
    jobs = [replace(job, demand=replace(job.demand, compute_ratio=0.0)) for job in packed_jobs(workload.instance)]
    shared = share_fewest(jobs, workload.instance.slowdowns, rules)
    if shared is None:
        raise AssertionError("a worker fits no device")
    devices = [names for names, count in shared.items() for _ in range(count)]
    return {
        job.name: [f"g{number}" for number, names in enumerate(devices) if job.name in names]
        for job in workload.instance.jobs
    }


def _packed(plan: Mapping[str, Any], name: str, type_name: str, workers: int) -> Packed:
    memory = plan["memory"]
    return Packed(
        name=name,
        workers=workers,
        gamma=memory["gamma_ratio"],
        delta=memory["delta_ratio"],
        p=memory["p_high" if plan["types"][type_name]["collision"] == "high" else "p_low"],
    )


def draw_matrix(plan: Mapping[str, Any], generator: random.Random, *, lonely: bool) -> Matrix:
    """Draw the slowdowns of the types; with `lonely` no job can share with ResNet."""
    bounds = {**plan["slowdowns"], **(plan["lonely"] if lonely else {})}
    drawn = {
        (victim, other): generator.uniform(*bounds.get(victim, bounds["others"]))
        for victim, other in product(plan["types"], plan["types"])
    }
    stated = {(victim, other): ratio for victim, row in bounds["stated"].items() for other, ratio in row.items()}
    return {**drawn, **stated}
