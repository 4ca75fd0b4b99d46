"""Who may be paused when an operator asks, and what is said otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.core import events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.errors import NotPausableError, UnknownJobError, WrongJobPhaseError
from scheduler_service.grpc_api import validation
from scheduler_service.grpc_api.jobs import job_requests
from scheduler_service.live_loop import Mutation
from scheduler_service.policy_registry import make_policy
from tests.support.scheduling import job, node


def engine_with(*, gpus: int = 1, **of_the_node: Any) -> SchedulerEngine:
    """A running job on a node of two devices, and one that waits."""
    engine = SchedulerEngine(make_policy=make_policy, policy="fifo")
    enforcing = {"enforcements": ("cgroup_freezer",), **of_the_node}
    engine.handle(events.NodeJoined(at_ms=1, node=node("n0", 2, **enforcing)))
    engine.handle(events.JobSubmitted(at_ms=2, request=job("j0", gpus=gpus)))
    engine.handle(events.JobSubmitted(at_ms=3, request=job("waits", gpus=9)))
    return engine


def pause(engine: SchedulerEngine, job_id: str = "j0", paused_ms_max: int = 0) -> Mutation:
    return job_requests.pause(
        scheduling_pb2.PauseJobRequest(request_id="r", job_id=job_id, paused_ms_max=paused_ms_max), engine
    )


def test_a_pause_lasts_as_long_as_was_asked_for_or_the_longest() -> None:
    engine = engine_with()
    assert pause(engine).propose().event == events.PauseRequested(at_ms=0, job_id="j0", paused_ms_max=60_000)
    event = pause(engine, paused_ms_max=1).propose().event
    assert event == events.PauseRequested(at_ms=0, job_id="j0", paused_ms_max=1)
    assert event is not None
    engine.handle(event)
    assert pause(engine).propose().event is None


def test_a_job_goes_on_once() -> None:
    engine = engine_with()
    resume = job_requests.resume(scheduling_pb2.ResumeJobRequest(request_id="r", job_id="j0"), engine)
    assert resume.propose().event is None
    engine.handle(events.PauseRequested(at_ms=5, job_id="j0", paused_ms_max=9))
    assert resume.propose().event == events.ResumeRequested(at_ms=0, job_id="j0")


@pytest.mark.parametrize(
    ("options", "job_id", "error", "why"),
    [
        ({}, "waits", WrongJobPhaseError, "only a job that runs can be paused"),
        ({}, "nobody", UnknownJobError, "no job 'nobody'"),
        ({"enforcements": ("watchdog",)}, "j0", NotPausableError, "without MPS"),
    ],
)
def test_a_job_that_cannot_be_paused_is_named_with_the_reason(
    options: dict[str, Any], job_id: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        pause(engine_with(**options), job_id).propose()


def test_a_job_of_a_node_that_has_gone_cannot_be_paused() -> None:
    engine = engine_with()
    engine.handle(events.NodeDisconnected(at_ms=9, node_id="n0"))
    with pytest.raises(NotPausableError):
        pause(engine).propose()


@pytest.mark.parametrize(
    ("request_id", "job_id", "paused_ms_max", "fields"),
    [
        ("r", "job-1", 60_000, []),
        ("r", "job-1", 60_001, ["paused_ms_max"]),
        ("r", "job-1", -1, ["paused_ms_max"]),
        ("", "", 2**62, ["job_id", "paused_ms_max"]),
    ],
)
def test_an_order_is_checked_as_a_whole(request_id: str, job_id: str, paused_ms_max: int, fields: list[str]) -> None:
    request = scheduling_pb2.PauseJobRequest(request_id=request_id, job_id=job_id, paused_ms_max=paused_ms_max)
    assert [one.field for one in validation.pause_violations(request)] == fields
    resume = scheduling_pb2.ResumeJobRequest(request_id=request_id, job_id=job_id)
    assert [one.field for one in validation.job_order_violations(resume)] == [
        name for name in fields if name != "paused_ms_max"
    ]
