"""Packing with arrays against packing that looks at every GPU: the same starts, and the same words for waiting jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.large_clusters import LargeCluster
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, unfolded
from scheduler_service.policies.packing import ojpp_packing
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.crowds import dense_view, shared_view
from tests.support.packing import random_instance

POLICIES = ("ojpp", "ojpp_greedy", "best_fit", "i_greedy", "b_greedy", "c_greedy")


def both(name: str, view: SchedulingView) -> list[list[Decision]]:
    found = []
    for least in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ojpp_packing, "GPUS_IN_ARRAYS_MIN", least)
            found.append(list(unfolded(make_policy(name, {}).decide(view))))
    return found


@for_each("name", POLICIES)
@for_each("seed", range(25), always=4)
def test_on_densely_shared_clusters_columns_change_nothing(name: str, seed: int) -> None:
    with_columns, without = both(name, dense_view(seed, nodes_max=0))
    assert with_columns == without


@for_each("name", POLICIES)
@for_each("seed", range(25), always=4)
def test_where_several_share_a_gpu_columns_change_nothing(name: str, seed: int) -> None:
    with_columns, without = both(name, shared_view(seed))
    assert with_columns == without


@for_each("name", POLICIES)
@for_each("seed", range(25), always=4)
def test_on_packing_instances_columns_change_nothing(name: str, seed: int) -> None:
    view = random_instance(seed, jobs_max=12, workers_max=3, gpus=8).view()
    with_columns, without = both(name, replace(view, nodes_per_job_max=0))
    assert with_columns == without


@for_each("seed", range(6), always=1)
def test_on_a_larger_cluster_columns_change_nothing(seed: int) -> None:
    cluster = LargeCluster(
        nodes=6, pending=40, gangs=(1, 2, 3, 5), families=8, running_ratio=0.3, nodes_per_job_max=0, seed=seed
    )
    with_columns, without = both("ojpp", cluster.view())
    assert with_columns == without
