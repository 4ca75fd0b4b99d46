"""Tiresias by hand: the rules of its queues as the Pollux artifact's simulator/tiresias.py has them."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.decisions import Decision, Hold, Start, Stop, unfolded
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.records import Phase, Share
from scheduler_service.policies.tiresias import SIXTEEN_GPU_HOURS_MS, Tiresias
from tests.support.engine_play import Play
from tests.support.scheduling import job, node, pending, prediction, running, view

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS


def decided(policy: Tiresias, **facts: Any) -> list[tuple[str, str, str]]:
    kinds: dict[type[Decision], str] = {Start: "start", Stop: "stop", Hold: "hold"}
    found = unfolded(policy.decide(view(now_ms=NOW_MS, **facts)))
    return [(kinds[type(one)], one.job_id, one.reason.code) for one in found]


def old(name: str, gpu_ids: list[str], run_ms: int, **changes: Any) -> Any:
    """A job that has run since its start, after all others were submitted."""
    request = job(name, gpus=len(gpu_ids), **changes)
    begun_ms, served_ms = NOW_MS - run_ms, run_ms * len(gpu_ids)
    return running(request, gpu_ids, started_at_ms=begun_ms, submitted_at_ms=begun_ms, attained_gpu_ms=served_ms)


@pytest.mark.parametrize(
    ("gpus", "run_ms", "expected"),
    [
        (1, 16 * HOUR_MS - 1, [("hold", "new", "NO_FREE_GPU")]),
        (1, 16 * HOUR_MS, [("stop", "old", "STOPPED_FOR_LESS_SERVED"), ("hold", "new", "STOPS_MORE_SERVED")]),
        (2, 8 * HOUR_MS - 1, [("hold", "new", "NO_FREE_GPU")]),
        (2, 8 * HOUR_MS, [("stop", "old", "STOPPED_FOR_LESS_SERVED"), ("hold", "new", "STOPS_MORE_SERVED")]),
    ],
)
def test_a_job_makes_room_once_it_has_had_sixteen_gpu_hours(
    gpus: int, run_ms: int, expected: list[tuple[str, str, str]]
) -> None:
    """Both dimensions count: on two GPUs the limit is reached in half the time."""
    holder = old("old", [f"n0.{index}" for index in range(gpus)], run_ms)
    waiting = [pending(job("new", gpus=gpus), NOW_MS - 1)]
    assert decided(Tiresias(), nodes=[node("n0", gpus)], holding=[holder], waiting=waiting) == expected


def test_inside_a_queue_the_first_to_come_goes_first_and_takes_gpus_of_later_ones() -> None:
    later = running(job("later"), ["n0.0"], started_at_ms=NOW_MS - HOUR_MS, submitted_at_ms=NOW_MS - HOUR_MS)
    first = pending(job("first"), NOW_MS - 2 * HOUR_MS)
    last = pending(job("last"), NOW_MS - 1)
    assert decided(Tiresias(), nodes=[node()], holding=[later], waiting=[first, last]) == [
        ("stop", "later", "STOPPED_FOR_LESS_SERVED"),
        ("hold", "first", "STOPS_MORE_SERVED"),
        ("hold", "last", "NO_FREE_GPU"),
    ]


def test_a_job_that_does_not_fit_lets_others_pass() -> None:
    waiting = [pending(job("wide", gpus=3), 1), pending(job("narrow"), 2)]
    nodes = [node("n0", 2), node("n1", 2)]
    found = decided(Tiresias(), nodes=nodes, waiting=waiting, nodes_per_job_max=1)
    assert found == [("start", "narrow", "STARTS_ALONE_UNPREDICTED"), ("hold", "wide", "GANG_NEEDS_MORE_NODES")]


def test_the_last_in_the_order_is_stopped_and_no_job_that_just_started() -> None:
    holding = [
        old("much", ["n0.0"], 20 * HOUR_MS),
        old("more", ["n0.1"], 30 * HOUR_MS),
        old("fresh", ["n0.2"], 59_999),
    ]
    waiting = [pending(job("new"), NOW_MS - 70_000)]
    # Both are in the second queue, and there the one that came later is the last.
    assert decided(Tiresias(), nodes=[node("n0", 3)], holding=holding, waiting=waiting)[0][:2] == ("stop", "much")
    holding = [old("fresh", ["n0.0"], 59_999)]
    assert decided(Tiresias(), nodes=[node()], holding=holding, waiting=waiting) == [("hold", "new", "NO_FREE_GPU")]


def test_a_checkpoint_that_costs_much_protects_longer() -> None:
    facts: dict[str, Any] = {"nodes": [node()], "waiting": [pending(job("new"), NOW_MS - 1)]}
    for cost_ms, first in ((HOUR_MS * 16 // 10, "stop"), (HOUR_MS * 16 // 10 + 1, "hold")):
        holder = old("old", ["n0.0"], 16 * HOUR_MS, migration_cost_ms=cost_ms)
        assert decided(Tiresias(), holding=[holder], **facts)[0][0] == first


def test_a_job_that_waited_long_is_promoted_where_the_operator_wants_it() -> None:
    """It has run 20 h and waited 80 h: with a ratio of 4 it is in the first queue again, and it was there first."""
    starved = pending(job("starved"), 0, attained_gpu_ms=20 * HOUR_MS)
    young = old("young", ["n0.0"], HOUR_MS)
    facts: dict[str, Any] = {"nodes": [node()], "holding": [young], "waiting": [starved]}
    assert decided(Tiresias(), **facts) == [("hold", "starved", "NO_FREE_GPU")]
    assert decided(Tiresias(promote_ratio=4.0), **facts)[0] == ("stop", "young", "STOPPED_FOR_LESS_SERVED")
    assert decided(Tiresias(promote_ratio=4.1), **facts) == [("hold", "starved", "NO_FREE_GPU")]


def test_further_queues_have_larger_limits() -> None:
    policy = Tiresias(queues=3, queue_limit_gpu_ms=1_000, queue_growth_ratio=4)
    assert list(policy.limits_gpu_ms) == [1_000, 4_000]
    places = [
        policy.order(view(), pending(job("j"), attained_gpu_ms=served_ms))[0]
        for served_ms in (0, 999, 1_000, 3_999, 4_000)
    ]
    assert places == [0, 0, 1, 1, 2]
    assert list(Tiresias().limits_gpu_ms) == [SIXTEEN_GPU_HOURS_MS]


@pytest.mark.parametrize("wrong", [{"queues": 0}, {"queue_limit_gpu_ms": 0}, {"queue_growth_ratio": 0.5}])
def test_queues_without_a_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyParameterError):
        Tiresias(**wrong)


def test_the_engine_stops_the_served_job_starts_the_new_one_and_goes_on_with_the_old_one() -> None:
    play = Play("tiresias", parameters={"queue_limit_gpu_ms": 60_000, "interval_ms": 0})
    play.submit("old", graph="g", key="key", steps_total=1_000, share=Share.NEVER)
    play.tell(events.PredictionArrived, prediction=prediction("key"))
    play.report(events.JobStarted, "old")
    found = play.tell(
        events.JobSubmitted,
        after_ms=100_000,
        request=job("new", key="key", steps_total=10, share=Share.NEVER),
        graph_sha256="g",
    )
    assert [type(one) for one in found] == [commands.StopJob]
    assert play.phase("old") is Phase.STOPPING
    found = play.report(events.JobStopped, "old", exit_class="checkpointed", exit_code=0, steps_done=40)
    assert [one.job_id for one in found if isinstance(one, commands.LaunchJob)] == ["new"]
    play.report(events.JobStarted, "new")
    found = play.report(events.JobFinished, "new", steps_done=10)
    assert [one.job_id for one in found if isinstance(one, commands.LaunchJob)] == ["old"]
