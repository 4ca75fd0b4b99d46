"""What a decision before a long queue of several tenants and classes looks at, in calls of functions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import CodeType, FrameType

import pytest

from benchmarks import team_queue
from scheduler_service.core import events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.queue.reservations import KeptEnds, expected_end
from scheduler_service.core.records import Phase
from scheduler_service.policies.placement.horus_placement import HorusPlacement
from scheduler_service.policies.placement.long_running import LongRunning

DECISIONS = 12


@pytest.fixture(autouse=True)
def few_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every lane has jobs of every family and width, however short its queue."""
    monkeypatch.setattr(team_queue, "FAMILIES", 3)


def ends(engine: SchedulerEngine) -> Iterator[events.JobFinished]:
    """Yield the ends of jobs of one GPU, the oldest first, a second apart."""
    for _ in range(DECISIONS):
        at_ms = engine.state.now_ms + 1_000
        jobs = (engine.state.jobs[job_id] for job_id in engine.state.in_phase(Phase.STARTING))
        job = next(one for one in jobs if one.request.gpus == 1)
        yield events.JobFinished(
            at_ms=at_ms, job_id=job.job_id, attempt=job.attempt, fence=job.fence, steps_done=job.request.steps_total
        )


def calls_of_decisions(engine: SchedulerEngine) -> Counter[CodeType]:
    """Return how often each function was called while jobs ended, once the first ends have passed."""
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    for number, end in enumerate(ends(engine)):
        sys.setprofile(note if number >= DECISIONS // 2 else None)
        try:
            engine.handle(end)
        finally:
            sys.setprofile(None)
    assert len(engine.state.in_phase(Phase.PENDING)) == sum(
        job_id in engine.state.decisions for job_id in engine.state.in_phase(Phase.PENDING)
    )
    return calls


@pytest.mark.parametrize("policy", ["srtf", "horus"])
def test_a_queue_five_times_as_long_costs_a_decision_no_more_calls(policy: str) -> None:
    short, long = (
        calls_of_decisions(team_queue.fill(policy, pending=pending, with_layer=True)).total()
        for pending in (800, 4_000)
    )
    assert long <= 1.15 * short


def test_horus_looks_at_all_load_classes_only_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = team_queue.fill("horus", pending=400, with_layer=True)
    calls = calls_of_decisions(engine)
    assert calls[HorusPlacement.place.__code__] > 100
    assert calls[HorusPlacement._nearest_known.__code__] == 0


def test_jobs_that_make_no_room_are_not_looked_at_where_most_make_none() -> None:
    engine = team_queue.fill("srtf", pending=400, with_layer=True)
    calls = calls_of_decisions(engine)
    rounds, jobs = calls[LongRunning.__init__.__code__], calls[type(engine.state.running).__getitem__.__code__]
    assert rounds > 0
    assert jobs / rounds < len(engine.state.running) / 2


def test_the_ends_of_running_jobs_are_foreseen_once_until_more_is_reported_of_them() -> None:
    engine = team_queue.fill("srtf", pending=400, with_layer=True)
    calls = calls_of_decisions(engine)
    assert calls[KeptEnds.find.__code__] > len(engine.state.running)
    assert calls[expected_end.__code__] < len(engine.state.running) / 10
