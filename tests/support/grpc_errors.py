"""What a failed call says, read as a client would."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status


def code_of(error: Exception) -> grpc.StatusCode:
    assert isinstance(error, grpc.Call)
    return error.code()


def details_of(error: Exception) -> str:
    assert isinstance(error, grpc.Call)
    return str(error.details())


def rich_status(error: Exception) -> Any:
    assert isinstance(error, grpc.Call)
    status = rpc_status.from_call(error)
    assert status is not None
    return status


def error_info_of(error: Exception) -> Any:
    status = rich_status(error)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


def reason_of(error: Exception) -> str:
    return str(error_info_of(error).reason)
