"""What is found on top of a cluster that is known empty, against what is found in the records of the view: equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.empty_cluster import EmptyCluster
from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays
from scheduler_service.core.cluster_view.view import GpuView, SchedulingView
from tests.support.cases import for_each
from tests.support.crowds import dense_view, full_view


def on_top_of_empty(view: SchedulingView) -> SchedulingView:
    """The same view, whose GPUs without jobs are those of the empty cluster."""
    gpus = {gpu_id: GpuView(gpu=entry.gpu, node_id=entry.node_id) for gpu_id, entry in view.gpus.items()}
    seen = {gpu_id: gpus[gpu_id] if entry == gpus[gpu_id] else entry for gpu_id, entry in view.gpus.items()}
    return replace(view, gpus=seen, index=FreshIndex(empty=EmptyCluster(gpus, view.nodes)))


def with_some_closed(view: SchedulingView, seed: int) -> SchedulingView:
    """The same view, some of whose GPUs are releasing, with jobs or without."""
    closed = {gpu_id for place, gpu_id in enumerate(view.gpus) if place % 5 == seed % 5}
    gpus = {name: replace(entry, is_releasing=name in closed) for name, entry in view.gpus.items()}
    return replace(view, gpus=gpus)


def loads(arrays: GpuArrays) -> list[tuple[object, ...]]:
    classes = [arrays.classes[number] for number in arrays.class_of]
    return [
        (one.gpu.device, one.gpu.memory_bytes, one.residents, one.memory_used_bytes, one.is_releasing)
        for one in classes
    ]


@for_each("seed", range(12))
@for_each("make_view", [dense_view, full_view])
def test_a_view_on_a_known_cluster_has_the_same_index(make_view: object, seed: int) -> None:
    view = with_some_closed(make_view(seed), seed)  # type: ignore[operator]
    fresh, known = replace(view, index=FreshIndex()), on_top_of_empty(view)
    expected, found = fresh.index, known.index
    for name in ("free_gpu_ids", "single_job_gpu_ids", "inventory"):
        assert getattr(found, name) == getattr(expected, name), name
    # A kind without a free GPU may be there, as in the index that the engine keeps.
    assert {kind: places for kind, places in found.free_places.items() if places} == expected.free_places
    assert loads(found.arrays) == loads(expected.arrays)
    for name in ("class_of", "jobs_on", "cpu_free", "host_memory_free", "node_of", "kind_of", "slots"):
        assert np.array_equal(getattr(found.arrays, name), getattr(expected.arrays, name)), name


@for_each("seed", range(4))
def test_a_view_changes_nothing_of_the_empty_cluster(seed: int) -> None:
    view = dense_view(seed)
    first = on_top_of_empty(view)
    classes = len(first.index.arrays.classes)
    again = replace(view, gpus=dict(first.gpus), index=first.index)
    assert len(again.index.arrays.classes) == classes
    assert again.index.free_gpu_ids == first.index.free_gpu_ids


def test_a_part_of_a_known_cluster_is_found_in_its_own_records() -> None:
    whole = on_top_of_empty(full_view(0))
    part = replace(whole, gpus=dict([*whole.gpus.items()][:3]))
    assert sum(part.index.inventory.count.values()) == len(part.index.arrays.gpu_ids) == 3
