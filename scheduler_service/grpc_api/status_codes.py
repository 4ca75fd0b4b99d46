"""Which error becomes which gRPC status, with details for programs; the only place that knows both."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from scheduler_service import errors

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
DOMAIN = "scheduler.cotenant"
# After how long asking again may help; None = not without a change.
_SOON_MS = 500
_LATER_MS = 2_000

# Class -> status, seconds until a retry may help. The nearest class in the inheritance order counts.
STATUS_OF: dict[type[errors.SchedulerServiceError], tuple[grpc.StatusCode, int | None]] = {
    errors.InvalidRequestError: (grpc.StatusCode.INVALID_ARGUMENT, None),
    errors.UnknownPolicyError: (grpc.StatusCode.INVALID_ARGUMENT, None),
    errors.UnknownJobError: (grpc.StatusCode.NOT_FOUND, None),
    errors.UnknownNodeError: (grpc.StatusCode.NOT_FOUND, None),
    errors.UnknownBaseError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.NodeHeardError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.RequestConflictError: (grpc.StatusCode.ALREADY_EXISTS, None),
    errors.WrongJobPhaseError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.NotPausableError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.NoNodeRunsItError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.FitsNoDeviceError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.QuotaTooSmallError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.UnidentifiedCallerError: (grpc.StatusCode.UNAUTHENTICATED, None),
    errors.NotPermittedError: (grpc.StatusCode.PERMISSION_DENIED, None),
    errors.SettingsError: (grpc.StatusCode.INVALID_ARGUMENT, None),
    errors.RestoreRefusedError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.NodeUnreachableError: (grpc.StatusCode.UNAVAILABLE, _LATER_MS),
    errors.CheckpointMissingError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.PredictorError: (grpc.StatusCode.UNAVAILABLE, _LATER_MS),
    errors.AgentProtocolError: (grpc.StatusCode.INVALID_ARGUMENT, None),
    errors.SecondInstanceError: (grpc.StatusCode.ALREADY_EXISTS, None),
    errors.LateHelloError: (grpc.StatusCode.ABORTED, _SOON_MS),
    errors.GpuTakenError: (grpc.StatusCode.FAILED_PRECONDITION, _LATER_MS),
    errors.ForeignClusterError: (grpc.StatusCode.FAILED_PRECONDITION, _LATER_MS),
    errors.AttemptsMissingError: (grpc.StatusCode.FAILED_PRECONDITION, _LATER_MS),
    errors.NotReadyError: (grpc.StatusCode.UNAVAILABLE, _LATER_MS),
    errors.StandstillError: (grpc.StatusCode.FAILED_PRECONDITION, _LATER_MS),
    errors.OverloadedError: (grpc.StatusCode.RESOURCE_EXHAUSTED, _SOON_MS),
    errors.StateUnwritableError: (grpc.StatusCode.UNAVAILABLE, _LATER_MS),
    errors.StateFullError: (grpc.StatusCode.RESOURCE_EXHAUSTED, _LATER_MS),
    errors.StateDamagedError: (grpc.StatusCode.DATA_LOSS, None),
    errors.StateMissingError: (grpc.StatusCode.DATA_LOSS, None),
    errors.StateLockedError: (grpc.StatusCode.FAILED_PRECONDITION, None),
    errors.StateFromNewerVersionError: (grpc.StatusCode.FAILED_PRECONDITION, None),
}

# Stable names for programs, e.g. StateFullError -> STATE_FULL.
_CODE_NUMBERS = {code: code.value[0] for code in grpc.StatusCode}


def reason_of(error: errors.SchedulerServiceError) -> str:
    """Return the stable name of an error's class, e.g. StateFullError -> STATE_FULL."""
    name = type(error).__name__.removesuffix("Error")
    return "".join(f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(name)).upper()


def status_of(error: errors.SchedulerServiceError) -> status_pb2.Status:
    """Return status, message and details of an error."""
    code, retry_ms = _entry(error)
    if isinstance(error, errors.AttemptsMissingError):
        retry_ms = error.retry_ms
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=reason_of(error), domain=DOMAIN, metadata=dict(error.metadata))
    ]
    if isinstance(error, errors.InvalidRequestError):
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=violation.field, description=violation.description)
            for violation in error.violations
        ]
        details.append(error_details_pb2.BadRequest(field_violations=violations))
    if retry_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return status_pb2.Status(code=_CODE_NUMBERS[code], message=error.message, details=[_packed(one) for one in details])


def internal_status() -> status_pb2.Status:
    """Return the status of an unexpected failure; what failed stays in our log."""
    info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=DOMAIN)
    message = "the scheduler failed to answer; its log states why"
    return status_pb2.Status(code=code_pb2.INTERNAL, message=message, details=[_packed(info)])


async def abort(context: Context, status: status_pb2.Status) -> None:
    """End a call with a rich status; raises inside grpc and never returns."""
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)


def _entry(error: errors.SchedulerServiceError) -> tuple[grpc.StatusCode, int | None]:
    for known in type(error).__mro__:
        if known in STATUS_OF:
            return STATUS_OF[known]
    raise TypeError(f"{type(error).__name__} has no status; add it to STATUS_OF")


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
