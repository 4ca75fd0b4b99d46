"""What an engine keeps from event to event for its policies, against the same built from its records."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, build_arrays
from scheduler_service.core.cluster_view.remaining_time_queue import RemainingTimeQueue, Turn
from scheduler_service.core.cluster_view.service_measures import ServiceRules
from scheduler_service.policies.ordering.shortest_first import shortest_first
from scheduler_service.policies.placement.free_gpus import free_by_kind_and_node
from tests.support.cases import for_each
from tests.support.simulated_cluster import SimulatedCluster


def reported(columns: GpuArrays) -> list[tuple[str, str, int, int, bool, list[tuple[str, int]]]]:
    """Return what the arrays say of every GPU."""
    found = []
    for position, gpu_id in enumerate(columns.gpu_ids):
        load = columns.classes[columns.class_of[position]]
        jobs = sorted((one.request.key, one.memory_reserved_bytes) for one in load.residents)
        node_id, memory_bytes = columns.node_ids[columns.node_of[position]], load.gpu.memory_bytes
        found.append((gpu_id, node_id, memory_bytes, load.memory_used_bytes, load.is_releasing, jobs))
    return found


@for_each("seed", range(12), always=4)
@pytest.mark.parametrize("policy", ["horus", "restless"])
def test_kept_arrays_say_what_the_records_say_after_whatever_happened(seed: int, policy: str) -> None:
    world = SimulatedCluster(seed, policy=policy)
    for until_ms in range(1_000, 60_000, 350):
        world.run(until_ms)
        view = world.engine._view(explain=False)
        fresh, own = build_arrays(view), view.index.arrays
        assert reported(own) == reported(fresh)
        assert np.array_equal(own.cpu_free, fresh.cpu_free)
        assert np.array_equal(own.host_memory_free, fresh.host_memory_free)
        assert np.array_equal(own.slots, fresh.slots)


def in_turn(queue: RemainingTimeQueue) -> list[str]:
    """Return every job of a queue by walking through its groups."""
    found: list[Turn] = []
    for group in queue.groups(queue.heads):
        later = next(group.firsts_after(None, lambda _: False), None)
        while later is not None:
            found.append(later[0])
            later = next(group.firsts_after(later[0], lambda _: False), None)
    return [job_id for _, _, job_id in sorted(found)]


@for_each("seed", range(12), always=4)
@pytest.mark.parametrize("policy", ["sjf_bsbf", "restless"])
def test_kept_places_remaining_times_and_turns_say_what_the_records_say(seed: int, policy: str) -> None:
    world = SimulatedCluster(seed, policy=policy)
    lone_seen = waiting_seen = 0
    for until_ms in range(1_000, 60_000, 350):
        world.run(until_ms)
        view = world.engine._view(explain=False)
        plain = replace(view, index=FreshIndex())
        single_job = sorted(plain.index.single_job_gpu_ids)
        assert sorted(view.index.single_job_gpu_ids) == single_job
        assert free_by_kind_and_node(view) == free_by_kind_and_node(plain)
        columns = view.index.arrays
        positions = [columns.position_of[gpu_id] for gpu_id in single_job]
        kept, fresh = view.index.remaining_times, plain.index.remaining_times
        assert np.array_equal(kept.remaining_ms[positions], fresh.remaining_ms[positions])
        names = [view.gpus[gpu_id].job_ids[0] for gpu_id in single_job]
        assert len(set(zip(names, kept.job_of[positions], strict=True))) == len(set(names))
        assert len(set(kept.job_of[positions])) == len(set(names))
        lone_seen += len(single_job)
        queue = view.index.lengths
        assert queue is not None
        assert in_turn(queue) == [job.request.job_id for job in shortest_first(view, 0)]
        waiting_seen += len(list(islice(queue.groups(queue.heads), 2)))
    assert lone_seen + waiting_seen


@for_each("seed", range(24), always=4)
@pytest.mark.parametrize("policy", ["horus", "restless"])
def test_kept_services_say_what_the_records_say_however_seldom_remaining_times_are_read(seed: int, policy: str) -> None:
    world = SimulatedCluster(seed, policy=policy)
    rules, lone_seen = ServiceRules((20_000.0, 60_000.0), 5_000.0, 2.0), 0
    for count, until_ms in enumerate(range(1_000, 60_000, 350)):
        world.run(until_ms)
        view = world.engine._view(explain=False)
        plain = replace(view, index=FreshIndex())
        if count % 3 == 0:  # its reader empties what was noted of GPUs
            assert view.index.service_measures(rules) is not None
        alone = sorted(plain.index.single_job_gpu_ids)
        positions = [view.index.counted_arrays.position_of[gpu_id] for gpu_id in alone]
        kept, fresh = view.index.service_times, plain.index.service_times
        for name in ("attained_gpu_ms", "submitted_at_ms", "started_at_ms", "migration_cost_ms"):
            assert np.array_equal(getattr(kept, name)[positions], getattr(fresh, name)[positions]), name
        if count % 10 == 9:
            left_ms, fresh_ms = view.index.remaining_times.remaining_ms, plain.index.remaining_times.remaining_ms
            assert np.array_equal(left_ms[positions], fresh_ms[positions])
        lone_seen += len(alone)
    assert lone_seen
