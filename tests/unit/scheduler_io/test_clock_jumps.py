"""A clock that ran ahead for a while leaves no times ahead for ever, and no order turned round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import grpc
import pytest

from cotenant.v1 import scheduling_pb2, scheduling_pb2_grpc
from scheduler_service.adapters.storage.clock_healing import (
    EARLIEST_WALL_MS,
    LEAD_MAX_MS,
    heal_clock,
    is_instant,
    set_back,
)
from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.recovery import Recovered, recover
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.core import events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.engine_snapshot import StoredState
from scheduler_service.core.records import JobRequest, Phase
from scheduler_service.errors import StateFullError
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.live_loop import MemoryEventLog
from tests.support.live_scheduler import running_scheduler
from tests.support.scheduling import node

NOW_MS = EARLIEST_WALL_MS + 10**9
JUMP_MS = 9_600 * 3_600_000


def restored(state: Mapping[str, Any]) -> SchedulerEngine:
    return SchedulerEngine.restore(state, make_policy=make_policy)


def story(*, jump_ms: int) -> list[events.Event]:
    """Two jobs before the jump, three after it: job-2 waits since before, job-3 to job-5 since after."""

    def submitted(number: int, at_ms: int) -> events.Event:
        return events.JobSubmitted(at_ms=at_ms, request=JobRequest(job_id=f"job-{number}", steps_total=10))

    begun = NOW_MS - 100_000
    return [
        events.PolicyChosen(at_ms=begun, policy="fifo"),
        events.NodeJoined(at_ms=begun, node=node("n0", 1)),
        submitted(1, begun + 1_000),
        submitted(2, begun + 2_000),
        events.JobStarted(at_ms=begun + 50_000 + jump_ms, job_id="job-1", attempt=1, fence=1),
        *(submitted(number, begun + 50_000 + jump_ms + 1_000 * number) for number in (3, 4, 5)),
    ]


def recovered(log: Any) -> Recovered:
    return recover(
        log, new_engine=lambda: SchedulerEngine(make_policy=make_policy, policy="fifo"), restored_engine=restored
    )


def log_of(story: list[events.Event]) -> MemoryEventLog:
    log = MemoryEventLog()
    log.append([LogRecord(event=event) for event in story])
    return log


def healed(log: MemoryEventLog, *, wall_ms: int = NOW_MS) -> Recovered:
    return heal_clock(log, recovered(log), wall_ms=wall_ms, retained_events=100, restored_engine=restored)


def test_times_after_a_forward_jump_come_back_and_keep_their_order_and_distances() -> None:
    log = log_of(story(jump_ms=JUMP_MS))
    engine = healed(log).engine
    state = engine.state
    assert state.now_ms == NOW_MS
    waiting = [job.request.job_id for job in state.waiting.ready_jobs()]
    assert waiting == ["job-2", "job-3", "job-4", "job-5"]
    at_ms = [state.jobs[f"job-{number}"].times.submitted_at_ms for number in range(1, 6)]
    # Those before the jump stay; the last event is now, and those after the jump lie as far apart as they did.
    assert at_ms == [NOW_MS - 99_000, NOW_MS - 98_000, NOW_MS - 2_000, NOW_MS - 1_000, NOW_MS]
    assert all(line.at_ms <= NOW_MS for job in state.jobs.values() for line in job.history)
    # What comes next is stored with the right time, and a start after a crash finds the same.
    log.append([LogRecord(event=events.JobCancelled(at_ms=NOW_MS + 5, job_id="job-5"))])
    again = recovered(log)
    assert again.engine.state.now_ms == NOW_MS + 5
    assert again.engine.state.jobs["job-5"].times.finished_at_ms == NOW_MS + 5


def test_a_disk_that_refuses_the_moved_state_only_postpones_it() -> None:
    class Full(MemoryEventLog):
        def store_snapshot(self, *_: Any, **__: Any) -> None:
            raise StateFullError("the disk is full")

    log = Full()
    log.append([LogRecord(event=event) for event in story(jump_ms=JUMP_MS)])
    assert healed(log).engine.state.now_ms == NOW_MS
    assert healed(log).engine.state.now_ms == NOW_MS


@pytest.mark.parametrize(
    ("jump_ms", "wall_ms"),
    [(0, NOW_MS), (LEAD_MAX_MS - 60_000, NOW_MS), (JUMP_MS, NOW_MS + 2 * JUMP_MS), (0, 86_400_000)],
    ids=["right", "a little ahead", "the clock stays", "a clock without a battery"],
)
def test_nothing_is_moved_without_need(jump_ms: int, wall_ms: int) -> None:
    log = log_of(story(jump_ms=jump_ms))
    before = recovered(log)
    after = healed(log, wall_ms=wall_ms)
    assert after.engine.snapshot() == before.engine.snapshot()
    assert log.latest_snapshot() is None


def numbers_in_ms(kind: Any, seen: set[Any]) -> Iterator[tuple[str, str]]:
    """Every field in milliseconds of every record in a stored state."""
    for argument in get_args(kind):
        yield from numbers_in_ms(argument, seen)
    if is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        hints = get_type_hints(kind)
        for one in fields(kind):
            if one.name.endswith("_ms"):
                yield str(getattr(kind, "__name__", kind)), one.name
            yield from numbers_in_ms(hints[one.name], seen)


DURATIONS = {
    "solo_step_ms", "solo_window_ms", "solo_windows_step_ms", "step_ms", "task_step_ms", "attained_gpu_ms", "paused_ms",
    "migration_cost_ms", "window_ms", "launch_ms", "ran_ms", "progressed_ran_ms", "time_limit_ms", "half_life_ms",
    "gpu_ms", "move_ms", "own_step_ms", "others_step_ms", "straggler_window_ms", "lent_ms", "input_wait_ms",
    "head_start_ms",
}  # fmt: skip


def test_every_stored_number_of_milliseconds_is_known_as_an_instant_or_as_a_duration() -> None:
    found = set(numbers_in_ms(StoredState, set()))
    assert len(found) > 20
    for record, name in sorted(found):
        assert is_instant(name) != (name in DURATIONS), f"{record}.{name}"


def test_a_whole_life_of_jobs_survives_being_set_back() -> None:
    play = Play(policy="horus", nodes=2)
    for number in range(4):
        play.submit(f"job-{number}")
    play.report(events.JobStarted, "job-0")
    play.report(events.JobProgressed, "job-0", steps_done=3, window_steps=3, window_ms=60)
    before = play.engine.state.now_ms
    engine = restored(set_back(play.engine.snapshot(), now_ms=before - 500))
    assert engine.state.now_ms == before - 500
    assert engine.state.in_phase(Phase.PENDING) == play.engine.state.in_phase(Phase.PENDING)


def test_a_scheduler_started_under_a_right_clock_again_shows_right_times(tmp_path: Path) -> None:
    ahead_ms = time.time_ns() // 1_000_000 + JUMP_MS
    with closing(SqliteEventLog(tmp_path)) as log:
        log.append([LogRecord(event=events.PolicyChosen(at_ms=ahead_ms, policy="fifo"))])
    for number in (1, 2):
        with running_scheduler(tmp_path) as address, grpc.insecure_channel(address) as channel:
            stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
            spec = scheduling_pb2.JobSpec(command=["true"], steps_total=1)
            job = stub.SubmitJob(scheduling_pb2.SubmitJobRequest(spec=spec), timeout=90).job
            assert job.job_id == f"job-{number}"
            assert abs(job.submitted_at_ms - time.time_ns() // 1_000_000) < 60_000
