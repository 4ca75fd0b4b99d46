"""The table that chooses the default policy: its ratios, its ties, what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.default_policy import WORKLOADS, compare, geometric_means
from cotenant.default_policy import DEFAULT_POLICY
from cotenant_simulator.readers.rows import read_header
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO
from tests.support.cases import for_each
from tests.support.shared_data import shared_data


def a_run(ratio: float | None, stopped: int = 0) -> dict[str, object]:
    return {"over_best_ratio": ratio, "stopped": stopped, "moved": 0, "unfinished": 0}


def test_policies_are_ordered_by_the_geometric_mean_and_one_without_a_run_has_none() -> None:
    runs: list[dict[str, Any]] = [
        {"policies": {"sjf": a_run(1.0), "fifo": a_run(4.0), "srtf": a_run(0.8, 3), "ojpp": None}},
        {"policies": {"sjf": a_run(1.21), "fifo": a_run(1.0), "srtf": a_run(0.8, 4), "ojpp": a_run(1.0)}},
    ]
    means = geometric_means(runs, ["fifo", "ojpp", "sjf", "srtf"])
    assert list(means) == ["srtf", "sjf", "fifo", "ojpp"]
    assert [means[name]["geometric_mean_ratio"] for name in means] == [0.8, 1.1, 2.0, None]
    assert means["srtf"]["never_touches_running"] is False
    assert (means["srtf"]["stopped_or_moved"], means["fifo"]["worst_ratio"]) == (7, 4.0)


@pytest.mark.endurance
def test_a_workload_with_pairs_of_its_own_puts_the_default_first_and_ties_what_is_alike() -> None:
    question = {"seed": 0, "predictions": "oracle", "consent_ratio": DEFAULT_MAX_SLOWDOWN_RATIO}
    found = compare("drawn_pairs", [DEFAULT_POLICY, "sjf", "tetris"], **question)  # type: ignore[arg-type]
    ratios = {name: run["over_best_ratio"] for name, run in found["policies"].items()}
    assert ratios[DEFAULT_POLICY] == 1.0 < ratios["sjf"]
    assert found["tied"] == [["sjf", "tetris"]]


@for_each("name", sorted(name for name, workload in WORKLOADS.items() if workload.files))
def test_every_list_of_the_table_is_there(name: str) -> None:
    for file in WORKLOADS[name].files:
        assert read_header(Path(shared_data("traces", *file.split("/"))))
