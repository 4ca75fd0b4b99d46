"""The columns that an engine keeps from event to event, against columns built from its records."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_service.core.gpu_columns import GpuColumns, build_columns, columns_of
from tests.support.simulated_cluster import SimulatedCluster


def told(columns: GpuColumns) -> list[tuple[str, str, int, int, bool, list[tuple[str, int]]]]:
    """Return what the columns say of every GPU."""
    found = []
    for position, gpu_id in enumerate(columns.gpu_ids):
        load = columns.classes[columns.class_of[position]]
        jobs = sorted((one.request.key, one.memory_reserved_bytes) for one in load.residents)
        node_id, memory_bytes = columns.node_ids[columns.node_of[position]], load.gpu.memory_bytes
        found.append((gpu_id, node_id, memory_bytes, load.memory_used_bytes, load.is_releasing, jobs))
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("policy", ["horus", "restless"])
def test_kept_columns_say_what_the_records_say_after_whatever_happened(seed: int, policy: str) -> None:
    world = SimulatedCluster(seed, policy=policy)
    for until_ms in range(1_000, 90_000, 3_000):
        world.run(until_ms)
        view = world.engine._view(explain=False)
        fresh, own = build_columns(view), columns_of(view)
        assert told(own) == told(fresh)
        assert np.array_equal(own.cpu_free, fresh.cpu_free)
        assert np.array_equal(own.host_memory_free, fresh.host_memory_free)
        assert np.array_equal(own.slots, fresh.slots)
