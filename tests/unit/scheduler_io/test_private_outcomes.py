"""An outcome is sent to the predictor only where neither the job's owner nor one of its nodes keeps it private."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.command_performer import CommandPerformer
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.core.commands import RecordOutcome
from tests.support.cases import for_each


@for_each(
    ("launch", "node_ids", "is_told"),
    [
        ({}, ("open",), True),
        ({"no_profiles": False}, ("open", "open-too"), True),
        ({"no_profiles": True}, ("open",), False),
        ({}, ("private",), False),
        ({}, ("open", "private"), False),
        ({}, ("away",), False),
    ],
)
def test_a_private_jobs_outcome_is_not_sent(
    launch: Mapping[str, Any], node_ids: tuple[str, ...], is_told: bool
) -> None:
    sessions = AgentSessions()
    for node_id in ("open", "open-too"):
        sessions.open(node_id, now_ms=0)
    sessions.open("private", now_ms=0, no_profiles=True)
    predictor = PredictorClient(None, deadline_s=1)
    performer = CommandPerformer(
        sessions=sessions, predictor=predictor, launch_of=lambda job_id: launch, deliver=lambda event: None
    )
    performer.perform(RecordOutcome(prediction_id="p", job_id="job-1", node_ids=node_ids))
    assert bool(predictor._outcomes) is is_told
