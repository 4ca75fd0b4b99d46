"""What ends at one simulated instant is decided upon once, as a live batch is."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant_simulator.run.event_queue import EventPriority, EventQueue
from cotenant_simulator.run.records import OverheadCosts
from scheduler_service.core.commands import Command, LaunchJob
from scheduler_service.core.events import Event, JobFinished, JobProgressed, JobStopped, NodeJoined, TimerFired
from tests.support.scheduling import node
from tests.support.simulated_runs import ends_s, run, simulation, trace_job, trace_of


class Turned:
    """An attempt in the queue."""

    turn = 1


def test_an_end_that_was_given_up_is_no_further_end_of_its_instant() -> None:
    queue, attempt = EventQueue(), Turned()
    for at_ms, rank, turn in ((5, EventPriority.END, 0), (5, EventPriority.END, 1), (6, EventPriority.END, 1)):
        queue.add(at_ms, rank, lambda _: None, (attempt, turn))
    queue.add(5, EventPriority.START, lambda _: None, None)
    assert queue.has_end_at(5)
    assert queue.count(EventPriority.END) == 2
    assert queue.pop()[2] == (attempt, 1)
    assert not queue.has_end_at(5)
    queue.pop()
    assert (queue.has_end_at(5), queue.has_end_at(6)) == (False, True)


def test_of_two_jobs_that_end_at_once_the_gpus_go_to_the_wide_job_that_is_shorter() -> None:
    jobs = [trace_job("one"), trace_job("two"), trace_job("narrow", at_s=1, seconds=50)]
    jobs.append(trace_job("wide", at_s=1, seconds=10, gpus=2))
    seen: list[tuple[JobFinished, list[str]]] = []

    def note(event: Event, orders: Sequence[Command]) -> None:
        if isinstance(event, JobFinished):
            seen.append((event, [order.job_id for order in orders if isinstance(order, LaunchJob)]))

    found = run(trace_of(*jobs), policy="sjf", cluster="1x2", observe=note)
    assert [(event.job_id, event.is_followed, launched) for event, launched in seen[:2]] == [
        ("one", True, []),
        ("two", False, ["wide"]),
    ]
    assert ends_s(found) == {"one": 100.0, "two": 100.0, "wide": 110.0, "narrow": 160.0}


def test_the_victims_of_one_preemption_that_leave_at_one_instant_are_decided_upon_once() -> None:
    charges = OverheadCosts(launch_ms=0, restart_ms=0, checkpoint_ms=10_000, checkpoint_interval_ms=0)
    jobs = [trace_job(f"long-{n}", seconds=1_000) for n in range(4)]
    jobs.append(trace_job("wide", at_s=50, seconds=10, gpus=4))
    stopped: list[bool] = []
    timers: list[Event] = []

    def note(event: Event, orders: Sequence[Command]) -> None:
        if isinstance(event, JobStopped):
            stopped.append(event.is_followed)
        elif isinstance(event, TimerFired):
            timers.append(event)

    found = run(trace_of(*jobs), policy="srtf", cluster="1x4", charges=charges, observe=note)
    assert stopped == [True, True, True, False]
    assert ends_s(found)["wide"] == 70.0
    assert sum(found.held_reasons.values()) == 5
    assert not [timer for timer in timers if timer.is_followed]


def test_what_a_neighbour_reports_as_a_job_leaves_is_decided_upon_with_its_end() -> None:
    seen: list[tuple[str, str, bool]] = []

    def note(event: Event, orders: Sequence[Command]) -> None:
        if event.at_ms == 90_000 and isinstance(event, JobProgressed | JobFinished):
            seen.append((type(event).__name__, event.job_id, event.is_followed))

    trace = trace_of(trace_job("long", seconds=100), trace_job("short", seconds=60), slowdown_ratio=0.5)
    assert ends_s(run(trace, policy="obp", observe=note))["short"] == 90.0
    assert seen == [("JobProgressed", "long", True), ("JobFinished", "short", False)]


def test_a_job_that_left_for_nothing_and_starts_again_at_its_instant_waits_for_no_reason() -> None:
    charges = OverheadCosts(launch_ms=0, restart_ms=0, checkpoint_ms=10_000, checkpoint_interval_ms=0)
    jobs = [trace_job("single", seconds=2_000), trace_job("gang", seconds=1_000, gpus=2)]
    jobs.append(trace_job("short", at_s=50, seconds=10, gpus=2))
    found = run(trace_of(*jobs), policy="srtf", cluster="1x3", charges=charges)
    # The gang's two GPUs are what the short job needs; the single one goes on with the third in the same decision.
    assert ends_s(found) == {"single": 2_010.0, "gang": 1_020.0, "short": 70.0}
    assert found.held_reasons == {"NO_FREE_GPU": 1, "STOPS_LONGER": 1}


def test_whatever_a_fact_was_said_to_be_followed_by_nothing_stays_undecided_beyond_its_instant() -> None:
    told: list[str] = []
    made = simulation(trace_of(), observe=lambda event, _: told.append(type(event).__name__))
    state = made._simulation
    state.tell(NodeJoined(at_ms=0, node=node(), is_followed=True))
    put_off = [made.engine.state.put_off is not None]
    for _ in range(2):
        state.end_appointment()
        put_off.append(made.engine.state.put_off is not None)
    assert put_off == [True, False, False]
    assert told == ["NodeJoined", "TimerFired"]
