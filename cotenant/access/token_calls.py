"""Channels whose every call shows a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from cotenant.access.tokens import read_token, token_metadata
from cotenant.addresses import is_loopback
from cotenant.errors import InputError


class _CallDetails(NamedTuple):
    """What grpc asks of the details of a call."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]]
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: Any


class _TokenCalls(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds a token to calls of threads."""

    def __init__(self, token: str) -> None:
        self._shown = token_metadata(token)

    def _call(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:  # noqa: ANN401 (of the library's own wider types)
        metadata = [*(details.metadata or ()), self._shown]
        return continuation(
            _CallDetails(
                details.method,
                details.timeout,
                metadata,
                details.credentials,
                getattr(details, "wait_for_ready", None),
                getattr(details, "compression", None),
            ),
            request,
        )

    intercept_unary_unary: Any = _call
    intercept_unary_stream: Any = _call
    intercept_stream_unary: Any = _call
    intercept_stream_stream: Any = _call


class _AsyncCall:
    """Adds a token to calls of an event loop; grpc wants one object for each kind of call."""

    def __init__(self, token: str) -> None:
        self._shown = token_metadata(token)

    async def _call(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:  # noqa: ANN401 (of the library's own wider types)
        metadata = grpc.aio.Metadata(*(details.metadata or ()), self._shown)
        return await continuation(details._replace(metadata=metadata), request)


class _UnaryUnary(_AsyncCall, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary: Any = _AsyncCall._call


class _UnaryStream(_AsyncCall, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream: Any = _AsyncCall._call


class _StreamUnary(_AsyncCall, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary: Any = _AsyncCall._call


class _StreamStream(_AsyncCall, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream: Any = _AsyncCall._call


def open_with_token(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
    token_file: Path | None,
) -> grpc.Channel:
    """Returns a channel whose calls show the token of a file.

    Args:
        address: host:port or unix:PATH.
        credentials: None = plain text.
        options: Of gRPC.
        token_file: None = no token is shown.

    Raises:
        InputError: The file cannot be used, or the token would cross a network in plain text.
    """
    token = _usable_token(token_file, address, has_tls=credentials is not None)
    if credentials is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, credentials, options)
    return grpc.intercept_channel(channel, _TokenCalls(token)) if token else channel


def async_token_calls(token_file: Path | None, address: str, *, has_tls: bool) -> Sequence[grpc.aio.ClientInterceptor]:
    """Returns what a channel of an event loop needs to show the token of a file; empty without a file.

    Raises:
        InputError: As `open_with_token`.
    """
    token = _usable_token(token_file, address, has_tls=has_tls)
    return [kind(token) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)] if token else []


def _usable_token(token_file: Path | None, address: str, *, has_tls: bool) -> str:
    if token_file is None:
        return ""
    if not has_tls and not is_loopback(address):
        raise InputError(
            f"a token would reach {address} in plain text, where others can read it",
            remedy="name the authority of the service with --tls-ca-file, or leave --token-file out",
        )
    return read_token(token_file)
