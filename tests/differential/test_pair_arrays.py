"""SJF-BSBF with arrays against SJF-BSBF that looks at every GPU: the same starts."""

from __future__ import annotations

import pytest

from benchmarks.large_clusters import LargeCluster
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.policies.pairing import sjf_sharing
from scheduler_service.policies.sjf_bsbf import SjfBsbf
from tests.support.cases import for_each
from tests.support.crowds import dense_view, starts
from tests.support.ruler_instances import SharingInstance


def both(view: SchedulingView) -> list[list[object]]:
    found: list[list[object]] = []
    for least in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sjf_sharing, "GPUS_IN_ARRAYS_MIN", least)
            found.append(list(starts(SjfBsbf().decide(view))))
    return found


@for_each("nodes_max", [0, 1])
@for_each("seed", range(60))
def test_on_densely_shared_clusters_columns_change_no_start(seed: int, nodes_max: int) -> None:
    with_columns, without = both(dense_view(seed, nodes_max=nodes_max))
    assert with_columns == without


@for_each("seed", range(60))
def test_on_sharing_instances_columns_change_no_start(seed: int) -> None:
    with_columns, without = both(SharingInstance.drawn(seed).view())
    assert with_columns == without


@for_each("seed", range(8))
def test_on_a_larger_cluster_columns_change_no_start(seed: int) -> None:
    cluster = LargeCluster(nodes=12, pending=25, running_ratio=0.9, families=6, seed=seed)
    with_columns, without = both(cluster.view())
    assert with_columns == without
    assert with_columns
