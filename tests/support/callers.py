"""Callers of every role with a token each, and calls of every method by its name alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from cotenant.access.roles import Role
from cotenant.access.tokens import issue_token, read_token, token_metadata, write_token_list
from cotenant.v1 import models_pb2, node_agent_pb2, prediction_pb2, scheduling_pb2
from tests.support.grpc_errors import code_of, details_of

# Each module knows its services; a new file of the contract belongs here.
_FILES = (scheduling_pb2, node_agent_pb2, prediction_pb2, models_pb2, health_pb2, reflection_pb2)
PATIENCE_S = 240.0


def served_methods() -> dict[str, tuple[bool, bool]]:
    """Every method of every service as /SERVICE/METHOD, and whether the caller and the server stream."""
    return {
        f"/{service.full_name}/{method.name}": (method.client_streaming, method.server_streaming)
        for module in _FILES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def contract_files() -> set[str]:
    """The files that are looked through."""
    return {module.DESCRIPTOR.name for module in _FILES}


def issue_all(folder: Path, roles: Sequence[Role] = tuple(Role)) -> Path:
    """Writes a token ROLE.token of a caller called ROLE-1 for each role, and returns the server's list."""
    callers = folder / "callers"
    write_token_list(callers, [issue_token(folder / f"{role}.token", role, f"{role}-1") for role in roles])
    return callers


def metadata_of(folder: Path, role: Role) -> Sequence[tuple[str, str]]:
    """What a caller of that role shows."""
    return (token_metadata(read_token(folder / f"{role}.token")),)


def code_of_empty_call(
    channel: grpc.Channel, method: str, metadata: Sequence[tuple[str, str]] | None, *, content: bytes = b""
) -> tuple[grpc.StatusCode, str]:
    """Calls a method with an empty request, or these bytes; OK as soon as the first answer is there."""
    client_streams, server_streams = served_methods()[method]
    kind = f"{'stream' if client_streams else 'unary'}_{'stream' if server_streams else 'unary'}"
    call = getattr(channel, kind)(method)
    request = iter([content]) if client_streams else content
    try:
        answer = call(request, timeout=PATIENCE_S, metadata=metadata)
        if server_streams:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        return code_of(error), details_of(error)
    return grpc.StatusCode.OK, ""
