"""DRF's shares against filling one worker at a time by a plain search for the smallest share."""

from __future__ import annotations

import random

from scheduler_service.core.records import JobRequest, TaskDemand
from scheduler_service.policies.drf import fair_counts
from scheduler_service.policies.elasticity.task_demand import TaskRoom
from tests.support.cases import for_each
from tests.support.scheduling import GIB, job, node, pending, running, view


def drawn(generator: random.Random, name: str) -> JobRequest:
    demand = TaskDemand(
        cpu_cores=generator.choice((0, 1, 3)), host_memory_bytes=generator.choice((0, 1, 4)) * GIB, gpus=1
    )
    counts = tuple(sorted(generator.sample(range(1, 7), k=generator.randint(1, 3))))
    return job(name, gpus=counts[0], allowed_gpus=counts, global_batch_size=60, worker_demand=demand)


def need(request: JobRequest) -> tuple[float, float, float]:
    demand = request.worker_demand or TaskDemand()
    return 1.0, demand.cpu_cores, demand.host_memory_bytes / GIB


@for_each("seed", range(200), always=50)
def test_the_smallest_dominant_share_is_served_next_until_no_job_can_be(seed: int) -> None:
    generator = random.Random(seed)
    capacity = (float(generator.randint(3, 12)), float(generator.randint(4, 20)), float(generator.randint(4, 20)))
    machine = node("n0", int(capacity[0]), cpu_cores=capacity[1], host_memory_bytes=int(capacity[2]) * GIB)
    requests = {f"j{index}": drawn(generator, f"j{index}") for index in range(generator.randint(1, 6))}
    waiting = [pending(request, index) for index, request in enumerate(requests.values())]
    seen = view(nodes=[machine], waiting=waiting)
    counts, left, done = dict.fromkeys(requests, 0), list(capacity), set[str]()
    while len(done) < len(requests):
        order = [
            (max(n / c for n, c in zip(need(requests[name]), capacity, strict=True)) * counts[name], name)
            for name in counts
            if name not in done
        ]
        name = min(order)[1]
        larger = [count for count in requests[name].allowed_gpus if count > counts[name]]
        more = [part * (larger[0] - counts[name]) for part in need(requests[name])] if larger else []
        if not larger or any(part > rest for part, rest in zip(more, left, strict=True)):
            done.add(name)
            continue
        left = [rest - part for rest, part in zip(left, more, strict=True)]
        counts[name] = larger[0]
    assert fair_counts(seen, TaskRoom(seen), waiting, {}) == counts


@for_each("seed", range(40), always=20)
def test_a_running_job_keeps_at_least_its_smallest_number(seed: int) -> None:
    generator = random.Random(seed)
    request = drawn(generator, "old")
    held = running(request, [f"n0.{index}" for index in range(request.allowed_gpus[-1])])
    waiting = [pending(drawn(generator, f"j{index}"), index) for index in range(4)]
    seen = view(nodes=[node("n0", 6)], waiting=waiting, holding=[held])
    counts = fair_counts(seen, TaskRoom(seen), waiting, {"old": request})
    assert counts["old"] >= request.allowed_gpus[0]
    assert sum(counts.values()) <= 6
