"""Carries out what the engine orders: messages to agents, questions to the predictor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cotenant.v1.node_agent_pb2 import ConnectResponse
from scheduler_service.adapters.agents import agent_messages
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity
from scheduler_service.core.commands import (
    Command,
    LaunchJob,
    PauseJob,
    PrepareJob,
    RecordOutcome,
    RefreshPairs,
    RequestLossFit,
    RequestPairPredictions,
    RequestPrediction,
    RequestSpeedFit,
    RequestTaskSpeedFit,
    ResumeJob,
    StopJob,
)
from scheduler_service.core.events import Event, LaunchRefused

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPerformer:
    """Dispatches commands; for a node that is not connected the engine repeats them when it joins.

    Attributes:
        launch_of: proto3 JSON of a job's spec.
        deliver: Takes the predictor's answers, and what is known without asking an agent.
        identity: Under which incarnation the fences were given.
        sequence: Returns the newest event, which led to the command.
    """

    sessions: AgentSessions
    predictor: PredictorClient
    launch_of: Callable[[str], Mapping[str, Any]]
    deliver: Callable[[Event], None]
    identity: ClusterIdentity = field(default_factory=ClusterIdentity)
    sequence: Callable[[], int] = field(default=lambda: 0)

    def perform(self, command: Command) -> None:
        """Start doing one command; returns at once."""
        match command:
            case LaunchJob() if not self._can_start(command):
                self.deliver(_too_old(command))
            case LaunchJob():
                self._send(command, agent_messages.launch_message(command, self.identity, sequence=self.sequence()))
            case PrepareJob():
                message = agent_messages.prepare_message(command, self.identity, sequence=self.sequence())
                self._send(command.launch, message)
            case StopJob():
                checkpoint_ms = int(self.launch_of(command.job_id).get("checkpoint_ms", 0))
                self._send(command, agent_messages.stop_message(command, self.identity, checkpoint_ms=checkpoint_ms))
            case PauseJob():
                self._send(command, agent_messages.pause_message(command, self.identity))
            case ResumeJob():
                self._send(command, agent_messages.resume_message(command, self.identity))
            case _:
                self._tell_predictor(command)

    def _tell_predictor(self, command: Command) -> None:
        match command:
            case RequestPrediction() | RequestPairPredictions() | RefreshPairs():
                self.predictor.request(command, self.deliver)
            case RequestSpeedFit() | RequestTaskSpeedFit() | RequestLossFit():
                self.predictor.request(command, self.deliver)
            case RecordOutcome():
                if self._may_tell(command):
                    self.predictor.record(command)
            case _:
                raise TypeError(f"no performer for {type(command).__name__}")

    def _send(self, command: LaunchJob | StopJob | PauseJob | ResumeJob, message: ConnectResponse) -> None:
        if not self.sessions.send(command.node_id, message):
            _log.info("node_away", extra={"node_id": command.node_id, "job_id": command.job_id})

    def _can_start(self, command: LaunchJob) -> bool:
        """Whether a connected agent starts all processes of a job; an older one would start some of them."""
        session = self.sessions.connected.get(command.node_id)
        if session is None or not command.launch.get("ranks"):
            return True
        return session.starts_ranks and (session.starts_servers or not command.servers)

    def _may_tell(self, command: RecordOutcome) -> bool:
        """Neither the owner of a job nor a node that it runs on keeps measurements private; an unconnected node may."""
        sessions = [self.sessions.connected.get(node_id) for node_id in command.node_ids]
        is_open = all(session is not None and not session.no_profiles for session in sessions)
        return is_open and not self.launch_of(command.job_id).get("no_profiles", False)


def _too_old(command: LaunchJob) -> LaunchRefused:
    lacking, flag = ("parameter servers", "--servers") if command.servers else ("ranks", "--ranks")
    return LaunchRefused(
        at_ms=0,
        job_id=command.job_id,
        attempt=command.attempt,
        fence=command.fence,
        code="RANKS_NOT_SUPPORTED",
        message=f"the agent of {command.node_id} is too old to start {lacking}; upgrade it, or submit without {flag}",
    )
