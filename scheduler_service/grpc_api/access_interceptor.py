"""Refuses calls of those who may not make them, before a servicer sees anything of the request."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import isasyncgenfunction
from typing import Any

import grpc

from cotenant.access.callers import (
    AccessError,
    AccessRules,
    Caller,
    CallEvidence,
    NotIdentifiedError,
    answer_for,
    check_permitted,
)
from cotenant.access.refusals import RefusalLog
from cotenant.access.roles import roles_of
from scheduler_service.adapters.system_clock import read_monotonic_ns
from scheduler_service.errors import CallerError, NotPermittedError, UnidentifiedCallerError
from scheduler_service.grpc_api.status_codes import Context, abort, status_of

_refusals = RefusalLog(logging.getLogger(__name__), now_ns=read_monotonic_ns)


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Identifies every caller and looks the call up in the table.

    Args:
        rules: How this server tells its callers apart.
    """

    def __init__(self, rules: AccessRules) -> None:
        self._rules = rules

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the method that was found, unless everyone may call it."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or roles_of(method) is None:
            return handler
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._answering(method, handler.unary_unary), **codec)
        if handler.unary_stream is not None and isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(self._streaming(method, handler.unary_stream), **codec)
        if handler.stream_stream is not None and isasyncgenfunction(handler.stream_stream):
            return grpc.stream_stream_rpc_method_handler(self._streaming(method, handler.stream_stream), **codec)
        raise TypeError(f"{method} is of a kind that is not guarded")

    def _answering(
        self, method: str, answer: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def guarded(request: object, context: Context) -> object:
            await self._check(method, context)
            return await answer(request, context)

        return guarded

    def _streaming(self, method: str, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def guarded(request: object, context: Context) -> AsyncIterator[Any]:
            evidence, caller = await self._check(method, context)
            async with aclosing(answer(request, context)) as messages:
                async for message in messages:
                    # A stream may be open for months.
                    try:
                        self._rules.check_still_known(evidence, caller)
                    except AccessError as error:
                        await _refuse(method, error, context)
                    yield message

        return guarded

    async def _check(self, method: str, context: Context) -> tuple[CallEvidence, Caller]:
        try:
            evidence = CallEvidence(
                peer=context.peer(),
                authentication={str(key): value for key, value in context.auth_context().items()},
                metadata=tuple(context.invocation_metadata() or ()),
            )
            caller = self._rules.identify(evidence)
            check_permitted(method, caller)
        except AccessError as error:
            await _refuse(method, error, context)
        answer_for(caller)
        return evidence, caller


async def _refuse(method: str, error: AccessError, context: Context) -> None:
    """End a call; raises inside grpc and never returns."""
    _refusals.note(method, error, peer=context.peer())
    await abort(context, status_of(_own_error(error)))


def _own_error(error: AccessError) -> CallerError:
    kind = UnidentifiedCallerError if isinstance(error, NotIdentifiedError) else NotPermittedError
    return kind(f"{error.message}; {error.remedy}")
