"""Answers requests whose bytes are no message with INVALID_ARGUMENT, in one place for all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_status import rpc_status

from cotenant.request_decoding import MALFORMED_MESSAGE, MalformedRequest, tolerant
from predictor_service.errors import InvalidRequestError
from predictor_service.grpc_api.status_codes import status_of

_Handler = Any  # grpc.RpcMethodHandler, whose types say nothing
_Method = Callable[[Any, Any], Any]


class DecodingInterceptor(grpc.ServerInterceptor):
    """Replaces the decoder of every method by one that does not raise."""

    def __init__(self) -> None:
        self._kept: dict[str, _Handler] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], _Handler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the method's handler, made once."""
        name = handler_call_details.method
        kept = self._kept.get(name)
        if kept is None:
            handler = continuation(handler_call_details)
            if handler is None:  # no such method; callers choose the names, so nothing is kept
                return None
            kept = self._kept[name] = _tolerant_handler(handler)
        return kept


def _tolerant_handler(handler: _Handler) -> _Handler:
    codec = {
        "request_deserializer": tolerant(handler.request_deserializer),
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(_of_one(handler.unary_unary), **codec)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(_of_one(handler.unary_stream), **codec)
    if handler.stream_unary is not None:
        return grpc.stream_unary_rpc_method_handler(_of_many(handler.stream_unary), **codec)
    return grpc.stream_stream_rpc_method_handler(_of_many(handler.stream_stream), **codec)


def _of_one(method: _Method) -> _Method:
    def answer(request: object, context: grpc.ServicerContext) -> object:
        if isinstance(request, MalformedRequest):
            context.abort_with_status(rpc_status.to_status(status_of(_malformed())))
        return method(request, context)

    return answer


def _of_many(method: _Method) -> _Method:
    return lambda requests, context: method(_each_decoded(requests), context)


def _each_decoded(requests: Iterator[object]) -> Iterator[object]:
    """Raise where the method reads; it reports the error as any other of its requests."""
    for request in requests:
        if isinstance(request, MalformedRequest):
            raise _malformed()
        yield request


def _malformed() -> InvalidRequestError:
    return InvalidRequestError(MALFORMED_MESSAGE, remedy="use stubs generated from cotenant.v1")
