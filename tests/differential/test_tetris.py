"""Tetris against the rule written down with plain numbers."""

from __future__ import annotations

import random

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.tetris import Tetris
from tests.support.cases import for_each
from tests.support.scheduling import GIB, job, node, pending, prediction, store, view


@for_each("seed", range(150))
def test_every_job_goes_to_the_node_that_would_be_fullest(seed: int) -> None:
    generator = random.Random(seed)
    free = {
        f"n{index}": [float(generator.randint(1, 4)), float(generator.randint(2, 9)), float(generator.randint(2, 9))]
        for index in range(4)
    }
    capacity = {name: tuple(amounts) for name, amounts in free.items()}
    nodes = [
        node(name, int(gpus), cpu_cores=cores, host_memory_bytes=int(gib) * GIB)
        for name, (gpus, cores, gib) in capacity.items()
    ]
    jobs = [
        job(
            f"j{index}",
            key="key",
            gpus=(gpus := generator.choice((1, 1, 2, 3))),
            global_batch_size=gpus,
            steps_total=generator.randrange(1, 1_000),
            cpu_cores=float(generator.randint(0, 3) * gpus),
            host_memory_bytes=generator.randint(0, 3) * gpus * GIB,
        )
        for index in range(8)
    ]
    known = store([prediction("key", step_ms={(gpus, 1): 1.0 for gpus in (1, 2, 3)})])
    seen = view(nodes=nodes, waiting=[pending(one) for one in jobs], predictions=known, nodes_per_job_max=1)
    expected = {}
    for one in sorted(jobs, key=lambda one: (one.steps_total, one.job_id)):
        need = (one.gpus, one.cpu_cores, one.host_memory_bytes / GIB)
        fitting = [name for name, left in free.items() if all(n <= rest for n, rest in zip(need, left, strict=True))]
        if fitting:
            best = min(
                fitting,
                key=lambda name: (
                    round(
                        sum((rest - n) / most for n, rest, most in zip(need, free[name], capacity[name], strict=True)),
                        9,
                    ),
                    name,
                ),
            )
            free[best] = [rest - n for rest, n in zip(free[best], need, strict=True)]
            expected[one.job_id] = best
    decisions = unfolded(Tetris().decide(seen))
    placed = {one.job_id: one.assignments[0].gpu_id.split(".")[0] for one in decisions if isinstance(one, Start)}
    assert placed == expected
