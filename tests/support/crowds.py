"""Random clusters with running and pending jobs."""

from __future__ import annotations

import random

from scheduler_service.core.records import JobRequest, Share
from scheduler_service.core.view import SchedulingView
from tests.support.scheduling import GIB, job, memory, node, pair, pending, prediction, running, store, view


def crowded_view(seed: int, *, shuffled: bool = False, explain: bool = False, nodes_max: int = 1) -> SchedulingView:
    """A random cluster with running and pending jobs; the same seed gives the same facts in any storage order."""
    luck = random.Random(seed)
    keys = [f"key-{index}" for index in range(4)]
    known = store(
        [
            prediction(
                key,
                memory=memory(luck.choice((1, 3, 6, 9))),
                utilization_ratio=luck.random(),
                in_domain=luck.random() < 0.8,
                step_ms={
                    **{(1, 8): 40_000.0 * index, (1, 2): 12_000.0 * index, (1, 1): 8_000.0 * index},
                    **{(2, 4): 24_000.0 * index, (2, 1): 5_000.0 * index, (3, 3): 9_000.0 * index},
                },
            )
            for index, key in enumerate(keys, start=1)
        ],
        [pair(one, two, luck.random() / 2) for one in keys for two in keys if luck.random() < 0.9],
    )
    nodes = [node(f"n{index}", luck.randrange(1, 4), cpu_cores=luck.choice((0, 4))) for index in range(3)]
    devices = [gpu.gpu_id for machine in nodes for gpu in machine.gpus]
    holding = [
        running(
            job(
                f"r{index}", key=luck.choice(keys), share=luck.choice(list(Share)), allowed_gpus=(1, 2, 3)[: 1 + index]
            ),
            [device],
            started_at_ms=(seed % 3 - 1) * 10_000_000,
        )
        for index, device in enumerate(luck.sample(devices, k=len(devices) // 2))
    ]
    waiting = [
        pending(
            job(
                f"p{index}",
                key=luck.choice([*keys, "", "key-unknown"]),
                gpus=(gpus := luck.choice((1, 1, 2, 5))),
                allowed_gpus=(1, 2, 3) if gpus < 3 and index % 2 else (),
                global_batch_size=1 + 7 * (index % 2),
                share=luck.choice(list(Share)),
                max_slowdown_ratio=luck.choice((0.1, 0.3)),
                cpu_cores=luck.choice((0.0, 2.0)),
                memory_floor_bytes=luck.choice((0, 0, 5 * GIB)),
            ),
            submitted_at_ms=19_990_000 + luck.randrange(5) * 1_000,
        )
        for index in range(luck.randrange(12))
    ]
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


def shared_view(seed: int) -> SchedulingView:
    """GPUs that hold up to three small jobs each, and newcomers; many limits lie just above the sum of the pairs."""
    luck = random.Random(seed)
    keys = [f"key-{index}" for index in range(4)]
    known = store(
        [prediction(key, memory=memory(1), utilization_ratio=luck.uniform(0.1, 0.3)) for key in keys],
        [pair(one, two, luck.uniform(0.0, 0.1)) for one in keys for two in keys],
    )
    machine = node("n0", 6)

    def one(job_id: str) -> JobRequest:
        limit_ratio = luck.uniform(0.05, 0.35)
        return job(job_id, key=luck.choice(keys), share=Share.SAFE, max_slowdown_ratio=limit_ratio)

    holding = [
        running(one(f"{gpu.gpu_id}-{index}"), [gpu.gpu_id])
        for gpu in machine.gpus
        for index in range(luck.randrange(4))
    ]
    waiting = [pending(one(f"p{index}")) for index in range(8)]
    return view(nodes=[machine], waiting=waiting, holding=holding, predictions=known, nodes_per_job_max=0)


def full_view(seed: int) -> SchedulingView:
    """GPUs that all hold a job, some two, some a job that leaves or is slowed down, and newcomers that are shorter."""
    luck = random.Random(seed)
    keys = [f"key-{index}" for index in range(3)]
    steps_ms = {(count, 6 // count): 1_000.0 * (4 - count) for count in (1, 2, 3)} | {(1, 1): 1_000.0}
    known = store(
        [prediction(key, memory=memory(1), utilization_ratio=luck.random() / 2, step_ms=steps_ms) for key in keys],
        [pair(one, two, luck.random() / 2) for one in keys for two in keys],
    )
    machines = [node(f"n{index}", 3) for index in range(2)]
    devices = [gpu.gpu_id for machine in machines for gpu in machine.gpus]
    widths = [devices[:2], *([device] for device in devices[2:]), *([device] for device in devices[3:5])]
    holding = [
        running(
            job(
                f"r{index}",
                key=luck.choice(keys),
                global_batch_size=6,
                gpus=len(held),
                allowed_gpus=(1, 2),
                steps_total=10_000,
            ),
            held,
            attained_gpu_ms=luck.choice((0, 80_000_000)),
            is_stopping=luck.random() < 0.15,
            solo_step_ms=100.0,
            step_ms=luck.choice((100.0, 400.0)),
        )
        for index, held in enumerate(widths)
    ]
    waiting = [
        pending(
            job(
                f"p{index}",
                key=luck.choice(keys),
                global_batch_size=6,
                gpus=luck.choice((1, 2)),
                allowed_gpus=(1, 2, 3)[:width],
            ),
            submitted_at_ms=19_000_000 + index * 100_000,
        )
        for index, width in enumerate(luck.choices((0, 2, 3), k=5))
    ]
    return view(
        nodes=machines, waiting=waiting, holding=holding, predictions=known, now_ms=20_000_000, nodes_per_job_max=0
    )
