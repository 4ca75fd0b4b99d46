"""Errors that are injected into predictions, and what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.wrong_predictions import (
    BLIND,
    CHOOSING,
    CONSENT,
    COUNTS,
    WORKLOAD,
    TimeErrors,
    measure,
    stay,
    with_counts,
    with_slowdowns,
)
from cotenant_simulator.readers.generated import draw
from cotenant_simulator.truth.predictions import TwoPointErrors
from scheduler_service.policy_registry import POLICIES


def test_errors_of_times_leave_memory_and_utilization_as_they_are() -> None:
    errors = TimeErrors(errors=TwoPointErrors(error_ratio=0.4, seed=0))
    assert {errors.factor(f"step/{name}") for name in range(20)} == {0.6, 1.4}
    assert {errors.factor(f"memory/{name}") for name in range(20)} == {1.0}
    assert errors.memory_bound_ratio == 1.0


def test_every_policy_named_exists_and_none_that_chooses_counts_is_called_blind() -> None:
    assert set(BLIND) | set(CHOOSING) <= set(POLICIES)
    assert not set(BLIND) & set(CHOOSING)


def test_every_count_is_open_and_the_job_s_own_speed_stays() -> None:
    drawn = with_slowdowns(draw(Path("drawn"), {**WORKLOAD, "jobs": 20}, CONSENT, seed=0), 0)
    open_ = with_counts(drawn)
    for (key, device), kind in drawn.truth.kinds.items():
        ((gpus, step_ms),) = kind.step_ms_by_gpus.items()
        found = open_.truth.kinds[key, device].step_ms_by_gpus
        assert found[gpus] == pytest.approx(step_ms)
        assert list(found.values()) == sorted(found.values(), reverse=True)
    assert all(job.request.allowed_gpus == COUNTS for job in open_.jobs)
    slowdowns = drawn.truth.slowdowns.values()
    assert len(set(slowdowns)) > 4
    assert max(slowdowns) <= 0.8


def test_wrong_times_cost_sjf_something_and_a_blind_policy_nothing() -> None:
    assert (
        stay("tiresias", 0.6, "times", jobs=40, seed=1).mean_s == stay("tiresias", 0.0, "times", jobs=40, seed=1).mean_s
    )
    figures = measure("sjf", jobs=40, seeds=2, wrong=["times"])
    errors = figures["errors"]
    assert isinstance(errors, list)
    assert [row["unfinished_jobs"] for row in errors] == [0] * len(errors)
    assert errors[-1]["regret_ratio"] > 0
    assert errors[-1]["regret_95_ratio"][0] <= errors[-1]["regret_ratio"] <= errors[-1]["regret_95_ratio"][1]
