"""Pollux by hand: the speedups, penalties and power mean of the Pollux artifact's simulator/pollux.py."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Reshape, Start, unfolded
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.policies.pollux import Pollux
from tests.support.scheduling import job, node, pending, prediction, running, store, view

HOUR_MS = 3_600_000
KNOWN = store(
    [
        # One scales perfectly, the other hardly at all.
        prediction("good", step_ms={(1, 8): 80.0, (2, 4): 40.0, (4, 2): 20.0}),
        prediction("poor", step_ms={(1, 8): 80.0, (2, 4): 72.0, (4, 2): 70.0}),
    ]
)


def elastic(name: str, key: str, **changes: Any) -> Any:
    return job(name, key=key, global_batch_size=8, **{"gpus": 4, "allowed_gpus": (1, 2, 4), **changes})


def decided(policy: Pollux, now: SchedulingView) -> list[Decision]:
    decisions = list(unfolded(policy.decide(now)))
    assert check_plan(now, {one.request.job_id: one for one in now.pending}, decisions).rejections == ()
    return decisions


def counts(policy: Pollux, **facts: Any) -> dict[str, int]:
    now = view(predictions=KNOWN, nodes_per_job_max=1, **facts)
    return {one.job_id: len(one.assignments) for one in decided(policy, now) if isinstance(one, Start | Reshape)}


def test_gpus_are_shared_evenly_and_what_is_left_goes_where_it_still_helps() -> None:
    """Of six GPUs the job that scales gets four; of four each gets two."""
    facts: dict[str, Any] = {
        "nodes": [node("n0", 4), node("n1", 2)],
        "waiting": [pending(elastic("a", "good")), pending(elastic("b", "poor"))],
    }
    assert counts(Pollux(), **facts) == {"a": 4, "b": 2}
    facts["nodes"] = [node("n0", 4)]
    assert counts(Pollux(), **facts) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        # Fair share 2. (1, 2): 0.5 and 1; (2, 1): 1 and 0.9.
        (-1.0, {"a": 2, "b": 1}),
        (0.0, {"a": 2, "b": 1}),
        (1.0, {"a": 2, "b": 1}),
    ],
)
def test_the_gpu_that_helps_one_more_goes_there_whatever_the_power(power: float, expected: dict[str, int]) -> None:
    facts: dict[str, Any] = {
        "nodes": [node("n0", 3)],
        "waiting": [pending(elastic("a", "good")), pending(elastic("b", "poor"))],
    }
    assert counts(Pollux(fairness_power=power), **facts) == expected


@pytest.mark.parametrize(
    ("age_ms", "attempts", "expected"),
    [
        # Four GPUs instead of two double the speed; a restart costs 30 s: 2 x (age - 30 s x restarts) / (age + 30 s).
        (61_000, 1, 4),
        (91_000, 2, 4),
        (91_000, 3, None),
        (151_000, 3, 4),
    ],
)
def test_a_restart_must_be_worth_its_pause(age_ms: int, attempts: int, expected: int | None) -> None:
    one = running(
        elastic("a", "good"), ["n0.0", "n0.1"], attempt=attempts, submitted_at_ms=HOUR_MS - age_ms, started_at_ms=0
    )
    found = counts(Pollux(), now_ms=HOUR_MS, nodes=[node("n0", 4)], holding=[one])
    assert found.get("a") == expected


def test_a_job_doubles_at_most_and_starts_with_what_it_asked_for_at_most() -> None:
    one = running(elastic("a", "good"), ["n0.0"], submitted_at_ms=0, started_at_ms=0)
    assert counts(Pollux(), now_ms=HOUR_MS, nodes=[node("n0", 4)], holding=[one]) == {"a": 2}
    waiting = [pending(elastic("b", "good", gpus=2))]
    assert counts(Pollux(), nodes=[node("n0", 4)], waiting=waiting) == {"b": 2}


def test_a_running_job_shrinks_for_incoming_jobs_and_the_last_to_come_waits() -> None:
    one = running(elastic("a", "good"), ["n0.0", "n0.1"], submitted_at_ms=0, started_at_ms=0)
    now = view(
        now_ms=HOUR_MS,
        nodes=[node("n0", 2)],
        holding=[one],
        waiting=[pending(elastic("b", "good"), 1), pending(elastic("c", "good"), 2)],
        predictions=KNOWN,
        nodes_per_job_max=1,
    )
    found = [(type(one), one.job_id, one.reason.code) for one in decided(Pollux(), now)]
    assert found == [
        (Reshape, "a", "RESHAPED_TO_SHARE"),
        (Hold, "b", "NO_FREE_GPU"),
        (Hold, "c", "OTHERS_GAIN_MORE"),
    ]


def test_a_job_without_a_profile_gets_what_it_asked_for_and_keeps_it() -> None:
    waiting = [pending(elastic("a", "unknown", gpus=2))]
    assert counts(Pollux(), nodes=[node("n0", 4)], waiting=waiting) == {"a": 2}
    one = running(elastic("a", "unknown"), ["n0.0"], submitted_at_ms=0, started_at_ms=0)
    assert counts(Pollux(), now_ms=HOUR_MS, nodes=[node("n0", 4)], holding=[one]) == {}


def test_where_jobs_cannot_be_moved_no_job_is_reshaped() -> None:
    one = running(elastic("a", "good"), ["n0.0"], submitted_at_ms=0, started_at_ms=0)
    assert counts(Pollux(), now_ms=HOUR_MS, nodes=[node("n0", 4)], holding=[one], can_move=False) == {}


@pytest.mark.parametrize("wrong", [{"growth_max_ratio": 0.5}, {"fairness_power": 2.0}, {"interval_ms": 0}])
def test_values_without_a_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyParameterError):
        Pollux(**wrong)
