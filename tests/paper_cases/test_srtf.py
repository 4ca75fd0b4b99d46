"""SRTF by hand: SJF of the SJF-BSBF paper (section VI-A2) where running jobs may be stopped."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.decisions import Decision, Hold, Start, Stop, unfolded
from scheduler_service.core.records import Phase, Share
from scheduler_service.policies.srtf import Srtf
from tests.support.engine_play import Play
from tests.support.scheduling import job, node, pending, prediction, running, store, view

STEP_MS = 1_000.0
KNOWN = store([prediction("key", step_ms={(gpus, 1): STEP_MS for gpus in (1, 2, 3)})])


def sized(name: str, steps: int, gpus: int = 1, **changes: Any) -> Any:
    """A job whose every step takes a second."""
    return job(name, key="key", gpus=gpus, global_batch_size=gpus, steps_total=steps, **changes)


def decided(policy: Srtf, **facts: Any) -> list[Decision]:
    return list(unfolded(policy.decide(view(predictions=KNOWN, **facts))))


def reported(decisions: list[Decision]) -> list[tuple[str, str, str]]:
    kinds = {Start: "start", Stop: "stop", Hold: "hold"}
    return [(kinds[type(one)], one.job_id, one.reason.code) for one in decisions]


@pytest.mark.parametrize(
    ("rest_of_running_s", "expected"),
    [
        (100, [("hold", "new", "NO_FREE_GPU")]),
        (159, [("hold", "new", "NO_FREE_GPU")]),
        (160, [("stop", "old", "STOPPED_FOR_SHORTER"), ("hold", "new", "STOPS_LONGER")]),
    ],
)
def test_a_job_is_stopped_for_one_that_ends_a_minute_sooner(
    rest_of_running_s: int, expected: list[tuple[str, str, str]]
) -> None:
    """The new job needs 100 s."""
    old = running(sized("old", 1_000), ["n0.0"], steps_done=1_000 - rest_of_running_s)
    decisions = decided(Srtf(), nodes=[node()], holding=[old], waiting=[pending(sized("new", 100))])
    assert reported(decisions) == expected


def test_the_longest_are_stopped_and_as_few_as_possible() -> None:
    """Two GPUs are wanted: one is free, and of the jobs with 300, 500 and 400 s the longest makes room."""
    holding = [running(sized(f"r{seconds}", seconds), [f"n0.{index}"]) for index, seconds in enumerate((300, 500, 400))]
    decisions = decided(Srtf(), nodes=[node("n0", 4)], holding=holding, waiting=[pending(sized("new", 10, gpus=2))])
    assert reported(decisions) == [("stop", "r500", "STOPPED_FOR_SHORTER"), ("hold", "new", "STOPS_LONGER")]
    assert decisions[1].reason.gpu_ids == ("n0.3", "n0.1")


def test_a_wide_job_makes_room_for_two_short_ones_at_once() -> None:
    holding = [running(sized("wide", 900, gpus=2), ["n0.0", "n0.1"])]
    short = [pending(sized("s1", 10)), pending(sized("s2", 20))]
    decisions = decided(Srtf(), nodes=[node("n0", 2)], holding=holding, waiting=short)
    assert reported(decisions) == [
        ("stop", "wide", "STOPPED_FOR_SHORTER"),
        ("hold", "s1", "STOPS_LONGER"),
        ("hold", "s2", "GPU_RELEASING"),
    ]


def test_gpus_that_are_being_released_are_kept_for_the_shorter_job_and_no_other_is_stopped() -> None:
    holding = [
        running(sized("leaving", 900), ["n0.0"], is_stopping=True),
        running(sized("staying", 30), ["n0.1"]),
    ]
    decisions = decided(
        Srtf(),
        nodes=[node("n0", 2)],
        holding=holding,
        waiting=[pending(sized("short", 10)), pending(sized("long", 500))],
    )
    assert reported(decisions) == [("hold", "short", "GPU_RELEASING"), ("hold", "long", "NO_FREE_GPU")]


def test_where_a_time_is_unknown_no_job_is_stopped() -> None:
    facts = {"nodes": [node()], "waiting": [pending(sized("new", 1))]}
    assert reported(decided(Srtf(), holding=[running(job("old", steps_total=10**6), ["n0.0"])], **facts)) == [
        ("hold", "new", "NO_FREE_GPU")
    ]
    old = running(sized("old", 10**6), ["n0.0"])
    assert reported(decided(Srtf(), nodes=[node()], holding=[old], waiting=[pending(job("new"))])) == [
        ("hold", "new", "NO_FREE_GPU")
    ]


def test_an_aged_job_is_never_stopped() -> None:
    old = running(sized("old", 10**4), ["n0.0"])
    facts = {"nodes": [node()], "holding": [old], "now_ms": 5_000, "waiting": [pending(sized("new", 1), 4_000)]}
    assert reported(decided(Srtf(aging_ms=5_001), **facts))[0] == ("stop", "old", "STOPPED_FOR_SHORTER")
    assert reported(decided(Srtf(aging_ms=5_000), **facts)) == [("hold", "new", "NO_FREE_GPU")]


def test_the_host_that_a_victim_leaves_counts_as_room() -> None:
    machine = node("n0", 1, cpu_cores=4.0)
    old = running(sized("old", 10**4, cpu_cores=3.0), ["n0.0"])
    for cores, first in ((4.0, ("stop", "old", "STOPPED_FOR_SHORTER")), (5.0, ("hold", "new", "NO_FREE_GPU"))):
        waiting = [pending(sized("new", 1, cpu_cores=cores))]
        assert reported(decided(Srtf(), nodes=[machine], holding=[old], waiting=waiting))[0] == first


def test_the_engine_stops_the_longer_job_starts_the_shorter_and_goes_on_with_the_longer() -> None:
    play = Play("srtf")
    play.submit("long", graph="g", key="key", steps_total=1_000, share=Share.NEVER)
    play.tell(events.PredictionArrived, prediction=prediction("key", step_ms={(1, 1): STEP_MS}))
    play.report(events.JobStarted, "long")
    found = play.submit("short", graph="g", key="key", steps_total=10, share=Share.NEVER)
    assert [type(one) for one in found] == [commands.StopJob]
    assert play.phase("long") is Phase.STOPPING
    found = play.report(events.JobStopped, "long", exit_class="checkpointed", exit_code=0, steps_done=40)
    assert [one.job_id for one in found if isinstance(one, commands.LaunchJob)] == ["short"]
    play.report(events.JobStarted, "short")
    found = play.report(events.JobFinished, "short", steps_done=10)
    assert [one.job_id for one in found if isinstance(one, commands.LaunchJob)] == ["long"]
