"""What is wrong with a policy's answers stands in the scheduler's log, once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from scheduler_service.adapters.policy_fault_log import PolicyFaultLog
from scheduler_service.core import events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import RejectedDecision
from scheduler_service.core.records import Reason
from scheduler_service.core.state import ClusterState
from tests.support.scheduling import job, node


class Failing:
    """Raises until it is told to forget jobs instead."""

    fault: Exception | None = ZeroDivisionError("0 / 0")

    def decide(self, view: SchedulingView) -> Any:
        if self.fault is not None:
            raise self.fault
        return []


def told(records: list[logging.LogRecord]) -> list[tuple[str, str, str]]:
    return [(one.levelname, one.getMessage(), vars(one)["reason"]) for one in records]


def test_what_a_policy_raised_is_logged_once_until_it_is_something_else(caplog: pytest.LogCaptureFixture) -> None:
    policy = Failing()
    engine = SchedulerEngine(make_policy=lambda name, parameters: policy, policy="own")
    log = PolicyFaultLog(state=lambda: engine.state)

    def tell(event: events.Event) -> None:
        engine.handle(event)
        log.event_handled(event, (), duration_ns=0)
        log.batch_handled()

    tell(events.NodeJoined(at_ms=0, node=node()))
    for at_ms in range(1, 4):
        tell(events.JobSubmitted(at_ms=at_ms, request=job(f"j{at_ms}")))
    ((level, event, reason),) = told(caplog.records)
    assert (level, event) == ("ERROR", "policy_failed")
    assert reason.startswith("ZeroDivisionError: 0 / 0 (scheduler_io/test_policy_fault_log.py:")
    assert vars(caplog.records[0])["policy"] == "own"
    policy.fault = None
    tell(events.JobSubmitted(at_ms=5, request=job("j5")))
    level, event, reason = told(caplog.records)[-1]
    assert (len(caplog.records), level, event) == (2, "WARNING", "decision_refused")
    assert reason.endswith("The policy returned no decision about the job; this is a bug of the policy.")


def test_what_a_stored_state_remembers_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    engine = SchedulerEngine(make_policy=lambda name, parameters: Failing(), policy="own")
    engine.handle(events.NodeJoined(at_ms=0, node=node()))
    engine.handle(events.JobSubmitted(at_ms=1, request=job("j0")))
    assert engine.state.rejected
    PolicyFaultLog(state=lambda: engine.state).batch_handled()
    assert not caplog.records


def test_of_a_batch_what_a_policy_raised_is_told_before_what_was_refused_beside_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = ClusterState(seed=0, ended_jobs_max=1)
    log = PolicyFaultLog(state=lambda: state)
    for code in ("JOB_NOT_PENDING", "POLICY_FAILED", "DECIDED_TWICE"):
        rejected = RejectedDecision(at_ms=1, policy="own", job_id="j0", reason=Reason(code=code), detail=code.lower())
        state.rejected.append(rejected)
    log.batch_handled()
    assert told(caplog.records) == [("ERROR", "policy_failed", "policy_failed")]
    assert vars(caplog.records[0])["count"] == 3
