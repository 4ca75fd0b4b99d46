"""The bridge beside a real Ray: jobs on planned GPUs, kills, orders, and a search of Tune whose trials share GPUs."""

from __future__ import annotations

import itertools

import pytest

from tests.support.ray_cluster import missing_for_ray, run_in_namespace

pytestmark = [
    pytest.mark.ray,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing_for_ray()), reason=f"missing for Ray: {', '.join(missing_for_ray())}"),
    pytest.mark.timeout(400),
]


def test_jobs_run_on_their_planned_gpus_share_where_they_go_together_and_survive_a_killed_bridge() -> None:
    told = run_in_namespace("tests.support.ray_stories", "sharing", timeout_s=360)
    places = [f"{seen['node']}/{seen['gpu']}" for seen in told["seen"]]
    planned = [note.removeprefix("cotenant placed ").split()[0] for note in told["notes"]]
    for index, (place, plan) in enumerate(zip(places, planned, strict=True)):
        assert index in told["waiting"] or place == plan
    assert len(told["waiting"]) == 1
    together = [
        {first, second}
        for first, second in itertools.combinations(range(6), 2)
        if places[first] == places[second]
        and told["seen"][first]["began_s"] < told["seen"][second]["ended_s"]
        and told["seen"][second]["began_s"] < told["seen"][first]["ended_s"]
    ]
    assert together == [{3, 4}]
    assert told["disagreements"] == []
    weight, gpu, note = told["actor"]
    assert weight == 0.5
    assert note.split()[2].endswith(f"/{gpu}")
    assert told["raised"]
    # Each job says that it takes 20 ms a step and something.
    step_ms = [float(line.split(": ")[1].split(" ms")[0]) for line in told["windows"]]
    assert step_ms
    assert all(20 <= found < 60 for found in step_ms)


def test_orders_end_jobs_or_let_them_wait_again_and_nothing_stays_of_a_killed_driver() -> None:
    told = run_in_namespace("tests.support.ray_stories", "orders", timeout_s=360)
    assert told["begun"] == 2
    assert told["codes"][:2] == [0, 0]
    assert told["codes"][2] != 0
    assert "there is no job nobody" in told["said"]
    assert told["ran_s"] < 19
    assert told["given_back"] == 4


def test_trials_of_tune_share_gpus_and_report_their_losses() -> None:
    told = run_in_namespace("tests.support.ray_stories", "tune", timeout_s=360)
    assert told["errors"] == []
    assert len(told["losses"]) == 4
    assert told["losses"][0] < 1e-9
    assert told["pairs"] == 2
    assert min(told["reports"]) >= 3
