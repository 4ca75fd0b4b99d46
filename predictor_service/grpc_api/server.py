"""The gRPC server: binding, limits, health, reflection, drain."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from cotenant.access.callers import AccessRules
from cotenant.access.server_rules import access_rules, bind_private_socket
from cotenant.grpc_credentials import server_credentials
from cotenant.tls_settings import check_exposure
from cotenant.v1 import models_pb2, models_pb2_grpc, prediction_pb2, prediction_pb2_grpc
from predictor_service.errors import InvalidRequestError, OverloadedError
from predictor_service.features.graphs.graph_limits import DEFAULT_LIMITS
from predictor_service.grpc_api.access_interceptor import AccessInterceptor
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.decoding_interceptor import DecodingInterceptor
from predictor_service.grpc_api.model_servicer import ModelServicer
from predictor_service.grpc_api.prediction_servicer import PredictionServicer
from predictor_service.grpc_api.status_codes import STATUS_CODES

SERVICE_NAME: Final = prediction_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name
MODEL_SERVICE_NAME: Final = models_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
# Room for a graph of the largest accepted size in addition to the other fields.
MESSAGE_BYTES_MAX: Final = DEFAULT_LIMITS.graph_bytes + (1 << 20)
# Beyond calls under way and queued: those that are about to be refused with a reason, before gRPC refuses without one.
_REFUSALS_MAX: Final = 1_024
# Calls that gRPC has accepted and not handed over yet; beyond, it cancels them at random and without a reason.
_PENDING_MAX: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the server listens.

    Attributes:
        address: HOST:PORT to bind; port 0 = any free one.
        tls_certificate_file: PEM; with the key, the server speaks TLS only.
        tls_key_file: PEM.
        client_ca_file: PEM authority; clients must then show a certificate of it.
        insecure: Allows other addresses than loopback without TLS.
        callers_file: Tokens of callers.
        revoked_file: Keys whose certificates are denied.
        socket: Unix socket to answer on as well.
        serve_roleless: Whether a certificate without a role may do everything.
    """

    address: str
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    client_ca_file: Path | None = None
    insecure: bool = False
    callers_file: Path | None = None
    revoked_file: Path | None = None
    socket: Path | None = None
    serve_roleless: bool = False


class _GuardedReflection(reflection.ReflectionServicer):
    """Describes the services to as many callers as the queue allows streams."""

    def __init__(self, names: Iterable[str], queue: AdmissionQueue) -> None:
        super().__init__(names)
        self._queue = queue

    def ServerReflectionInfo(  # noqa: N802 (named by the contract)
        self,
        request_iterator: Iterable[Any],
        context: Any,  # noqa: ANN401 (of the library's own wider type)
    ) -> Iterator[Any]:
        """Answers question after question."""
        try:
            with self._queue.streams.admitted(context):
                yield from super().ServerReflectionInfo(request_iterator, context)
        except (OverloadedError, InvalidRequestError) as error:
            context.abort(STATUS_CODES[type(error)], str(error))


class _Health(health.HealthServicer):
    """Answers what the library implements; the rest is refused without a traceback in the log."""

    def List(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401, N802 (named by the contract)
        """Refuses: services are asked one by one."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "this service does not offer the method; use Check")


def interceptors_for(rules: AccessRules) -> list[grpc.ServerInterceptor]:
    """Returns what every call passes before a servicer sees it, first one first."""
    # Where everyone may do everything no call pays for being looked at.
    return [*([] if rules.is_open else [AccessInterceptor(rules)]), DecodingInterceptor()]


class PredictionServer:
    """A running server.

    Args:
        servicer: Answers the calls about predictions.
        queue: Threads to answer in, with the queue before them.
        options: How to listen.
        models: Answers the calls about model versions; None = they are not offered.

    Raises:
        InputError: Another address than loopback without TLS, or a PEM file that cannot be read.
        InvalidRequestError: The address cannot be bound.
    """

    def __init__(
        self,
        servicer: PredictionServicer,
        queue: AdmissionQueue,
        options: ServerOptions,
        models: ModelServicer | None = None,
    ) -> None:
        check_exposure(options.address, options)
        rules = access_rules(options)
        self._queue = queue
        self._server = grpc.server(
            queue,
            interceptors=interceptors_for(rules),
            maximum_concurrent_rpcs=queue.calls_max + _REFUSALS_MAX,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
                ("grpc.server.max_pending_requests", _PENDING_MAX),
                ("grpc.server.max_pending_requests_hard_limit", _PENDING_MAX),
            ],
        )
        self._health = _Health()
        prediction_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, self._server)
        self._answer_jobs_by_bytes(servicer)
        if models is not None:
            models_pb2_grpc.add_ModelServiceServicer_to_server(models, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, MODEL_SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
        add_reflection(_GuardedReflection(names, queue), self._server)
        self.port = self._bind(options)
        if options.socket is not None:
            bind_private_socket(options.socket, self._server.add_insecure_port)

    def start(self) -> None:
        """Begins to serve and reports it to the health service."""
        with self._queue.core.entered():  # gRPC starts the thread that hands calls to the queue
            self._server.start()
        for name in ("", SERVICE_NAME):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_s: float) -> None:
        """Refuses new calls, lets those under way finish, then stops.

        Args:
            grace_s: Longest wait, seconds.
        """
        self._health.enter_graceful_shutdown()
        stopped: threading.Event = self._server.stop(grace_s)
        stopped.wait(grace_s + 1)
        self._queue.shutdown(wait=False, cancel_futures=True)

    def _answer_jobs_by_bytes(self, servicer: PredictionServicer) -> None:
        """Replaces the one handler whose answers are not serialized, because they are bytes; see `answer_bytes`."""
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            servicer.predict_job_bytes, request_deserializer=prediction_pb2.PredictJobRequest.FromString
        )
        self._server.add_registered_method_handlers(SERVICE_NAME, {"PredictJob": handler})

    def _bind(self, options: ServerOptions) -> int:
        address, credentials = options.address, server_credentials(options)
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise InvalidRequestError(f"{address} cannot be bound ({error})", remedy="choose another port") from error
