"""The GPUs of a snapshot, laid out by the columns that were read, against what their records give."""

from __future__ import annotations

import numpy as np

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.cluster_view.empty_cluster import EmptyCluster
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns
from scheduler_service.grpc_api.snapshots.snapshot_nodes import read_nodes
from tests.support.cases import for_each

GIB = 2**30


def nodes(*, reverse: bool) -> list[scheduling_pb2.SnapshotNode]:
    """Six nodes of two kinds of GPUs, of which one takes no jobs and others have sick GPUs."""
    made = []
    for number in range(6):
        node = scheduling_pb2.SnapshotNode(node_id=f"n{number}", schedulable=number != 3, rack_id=f"r{number % 2}")
        if number % 2:
            node.cpu_cores, node.host_memory_bytes = 8 * number, number * GIB
        for index in range(4):
            device = "A10" if (number + index) % 3 else "V100"
            healthy = (number, index) not in {(0, 0), (4, 2)}
            node.gpus.add(gpu_id=f"n{number}.{index}", device=device, memory_bytes=24 * GIB, healthy=healthy)
        made.append(node)
    return made[::-1] if reverse else made


@for_each("reverse", [False, True])
def test_columns_lay_gpus_out_as_their_records_do(reverse: bool) -> None:
    found = read_nodes(RowColumns(nodes(reverse=reverse))).empty
    expected = EmptyCluster(found.gpus, found.nodes)
    assert found.inventory == expected.inventory
    assert [*found.inventory.count] == [*expected.inventory.count]
    for name in ("gpu_ids", "node_ids", "position_of"):
        assert getattr(found.arrays, name) == getattr(expected.arrays, name), name
    for name in ("node_of", "kind_of", "rack_of", "slots", "class_of", "cpu_free", "host_memory_free"):
        assert np.array_equal(getattr(found.arrays, name), getattr(expected.arrays, name)), name


def test_the_order_of_nodes_changes_no_position() -> None:
    ascending, descending = (read_nodes(RowColumns(nodes(reverse=reverse))).empty for reverse in (False, True))
    assert ascending.arrays.gpu_ids == descending.arrays.gpu_ids
    assert len(ascending.arrays.gpu_ids) == 18  # of 24: four on a closed node, two sick
    assert ascending.arrays.cpu_free.tolist() == [np.inf, 8, np.inf, np.inf, 40]
    assert ascending.inventory.most_on_node == {("A10", 24 * GIB): 3, ("V100", 24 * GIB): 1}


def test_an_empty_snapshot_has_no_gpus() -> None:
    found = read_nodes(RowColumns([])).empty
    assert not found.arrays.gpu_ids
    assert not found.inventory.count
