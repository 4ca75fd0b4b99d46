"""Our Pollux under the artifact's clock: near the published averages, by rules that can be explained."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant_simulator.pollux_rules.cluster import ClusterShape
from cotenant_simulator.pollux_rules.goodput import Goodput, Observation, fit_step_model
from cotenant_simulator.pollux_rules.pollux_packing import Claim, Packing
from cotenant_simulator.pollux_rules.training_job import Allocation
from tests.support.pollux_family import applications, family_folder, simulated_times

DIFFERENCE_MAX_RATIO = 0.03
"""The artifact's own README allows 5 % for its random search; one measured run of it was 1.3 % off."""


def published_averages() -> dict[tuple[str, str], float]:
    """Average completion times of Pollux by load and workload, seconds."""
    with (family_folder() / "published" / "avg_jct.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["policy"] == "pollux"]
    return {(row["load"], row["workload"]): float(row["avg_jct_s"]) for row in rows}


def difference_ratio(load: str, workload: str) -> float:
    times = simulated_times(("pollux", load, workload))
    return sum(times.values()) / len(times) / published_averages()[load, workload] - 1


@pytest.mark.parametrize("workload", ["workload-1", "workload-5"])
def test_a_light_load_ends_within_three_percent_of_the_published_average(workload: str) -> None:
    assert abs(difference_ratio("0.5", workload)) <= DIFFERENCE_MAX_RATIO


@pytest.mark.endurance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("load", ["0.5", "1.0", "1.5", "2.0"])
def test_every_published_run_ends_within_three_percent_of_its_average(load: str) -> None:
    found = {run: difference_ratio(*run) for run in published_averages() if run[0] == load}
    assert len(found) == 7
    assert {run: ratio for run, ratio in found.items() if abs(ratio) > DIFFERENCE_MAX_RATIO} == {}


def seen(
    *configurations: tuple[int, int, int], per_sample_s: float, near: float, far: float, overlap: float
) -> list[Observation]:
    """What a job would measure whose model is exact: fixed 0.1 s, exchange in proportion to the GPUs beyond two."""
    found = []
    for nodes, gpus, samples in configurations:
        pass_s = 0.1 + per_sample_s * samples
        exchange_s = 0.0 if gpus == 1 else (far if nodes > 1 else near) * (1 + 0.1 * (gpus - 2))
        step_s = (pass_s**overlap + exchange_s**overlap) ** (1 / overlap)
        found.append(Observation(nodes, gpus, samples, step_s, step_s - pass_s))
    return found


@pytest.mark.parametrize("overlap", [1.0, 2.0, 5.0])
def test_an_exact_model_is_found_again(overlap: float) -> None:
    shapes = ((1, 1, 8), (1, 1, 16), (1, 2, 8), (1, 3, 12), (1, 4, 16), (2, 6, 8), (2, 8, 16), (4, 16, 12))
    observations = seen(*shapes, per_sample_s=0.01, near=0.05, far=0.2, overlap=overlap)
    model = fit_step_model(observations)
    assert model.overlap == overlap
    found = (model.fixed_s, model.per_sample_s, *model.near, *model.far)
    assert found == pytest.approx((0.1, 0.01, 0.05, 0.005, 0.2, 0.02))


def test_what_was_never_seen_counts_as_free_and_nodes_are_never_nearer_than_gpus() -> None:
    alone = fit_step_model(seen((1, 1, 8), per_sample_s=0.01, near=0.05, far=0.2, overlap=1.0))
    counts = np.array([1.0, 4.0, 16.0])
    assert alone.exchange_s(counts, np.array([False, False, True])).max() < 1e-6
    together = fit_step_model(seen((1, 1, 8), (1, 2, 8), (1, 4, 8), per_sample_s=0.01, near=0.05, far=0.2, overlap=1.0))
    near, far = together.exchange_s(np.array([4.0, 4.0]), np.array([False, True]))
    assert far == pytest.approx(near * 1.1)


def test_the_best_batch_is_the_best_of_a_fine_search() -> None:
    """Against every batch that the bounds allow on so many GPUs, without the coarse steps of the policy."""
    cifar10 = applications()["cifar10"]
    observations = seen(
        (1, 1, 128), (1, 1, 256), (1, 4, 128), (2, 8, 64), per_sample_s=2e-4, near=0.01, far=0.03, overlap=1
    )
    goodput = Goodput(cifar10, fit_step_model(observations), cifar10.gradient(512, 20))
    for gpus in (2, 4, 8, 16):
        is_far = np.array([gpus > 4])
        rate, samples, accumulations = goodput.best(np.array([float(gpus)]), is_far)
        model, (square, variance) = goodput.model, cifar10.gradient(512, 20)
        local = np.arange(max(32, -(-128 // gpus)), min(1024, 4096 // gpus) + 1, dtype=float)
        exchange_s = model.exchange_s(np.full(len(local), float(gpus)), np.repeat(is_far, len(local)))
        gain = (variance + square) / (variance / (gpus * local / 128) + square)
        every = gain / model.step_s(local, np.zeros(len(local)), exchange_s)
        assert rate[0] == pytest.approx(every.max(), rel=0.005)
        assert cifar10.batch_max * 1.01 >= gpus * samples[0] * (accumulations[0] + 1) >= cifar10.initial_batch


def free_after(cluster: ClusterShape, places: list[Allocation]) -> list[int]:
    free = [cluster.gpus_per_node] * cluster.nodes
    for place in places:
        for node, gpus in place:
            free[node] -= gpus
    return free


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_packing_never_overcommits_never_mixes_spanning_jobs_and_never_makes_things_worse(
    data: st.DataObject,
) -> None:
    cluster = ClusterShape(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    claims: list[Claim] = []
    free = [cluster.gpus_per_node] * cluster.nodes
    for _ in range(data.draw(st.integers(1, 6))):
        node, gpus = data.draw(st.integers(0, cluster.nodes - 1)), data.draw(st.integers(0, cluster.gpus_per_node))
        gpus = min(gpus, free[node])
        free[node] -= gpus
        near = [1_000.0, *data.draw(st.lists(st.floats(0.1, 999), min_size=cluster.gpus, max_size=cluster.gpus))]
        claims.append(
            Claim(
                allocation=((node, gpus),) if gpus else (),
                near_costs=near,
                far_costs=[cost * 1.2 for cost in near],
                keep_cost=near[gpus] * 0.9 if gpus else 1_000.0,
            )
        )
    counts = [data.draw(st.integers(0, cluster.gpus)) for _ in claims]
    places = Packing(cluster, claims).place(counts)
    assert min(free_after(cluster, places)) >= 0
    for node in range(cluster.nodes):
        assert sum(len(place) > 1 and any(one == node for one, _ in place) for place in places) <= 1
    before = sum(claim.keep_cost for claim in claims)
    assert sum(claim.cost(place) for claim, place in zip(claims, places, strict=True)) <= before + 1e-9
