"""Refuses calls of those who may not make them, before a servicer sees anything of the request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import grpc
from grpc_status import rpc_status

from cotenant.access.callers import (
    AccessError,
    AccessRules,
    CallEvidence,
    NotIdentifiedError,
    answer_for,
    check_permitted,
)
from cotenant.access.refusals import RefusalLog
from cotenant.access.roles import roles_of
from cotenant.system_clock import steady_ms
from predictor_service.errors import CallerError, NotPermittedError, UnidentifiedCallerError
from predictor_service.grpc_api.status_codes import status_of

_MAKERS: Final = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}
_refusals = RefusalLog(logging.getLogger(__name__), now_ns=lambda: steady_ms() * 1_000_000)


class AccessInterceptor(grpc.ServerInterceptor):
    """Identifies every caller and looks the call up in the table.

    Args:
        rules: How this server tells its callers apart.
    """

    def __init__(self, rules: AccessRules) -> None:
        self._rules = rules

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the method that was found, unless everyone may call it."""
        handler = continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or roles_of(method) is None:
            return handler
        kind = next(kind for kind in _MAKERS if getattr(handler, kind) is not None)
        answer = getattr(handler, kind)

        def guarded(request: object, context: grpc.ServicerContext) -> object:
            self._check(method, context)
            return answer(request, context)

        return _MAKERS[kind](
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _check(self, method: str, context: grpc.ServicerContext) -> None:
        evidence = CallEvidence(
            peer=context.peer(), authentication=_properties(context), metadata=context.invocation_metadata()
        )
        try:
            caller = self._rules.identify(evidence)
            check_permitted(method, caller)
        except AccessError as error:
            _refusals.note(method, error, peer=evidence.peer)
            context.abort_with_status(rpc_status.to_status(status_of(_own_error(error))))
        answer_for(caller)


def _properties(context: grpc.ServicerContext) -> Mapping[str, Iterable[bytes]]:
    found: Any = context.auth_context()  # each with all its values, which the stubs do not say
    return cast(Mapping[str, Iterable[bytes]], found)


def _own_error(error: AccessError) -> CallerError:
    kind = UnidentifiedCallerError if isinstance(error, NotIdentifiedError) else NotPermittedError
    return kind(error.message, remedy=error.remedy)
