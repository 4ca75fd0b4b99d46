"""The bridge beside a real Ray: jobs on planned GPUs, kills, orders, and a search of Tune whose trials share GPUs."""

from __future__ import annotations

import itertools
import re

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
    code, said = told["left"]
    assert code == 0, said
    assert "has left the Ray cluster" in said


def test_trials_of_tune_share_gpus_and_report_their_losses() -> None:
    told = run_in_namespace("tests.support.ray_stories", "tune", timeout_s=360)
    assert told["errors"] == []
    assert len(told["losses"]) == 4
    assert told["losses"][0] < 1e-9
    assert told["pairs"] == 2
    assert min(told["reports"]) >= 3


def test_two_jobs_that_ray_placed_are_measured_as_they_measure_themselves() -> None:
    rows = run_in_namespace("tests.support.ray_stories", "observed", timeout_s=390)["rows"]
    ids = {row["name"]: row["job_id"] for row in rows}
    assert all(re.fullmatch(r"ray/[0-9a-f]{8}\.[0-9]+", job_id) for job_id in ids.values())
    assert len({job_id.partition(".")[0] for job_id in ids.values()}) == 2
    assert not any(row["is_by_period"] for row in rows)
    long = [row for row in rows if row["window_ms"] >= 60_000]
    assert all(row["step_ms"] == pytest.approx(row["own_step_ms"], rel=0.1) for row in long)
    [alone] = [row for row in long if not row["co_located_job_ids"]]
    [together] = [row for row in long if row["name"] == "first" and row["co_located_job_ids"] == [ids["second"]]]
    assert [row["co_located_job_ids"] for row in long if row["name"] == "second"] == [[ids["first"]]]
    own_slowdown_ratio = together["own_step_ms"] / alone["own_step_ms"] - 1
    assert together["slowdown_ratio"] == pytest.approx(own_slowdown_ratio, rel=0.1)


def test_what_the_page_says_to_type_runs_as_it_is_printed() -> None:
    told = run_in_namespace("tests.support.ray_stories", "page", timeout_s=390)
    assert told["codes"] == [0] * len(told["codes"]), told["said"]
    assert len(told["codes"]) == 2
    assert told["result"] == 1.0
    # Four tasks, four trials, and the task and the actor of the page's own program.
    assert told["placed"] == 10
