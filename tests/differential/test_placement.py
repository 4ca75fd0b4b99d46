"""The placement of one job against the best of all placements, found by trying everything."""

from __future__ import annotations

from itertools import combinations

import pytest

from scheduler_service.core.cluster_view.capacity import Resident, reserved_bytes, samples_per_gpu
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from scheduler_service.policies.horus import Horus
from tests.support.cases import for_each
from tests.support.crowds import dense_view

Curve = tuple[tuple[float, float], tuple[float, float, float]]
USUAL: Curve = (0.0, 0.5), (0.0, 0.0, 0.5)
"""That of the policy itself: coefficients up to a utilization of 1, and above."""


def cost_of(seen: SchedulingView, one: PendingJob, gpu_id: str, curve: Curve = USUAL) -> float | None:
    """The printed formulas, written down a second time; None = not allowed."""
    entry, request = seen.gpus[gpu_id], one.request
    micro_batch_size = samples_per_gpu(request, request.gpus)
    known = seen.predictions.job(request.key, entry.gpu.device)
    need = reserved_bytes(request, known, micro_batch_size, entry.gpu)
    if need is None or len(entry.job_ids) >= 2 or entry.memory_reserved_bytes + need > entry.gpu.memory_bytes:
        return None
    there = [seen.running[job_id] for job_id in entry.job_ids]
    residents = [
        Resident(
            request=other.request,
            micro_batch_size=other.micro_batch_size,
            memory_reserved_bytes=other.memory_reserved_bytes,
        )
        for other in there
    ]
    incoming_job = Resident(request=request, micro_batch_size=micro_batch_size, memory_reserved_bytes=need)
    if residents and sharing_obstacle(incoming_job, residents, entry.gpu, seen.predictions) is not None:
        return None
    requests = [request, *(other.request for other in there)]
    loads = [seen.predictions.job(other.key, entry.gpu.device) for other in requests]
    load = sum(1.0 if found is None else found.utilization_ratio for found in loads)
    if residents and load > 2.0:
        return None
    memory_ratio = (entry.memory_reserved_bytes + need) / entry.gpu.memory_bytes
    powers = curve[0] if round(load, 9) <= 1 else curve[1]
    return 0.5 * memory_ratio + 0.5 * sum(factor * load**power for power, factor in enumerate(powers))


def best_by_force(seen: SchedulingView, one: PendingJob, curve: Curve = USUAL) -> float | None:
    """The least summed cost over every set of GPUs that the hosts have room for."""
    best: float | None = None
    for gpu_ids in combinations(seen.gpus, one.request.gpus):
        node_ids = [seen.gpus[gpu_id].node_id for gpu_id in gpu_ids]
        if len(set(node_ids)) > (seen.nodes_per_job_max or len(node_ids)):
            continue
        if any(not host_has_room(seen, one, name, node_ids.count(name)) for name in set(node_ids)):
            continue
        costs = [cost_of(seen, one, gpu_id, curve) for gpu_id in gpu_ids]
        if None not in costs:
            total = sum(cost for cost in costs if cost is not None)
            best = total if best is None else min(best, total)
    return best


def host_has_room(seen: SchedulingView, one: PendingJob, node_id: str, here: int) -> bool:
    cores = seen.nodes[node_id].cpu_cores
    return cores == 0 or one.request.cpu_cores * here / one.request.gpus <= cores


@for_each("nodes_max", [0, 1])
@for_each("seed", range(60))
def test_horus_finds_the_cheapest_placement_of_one_job(seed: int, nodes_max: int) -> None:
    cluster = dense_view(seed, nodes_max=nodes_max)
    for one in cluster.pending:
        seen = dense_view(seed, nodes_max=nodes_max)
        object.__setattr__(seen, "pending", (one,))
        (decision,) = unfolded(Horus().decide(seen))
        best = best_by_force(seen, one)
        if best is None:
            assert not isinstance(decision, Start), decision
        else:
            assert isinstance(decision, Start), decision
            assert decision.reason.numbers["cost"] == pytest.approx(best)


@for_each(
    "curve",
    [
        ((0.0, 0.0), (0.0, 0.0, 0.0)),
        ((0.9, -0.9), (2.0, -1.0, 0.0)),
        ((0.0, 2.0), (0.0, 0.1, 0.0)),
        ((0.0, 0.5), (3.0, -3.0, 0.8)),
    ],
)
def test_a_gpu_in_use_is_taken_where_the_curve_makes_it_the_cheapest(curve: Curve) -> None:
    device_curve, shared = {"linear": [*curve[0]], "quadratic": [*curve[1]]}, 0
    for seed in range(30):
        for one in dense_view(seed, nodes_max=0).pending:
            seen = dense_view(seed, nodes_max=0)
            object.__setattr__(seen, "pending", (one,))
            devices = {entry.gpu.device for entry in seen.gpus.values()}
            (decision,) = unfolded(Horus(curves=dict.fromkeys(devices, device_curve)).decide(seen))
            best = best_by_force(seen, one, curve)
            assert (best is not None) is isinstance(decision, Start), decision
            if isinstance(decision, Start):
                assert decision.reason.numbers["cost"] == pytest.approx(best)
                shared += any(seen.gpus[part.gpu_id].job_ids for part in decision.assignments)
    assert shared > 0
