"""What one decision of Optimus costs: `python -m benchmarks.decisions_optimus` prints JSON.

CPU seconds, best of five, of allocation (Algorithm 1, ALLOC) and placement (PLACE with Theorem 1) on one core. The
paper's instance: 4,000 jobs with about 100,000 tasks on 16,000 nodes, within 4 s (section 6.2). Tasks take what the
paper's containers have (5 CPU cores, 10 GB); speeds follow Eq. 4 with the coefficients of Table 2, varied by a seed.
The curve doubles jobs and nodes together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import numpy as np

from scheduler_service.policies.elasticity.optimus_allocation import (
    Demands,
    Floats,
    Integers,
    RemainingTimeOf,
    TaskCounts,
    allocate_tasks,
)
from scheduler_service.policies.elasticity.optimus_placement import Amounts, PlacedTasks, TaskGroup, place_evenly

REPEATS = 5
JOBS, NODES = 4_000, 16_000
CURVE = (1, 2, 4, 8)
TASK: Amounts = (5.0, 10e9)
NODE: Amounts = (32.0, 80e9)
WORKERS_MAX = 64
BATCH = 32.0
SYNC = (1.02, 2.78, 4.92, 0.0, 0.02)
SEED = 1


def instance(jobs: int, nodes: int) -> tuple[Demands, RemainingTimeOf]:
    """Jobs of one cluster, those with the least time left first."""
    generator = np.random.default_rng(SEED)
    thetas = np.array(SYNC)[:, None] * generator.uniform(0.5, 2.0, (len(SYNC), jobs))
    steps = generator.uniform(10, 1_000, jobs) * 0.05

    def remaining_time_of(rows: Integers, workers: Integers, servers: Integers) -> Floats:
        fixed, each, pull, by_worker, by_server = thetas[:, rows]
        w, p = workers.astype(float), servers.astype(float)
        return np.asarray(steps[rows] * (fixed * BATCH / w + each + pull * w / p + by_worker * w + by_server * p))

    order = np.argsort(steps, kind="stable")
    thetas, steps = thetas[:, order], steps[order]
    demand = np.broadcast_to(np.array(TASK), (jobs, len(TASK)))
    demands = Demands(
        capacity=np.array(NODE) * nodes,
        available=np.array(NODE) * nodes,
        worker=demand,
        server=demand,
        worker_counts=np.broadcast_to(np.arange(1, WORKERS_MAX + 1), (jobs, WORKERS_MAX)),
        has_servers=np.ones(jobs, dtype=bool),
    )
    return demands, remaining_time_of


def place(counts: TaskCounts, nodes: int) -> list[tuple[PlacedTasks, ...]]:
    """Place every job that was given tasks, the smallest first."""
    tasks = counts.workers + counts.servers
    groups = [
        TaskGroup(
            workers=int(counts.workers[job]),
            servers=int(counts.servers[job]),
            worker_demand=TASK,
            server_demand=TASK,
        )
        for job in np.argsort(tasks, kind="stable")
        if counts.workers[job]
    ]
    return place_evenly([NODE] * nodes, groups)


def measure(jobs: int, nodes: int) -> dict[str, object]:
    """Time one size."""
    allocation_s, placement_s = [], []
    for _ in range(REPEATS):
        demands, remaining_time_of = instance(jobs, nodes)
        start_s = time.process_time()
        counts = allocate_tasks(demands, remaining_time_of)
        between_s = time.process_time()
        places = place(counts, nodes)
        allocation_s.append(between_s - start_s)
        placement_s.append(time.process_time() - between_s)
    totals: Sequence[float] = [first + second for first, second in zip(allocation_s, placement_s, strict=True)]
    return {
        "jobs": jobs,
        "nodes": nodes,
        "tasks": int((counts.workers + counts.servers).sum()),
        "jobs_placed": sum(bool(place) for place in places),
        "allocation_s": min(allocation_s),
        "placement_s": min(placement_s),
        "decision_s": min(totals),
        "decision_runs_s": totals,
    }


def main() -> dict[str, object]:
    """Measures the paper's instance and its multiples; seconds."""
    curve = [measure(JOBS * factor, NODES * factor) for factor in CURVE]
    return {
        "unit": "CPU seconds, best of 5",
        "curve": curve,
        "target": {"decision_s": 1.0},
        "paper": {"decision_s": 4.0},
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
