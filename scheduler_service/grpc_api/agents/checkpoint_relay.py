"""Whether a node may have the checkpoint that it asks for, and where it comes from."""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator
from contextlib import aclosing

from cotenant.access.callers import current_caller
from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.checkpoint_transfers import CheckpointTransfers
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity
from scheduler_service.core.lifecycle.granted_checkpoints import checkpoint_sources
from scheduler_service.core.records import CHECKPOINT_TRANSFERS, Phase
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import AgentProtocolError, CheckpointMissingError
from scheduler_service.grpc_api.agents.agent_admission import AttemptStanding, standing_of
from scheduler_service.live_loop import LiveLoop


class CheckpointRelay:
    """Passes checkpoints on between agents that prove who they are by the secret of their present stream."""

    def __init__(self, *, loop: LiveLoop, sessions: AgentSessions, identity: ClusterIdentity) -> None:
        self._loop = loop
        self._sessions = sessions
        self._identity = identity
        self._transfers = CheckpointTransfers(sessions)

    async def fetch(
        self, request: node_agent_pb2.FetchCheckpointRequest
    ) -> AsyncGenerator[node_agent_pb2.FetchCheckpointResponse, None]:
        """Yield the checkpoint for the launch that the asking node was ordered.

        Raises:
            AgentProtocolError: It is not that node's agent, or its launch grants no such checkpoint.
            CheckpointMissingError: There is none, or its node sends none.
            NodeUnreachableError: The node that has it is away.
            OverloadedError: Too many are on their way.
        """
        self._check_agent(request.node_id, request.session_secret)
        checkpoint = request.checkpoint
        node_id = self._source_of(request)
        source = self._loop.engine.state.nodes.get(node_id)
        if source is None or CHECKPOINT_TRANSFERS not in source.enforcements:
            raise CheckpointMissingError(f"node {node_id}, which has the checkpoint, sends none to other nodes")
        async with aclosing(self._transfers.fetch(node_id, request.key.job_id, checkpoint)) as pieces:
            async for piece in pieces:
                yield node_agent_pb2.FetchCheckpointResponse(piece=piece)

    async def take(
        self, request: node_agent_pb2.SendCheckpointPieceRequest
    ) -> node_agent_pb2.SendCheckpointPieceResponse:
        """Take a piece that a node was ordered to send.

        Raises:
            AgentProtocolError: It is not that node's agent, or the piece is too large.
        """
        self._check_agent(request.node_id, request.session_secret)
        return node_agent_pb2.SendCheckpointPieceResponse(is_over=await self._transfers.take(request))

    def _check_agent(self, node_id: str, secret: str) -> None:
        caller, session = current_caller(), self._sessions.connected.get(node_id)
        is_named = caller.role is None or caller.name == node_id
        if not is_named or session is None or not hmac.compare_digest(session.secret.encode(), secret.encode()):
            raise AgentProtocolError(
                "a checkpoint is passed on to and from connected agents only, each for its own node"
            )

    def _source_of(self, request: node_agent_pb2.FetchCheckpointRequest) -> str:
        """Return which node has a checkpoint that the launch of this node grants."""
        state: ClusterState = self._loop.engine.state
        job, key = state.jobs.get(request.key.job_id), request.key
        is_held = self._identity.owns(key) and standing_of(state, key, request.node_id) is AttemptStanding.HELD
        if job is None or not is_held or job.phase is not Phase.STARTING:
            raise AgentProtocolError("a checkpoint is fetched for a launch that the node was ordered, and no other")
        sources = checkpoint_sources(job, request.node_id, request.checkpoint.fence)
        wanted = request.checkpoint.node_id
        node_id = wanted if wanted in sources else next(iter(sources), "")
        if not node_id or request.checkpoint.incarnation_id != self._identity.incarnation_of(request.checkpoint.fence):
            raise AgentProtocolError("the launch grants no such checkpoint, or it is not known where it lies")
        return node_id
