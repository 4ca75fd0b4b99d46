"""Random clusters with running and pending jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Start, unfolded
from scheduler_service.core.records import JobRequest, Node, Share
from tests.support.scheduling import GIB, job, memory, node, pair, pending, prediction, running, store, view

# Of the fastest of the drawn jobs, by GPUs and samples per GPU; the others are whole multiples.
STEP_MS = {(1, 8): 40_000.0, (1, 2): 12_000.0, (1, 1): 8_000.0, (2, 4): 24_000.0, (2, 1): 5_000.0, (3, 3): 9_000.0}


def dense_view(
    seed: int, *, shuffled: bool = False, explain: bool = False, nodes_max: int = 1, sliced_ratio: float = 0.0
) -> SchedulingView:
    """A random cluster with running and pending jobs; the same seed gives the same facts in any storage order.

    With `sliced_ratio` about so many GPUs are slices of one, of the same device type and size as the others.
    """
    generator = random.Random(seed)
    keys = [f"key-{index}" for index in range(4)]
    known = store(
        [
            prediction(
                key,
                memory=memory(generator.choice((1, 3, 6, 9))),
                utilization_ratio=generator.random(),
                in_domain=generator.random() < 0.8,
                step_ms={setting: step_ms * index for setting, step_ms in STEP_MS.items()},
            )
            for index, key in enumerate(keys, start=1)
        ],
        [pair(one, two, generator.random() / 2) for one in keys for two in keys if generator.random() < 0.9],
    )
    nodes = [node(f"n{index}", generator.randrange(1, 4), cpu_cores=generator.choice((0, 4))) for index in range(3)]
    nodes = [sliced(one, random.Random(seed + number), sliced_ratio) for number, one in enumerate(nodes)]
    devices = [gpu.gpu_id for machine in nodes for gpu in machine.gpus]
    holding = [
        running(
            job(
                f"r{index}",
                key=generator.choice(keys),
                share=generator.choice(list(Share)),
                allowed_gpus=(1, 2, 3)[: 1 + index],
            ),
            [device],
            started_at_ms=(seed % 3 - 1) * 10_000_000,
        )
        for index, device in enumerate(generator.sample(devices, k=len(devices) // 2))
    ]
    waiting = _drawn_jobs(generator, keys)
    for facts in (nodes, holding, waiting) if shuffled else ():
        random.Random(seed + 1).shuffle(facts)
    return view(
        nodes=nodes,
        waiting=waiting,
        holding=holding,
        predictions=known,
        now_ms=20_000_000,
        explain=explain,
        nodes_per_job_max=nodes_max,
    )


def _drawn_jobs(generator: random.Random, keys: Sequence[str]) -> list[PendingJob]:
    return [
        pending(
            job(
                f"p{index}",
                key=generator.choice([*keys, "", "key-unknown"]),
                gpus=(gpus := generator.choice((1, 1, 2, 5))),
                allowed_gpus=(1, 2, 3) if gpus < 3 and index % 2 else (),
                global_batch_size=1 + 7 * (index % 2),
                share=generator.choice(list(Share)),
                max_slowdown_ratio=generator.choice((0.1, 0.3)),
                cpu_cores=generator.choice((0.0, 2.0)),
                memory_floor_bytes=generator.choice((0, 0, 5 * GIB)),
            ),
            submitted_at_ms=19_990_000 + generator.randrange(5) * 1_000,
        )
        for index in range(generator.randrange(12))
    ]


def sliced(machine: Node, generator: random.Random, ratio: float) -> Node:
    """A node on which about so many GPUs are slices."""
    named = [f"MIG-{gpu.gpu_id}" if generator.random() < ratio else gpu.gpu_id for gpu in machine.gpus]
    return replace(
        machine, gpus=tuple(replace(gpu, gpu_id=name) for gpu, name in zip(machine.gpus, named, strict=True))
    )


def shared_view(seed: int) -> SchedulingView:
    """GPUs that hold up to three small jobs each, and incoming ones; many limits are just above the pairs' sum."""
    generator = random.Random(seed)
    keys = [f"key-{index}" for index in range(4)]
    known = store(
        [prediction(key, memory=memory(1), utilization_ratio=generator.uniform(0.1, 0.3)) for key in keys],
        [pair(one, two, generator.uniform(0.0, 0.1)) for one in keys for two in keys],
    )
    machine = node("n0", 6)

    def one(job_id: str) -> JobRequest:
        limit_ratio = generator.uniform(0.05, 0.35)
        return job(job_id, key=generator.choice(keys), share=Share.SAFE, max_slowdown_ratio=limit_ratio)

    holding = [
        running(one(f"{gpu.gpu_id}-{index}"), [gpu.gpu_id])
        for gpu in machine.gpus
        for index in range(generator.randrange(4))
    ]
    waiting = [pending(one(f"p{index}")) for index in range(8)]
    return view(nodes=[machine], waiting=waiting, holding=holding, predictions=known, nodes_per_job_max=0)


def full_view(seed: int) -> SchedulingView:
    """GPUs that all hold a job, some two, some a job that leaves or is slowed down, and incoming shorter ones."""
    generator = random.Random(seed)
    keys = [f"key-{index}" for index in range(3)]
    steps_ms = {(count, 6 // count): 1_000.0 * (4 - count) for count in (1, 2, 3)} | {(1, 1): 1_000.0}
    known = store(
        [prediction(key, memory=memory(1), utilization_ratio=generator.random() / 2, step_ms=steps_ms) for key in keys],
        [pair(one, two, generator.random() / 2) for one in keys for two in keys],
    )
    machines = [node(f"n{index}", 3) for index in range(2)]
    devices = [gpu.gpu_id for machine in machines for gpu in machine.gpus]
    widths = [devices[:2], *([device] for device in devices[2:]), *([device] for device in devices[3:5])]
    holding = [
        running(
            job(
                f"r{index}",
                key=generator.choice(keys),
                global_batch_size=6,
                gpus=len(held),
                allowed_gpus=(1, 2),
                steps_total=10_000,
            ),
            held,
            attained_gpu_ms=generator.choice((0, 80_000_000)),
            is_stopping=generator.random() < 0.15,
            solo_step_ms=100.0,
            step_ms=generator.choice((100.0, 400.0)),
        )
        for index, held in enumerate(widths)
    ]
    waiting = [
        pending(
            job(
                f"p{index}",
                key=generator.choice(keys),
                global_batch_size=6,
                gpus=generator.choice((1, 2)),
                allowed_gpus=(1, 2, 3)[:width],
            ),
            submitted_at_ms=19_000_000 + index * 100_000,
        )
        for index, width in enumerate(generator.choices((0, 2, 3), k=5))
    ]
    return view(
        nodes=machines, waiting=waiting, holding=holding, predictions=known, now_ms=20_000_000, nodes_per_job_max=0
    )


def starts(decisions: Sequence[Decision]) -> list[tuple[str, tuple[str, ...], int]]:
    """Return which jobs start, on which GPUs and with which micro-batch, in order."""
    return [
        (one.job_id, tuple(part.gpu_id for part in one.assignments), one.micro_batch_size)
        for one in unfolded(decisions)
        if isinstance(one, Start)
    ]
