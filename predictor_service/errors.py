"""What can go wrong in the predictor, and whose fault it is.

PredictorError
├── CallerError                     the request cannot be answered as it is; the remedy is the caller's
│   ├── GraphError                  something about the ONNX graph
│   │   ├── MalformedGraphError     not ONNX, truncated, cyclic, dangling or duplicate names ...
│   │   ├── UnsupportedGraphError   valid, but newer or less common than what this version reads
│   │   ├── GraphLimitError         larger than the limits that keep extraction bounded
│   │   └── UnboundDimensionError   a dimension without a value
│   ├── InvalidRequestError         a field of the request is outside its range
│   │   ├── InvalidBindingError     a dimension binding that is not a usable size
│   │   ├── InvalidBatchError       a batch outside 1 .. the largest accepted one
│   │   ├── InvalidSettingError     another setting of a job that is outside its range
│   │   └── UnknownDeviceError      neither trained for nor in the catalogue
│   ├── UnknownGraphError           a graph hash that was never uploaded or is no longer kept
│   ├── UnknownVersionError         no stored model version of this name, or several that begin so
│   ├── UnknownRetrainingError      no retraining of this name
│   ├── RequestConflictError        a request_id that was used with another body
│   ├── UnidentifiedCallerError     the caller is unknown
│   ├── NotPermittedError           the caller is known and may not do this
│   └── TrainingDataError           measured profiles that cannot be learned from
└── ServiceError                    the request may be fine; this service did not manage
    ├── ExtractionBusyError         the queue in front of the extraction workers is full; try again
    ├── ExtractionTimeoutError      a worker ran out of time on this graph and was replaced
    ├── ExtractionCrashedError      a worker crashed on this graph (memory limit, signal) and was replaced
    ├── ExtractionClosedError       the service is shutting down
    ├── OverloadedError             as many requests as this service accepts are waiting; try again
    ├── RetrainingBusyError         another retraining is under way; try again
    ├── DeadlineError               the caller's deadline passed before the answer was ready
    ├── StoreFullError              the disk takes no more of what was measured; make room, what is kept stays
    ├── StoreFormatError            the profile store was written by a newer program, or is none
    └── ModelError                  a stored model is damaged, of another feature version, or fails its golden vectors
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class PredictorError(Exception):
    """Root of all errors that the predictor raises on purpose.

    Attributes:
        message: What is wrong, with the numbers.
        remedy: What the reader can do about it; empty when there is nothing.
        details: Machine-readable facts, e.g. the unbound symbols.
    """

    def __init__(self, message: str, *, remedy: str = "", details: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy
        self.details = dict(details or {})


class CallerError(PredictorError):
    """The request cannot be answered as it is."""


class GraphError(CallerError):
    """Something about the ONNX graph."""


class MalformedGraphError(GraphError):
    """The bytes are not a valid ONNX model."""


class UnsupportedGraphError(GraphError):
    """The model is valid, but newer or less common than what this version reads."""


class GraphLimitError(GraphError):
    """The model is larger than the limits that keep extraction bounded."""


class UnboundDimensionError(GraphError):
    """A dimension of a graph input has no value; `symbols` names it."""

    @property
    def symbols(self) -> Sequence[str]:
        """Names of the unbound dimensions; an unnamed one appears as input[index]."""
        return self.details.get("symbols", "").split(",")


class InvalidRequestError(CallerError):
    """A field of the request is outside its range; `details["field"]` names it where there is one."""


def invalid_field(
    field: str, message: str, remedy: str = "send a value in the range that is named"
) -> InvalidRequestError:
    """The error about a field of a request, named in its message and for programs."""
    return InvalidRequestError(f"{field}: {message}", remedy=remedy, details={"field": field})


class InvalidBindingError(InvalidRequestError):
    """A dimension binding is not a usable size."""


class InvalidBatchError(InvalidRequestError):
    """The batch is not an integer within the accepted range."""


class InvalidSettingError(InvalidRequestError):
    """A setting of a job is outside its range."""


class UnknownDeviceError(InvalidRequestError):
    """The device type is neither trained for nor in the catalogue."""


class UnknownGraphError(CallerError):
    """No graph is stored under this hash."""


class UnknownVersionError(CallerError):
    """No stored model version of this name, or several that begin so."""


class UnknownRetrainingError(CallerError):
    """No retraining of this name."""


class RequestConflictError(CallerError):
    """The request_id was used before with another body."""


class UnidentifiedCallerError(CallerError):
    """The caller is unknown."""


class NotPermittedError(CallerError):
    """The caller is known and may not do this."""


class TrainingDataError(CallerError):
    """Measured profiles that cannot be learned from."""


class ServiceError(PredictorError):
    """The request may be fine; this service did not manage."""


class ExtractionBusyError(ServiceError):
    """The queue in front of the extraction workers is full."""

    @property
    def retry_after_ms(self) -> int:
        """Milliseconds after which a place in the queue is likely."""
        return int(self.details.get("retry_after_ms", "1000"))


class ExtractionTimeoutError(ServiceError):
    """A worker ran out of time on this graph and was replaced."""


class ExtractionCrashedError(ServiceError):
    """A worker crashed on this graph and was replaced."""


class ExtractionClosedError(ServiceError):
    """The extraction workers are shutting down."""


class OverloadedError(ServiceError):
    """As many requests as this service accepts are waiting."""

    @property
    def retry_after_ms(self) -> int:
        """Milliseconds after which a place in the queue is likely."""
        return int(self.details.get("retry_after_ms", "200"))


class RetrainingBusyError(ServiceError):
    """Another retraining is under way."""

    retry_after_ms = 30_000


class DeadlineError(ServiceError):
    """The caller's deadline passed before the answer was ready."""


class ModelError(ServiceError):
    """A stored model is damaged, of another feature version, or fails its golden vectors."""


class StoreFullError(ServiceError):
    """The disk takes no more profiles, outcomes or graphs."""

    retry_after_ms = 30_000


class StoreFormatError(ServiceError):
    """A SQLite file of the state folder was written by a newer program, or is none."""
