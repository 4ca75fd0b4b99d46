"""One table: error class to gRPC status, with rich details that a program can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from predictor_service import errors

DOMAIN: Final = "predictor.cotenant"
TEXT_BYTES_MAX: Final = 800
"""Of every text in a status: trailers above 8 KiB are dropped, and some of these travel three times as long."""

STATUS_CODES: Final[Mapping[type[errors.PredictorError], grpc.StatusCode]] = {
    errors.PredictorError: grpc.StatusCode.INTERNAL,
    errors.CallerError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.GraphError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MalformedGraphError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedGraphError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.GraphLimitError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnboundDimensionError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidBindingError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidBatchError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidSettingError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownDeviceError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownGraphError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownVersionError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownRetrainingError: grpc.StatusCode.NOT_FOUND,
    errors.RequestConflictError: grpc.StatusCode.ALREADY_EXISTS,
    errors.UnidentifiedCallerError: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotPermittedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.TrainingDataError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ServiceError: grpc.StatusCode.INTERNAL,
    errors.ExtractionBusyError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ExtractionTimeoutError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ExtractionCrashedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ExtractionClosedError: grpc.StatusCode.UNAVAILABLE,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RetrainingBusyError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ModelError: grpc.StatusCode.INTERNAL,
    errors.StoreFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StoreFormatError: grpc.StatusCode.INTERNAL,
}
"""Every class has its own entry; a test walks the tree."""


def status_of(error: errors.PredictorError) -> status_pb2.Status:
    """Builds the status of an error: message with remedy, machine-readable reason, field, time to retry."""
    details: list[Message] = [_error_info(error)]
    field = error.details.get("field")
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=_cut(str(error)))
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    retry_after_ms = getattr(error, "retry_after_ms", None)
    if retry_after_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(int(retry_after_ms))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return status_pb2.Status(
        code=STATUS_CODES[type(error)].value[0],
        message=_cut(str(error)),
        details=[_pack(detail) for detail in details],
    )


def _error_info(error: errors.PredictorError) -> Message:
    metadata = {name: _cut(value) for name, value in error.details.items()}
    if error.remedy:
        metadata["remedy"] = _cut(error.remedy)
    info: Message = error_details_pb2.ErrorInfo(reason=_reason(type(error)), domain=DOMAIN, metadata=metadata)
    return info


def _reason(kind: type[errors.PredictorError]) -> str:
    """UnknownDeviceError becomes UNKNOWN_DEVICE."""
    name = kind.__name__.removesuffix("Error")
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name).lstrip("_")


def _cut(text: str) -> str:
    """Leaves off the end of a long text."""
    # Twice, because a text may quote megabytes of the caller's.
    return text[:TEXT_BYTES_MAX].encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")


def _pack(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
