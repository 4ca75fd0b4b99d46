"""Turns errors into statuses for every method, in one place."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from inspect import isasyncgenfunction
from types import MappingProxyType
from typing import Any

import grpc
from google.protobuf.message import Message

from cotenant.request_decoding import MALFORMED_MESSAGE, MalformedRequest, tolerant
from scheduler_service.errors import FieldViolation, InvalidRequestError, SchedulerServiceError
from scheduler_service.grpc_api.status_codes import Context, abort, internal_status, status_of

_log = logging.getLogger(__name__)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Lets servicers raise what they mean; callers never see a traceback.

    Args:
        decoders: By the path of a method what reads its requests, where it is not the class of the message.
    """

    def __init__(self, decoders: Mapping[str, Callable[[bytes], object]] = MappingProxyType({})) -> None:
        self._decoders = decoders

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the method that was found."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        codec: dict[str, Any] = {
            "request_deserializer": tolerant(
                self._decoders.get(str(handler_call_details.method), handler.request_deserializer)
            ),
            "response_serializer": _unless_encoded(handler.response_serializer),
        }
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(_answering(handler.unary_unary), **codec)
        if handler.unary_stream is not None and isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(_streaming(handler.unary_stream, _decoded), **codec)
        if handler.stream_stream is not None and isasyncgenfunction(handler.stream_stream):
            return grpc.stream_stream_rpc_method_handler(_streaming(handler.stream_stream, _each_decoded), **codec)
        if handler.unary_stream is not None:  # health streams by writing to its context
            writing: Any = handler.unary_stream
            return grpc.unary_stream_rpc_method_handler(_answering(writing), **codec)
        return handler


def _unless_encoded(encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Let an answer that is encoded already go as it is: many callers share it."""
    if encode is None:
        return None
    return lambda answer: answer if isinstance(answer, bytes) else encode(answer)


def _answering(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answer(request: Message, context: Context) -> Message | None:
        try:
            answered: Message | None = await method(_decoded(request), context)
        except Exception as error:
            await _report(context, error)
            return None
        return answered

    return answer


def _streaming(
    method: Callable[[Any, Any], Any], decoded: Callable[[Any], Any]
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def stream(request: object, context: Context) -> AsyncIterator[Message]:
        try:
            # Closed at once when the caller goes away, not when the garbage is collected.
            async with aclosing(method(decoded(request), context)) as messages:
                async for message in messages:
                    yield message
        except Exception as error:
            await _report(context, error)

    return stream


def _decoded(request: object) -> object:
    if isinstance(request, MalformedRequest):
        raise InvalidRequestError(FieldViolation(field="request", description=MALFORMED_MESSAGE))
    return request


async def _each_decoded(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        yield _decoded(request)


async def _report(context: Context, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, SchedulerServiceError):
        await abort(context, status_of(error))
    _log.error("call_failed", exc_info=error)
    await abort(context, internal_status())
