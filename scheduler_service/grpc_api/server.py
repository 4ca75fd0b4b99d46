"""The gRPC server: services, health, reflection, limits, and who may reach it."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from cotenant.access.callers import AccessRules
from cotenant.access.server_rules import access_rules, bind_private_socket
from cotenant.addresses import split_address
from cotenant.grpc_credentials import server_credentials
from cotenant.tls_settings import ServerTls, check_exposure
from cotenant.v1 import node_agent_pb2, node_agent_pb2_grpc, scheduling_pb2, scheduling_pb2_grpc
from scheduler_service.errors import SettingsError
from scheduler_service.grpc_api.access_interceptor import AccessInterceptor
from scheduler_service.grpc_api.agents.node_agent_servicer import NodeAgentServicer
from scheduler_service.grpc_api.error_interceptor import ErrorInterceptor
from scheduler_service.grpc_api.scheduling_servicer import SchedulingServicer
from scheduler_service.grpc_api.snapshots.unread_request import UnreadRequest
from scheduler_service.grpc_api.status_codes import Context

SERVICE_NAMES = (
    scheduling_pb2.DESCRIPTOR.services_by_name["SchedulingService"].full_name,
    node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgentService"].full_name,
)
_DECIDE = f"/{SERVICE_NAMES[0]}/Decide"
# A snapshot of 10,000 jobs and GPUs for Decide takes some 8 MB.
RECEIVED_MESSAGE_BYTES_MAX = 32 * 1024 * 1024
SENT_MESSAGE_BYTES_MAX = 32 * 1024 * 1024
CONCURRENT_CALLS_MAX = 2_000
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVED_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", SENT_MESSAGE_BYTES_MAX),
    # A second scheduler on the same port would take every other connection.
    ("grpc.so_reuseport", 0),
    # A half-open connection to an agent or watcher is noticed within fifteen seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class _Health(HealthServicer):
    """Answers what the library implements; the rest is refused without a traceback in the log."""

    async def List(self, request: object, context: Context) -> None:  # noqa: N802 (named by the contract)
        """Refuse: services are asked one by one."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this service does not offer the method; use Check")


def interceptors_for(rules: AccessRules) -> list[grpc.aio.ServerInterceptor]:
    """Return what every call passes before a servicer sees it, first one first."""
    return [ErrorInterceptor({_DECIDE: UnreadRequest.read}), AccessInterceptor(rules)]


class GrpcServer:
    """Both services on one port.

    Args:
        address: host:port; port 0 takes a free one, see `address` after `start`.
        tls: Certificate, key, authority and tokens of callers, or the wish to do without beyond loopback.

    Raises:
        InputError: The address may not be served like this.
    """

    def __init__(self, *, address: str, tls: ServerTls, reflects: bool) -> None:
        self._host = address.rpartition(":")[0]
        split_address(address)
        check_exposure(address, tls)
        self._wanted_address = address
        self._tls = tls
        self._rules = access_rules(tls)
        self._reflects = reflects
        self._server: grpc.aio.Server | None = None
        self._health = _Health()
        self.address = ""

    def list_faults(self) -> list[str]:
        """Return which lists of callers cannot be read, with the remedy."""
        return self._rules.list_faults()

    async def start(self, scheduling: SchedulingServicer, agents: NodeAgentServicer) -> None:
        """Listen and answer; health reports SERVING from now on.

        Raises:
            SettingsError: The address is taken.
            InputError: A PEM file cannot be read.
        """
        server = grpc.aio.server(
            interceptors=interceptors_for(self._rules),
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=CONCURRENT_CALLS_MAX,
        )
        self._server = server
        scheduling_pb2_grpc.add_SchedulingServiceServicer_to_server(scheduling, server)
        node_agent_pb2_grpc.add_NodeAgentServiceServicer_to_server(agents, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._reflects:
            names = (*SERVICE_NAMES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        self.address = f"{self._host}:{self._bind(server)}"
        if self._tls.socket is not None:
            bind_private_socket(self._tls.socket, server.add_insecure_port)
        await server.start()
        for name in ("", *SERVICE_NAMES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def _bind(self, server: grpc.aio.Server) -> int:
        credentials = server_credentials(self._tls)
        try:
            if credentials is None:
                port = server.add_insecure_port(self._wanted_address)
            else:
                port = server.add_secure_port(self._wanted_address, credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            raise SettingsError(f"{self._wanted_address} cannot be served: is another program using it?")
        return port

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, let those under way end, cut what is left after the grace."""
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(grace_s)
