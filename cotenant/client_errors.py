"""What can go wrong for a client of cotenant.

CotenantError                 every error that the client raises on purpose
├── InputError                the caller handed in something unusable (a file, a flag, a setting)
├── ProgramError              one of our own programs did not start, or ended when it should not
└── ServiceError              a service answered with an error
├── RejectedError         the request itself is wrong: caller
├── NotFoundError         the named job, graph or policy does not exist: caller
├── NotFeasibleError      right request, but the cluster's state or size forbids it: caller
├── PermissionDeniedError not allowed, or not identified: caller
├── UnavailableError      no answer in time: peer
└── BrokenServiceError    the service failed inside: peer
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from cotenant.errors import CotenantError as CotenantError
from cotenant.errors import InputError as InputError
from cotenant.errors import ProgramError as ProgramError
from cotenant.tls_probe import TlsFiles, find_tls_mismatch

Detail = TypeVar("Detail", error_details_pb2.ErrorInfo, error_details_pb2.Help, error_details_pb2.BadRequest)


class ServiceError(CotenantError):
    """A service answered with an error.

    Attributes:
        code: gRPC status code.
        metadata: Facts that the service attached (ErrorInfo.metadata).
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        remedy: str = "",
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, reason=reason)
        self.code = code
        self.metadata = dict(metadata or {})


class RejectedError(ServiceError):
    """The request itself is wrong."""


class NotFoundError(ServiceError):
    """What was named does not exist."""


class NotFeasibleError(ServiceError):
    """The request is right, but the state or the size of the cluster forbids it."""


class PermissionDeniedError(ServiceError):
    """Not allowed, or not identified."""


class UnavailableError(ServiceError):
    """No answer in time."""


class TlsMismatchError(UnavailableError):
    """A server listens, but the two sides do not agree on TLS; trying again does not help."""


class BrokenServiceError(ServiceError):
    """The service failed inside."""


_CLASSES: Mapping[grpc.StatusCode, type[ServiceError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RejectedError,
    grpc.StatusCode.ALREADY_EXISTS: RejectedError,
    grpc.StatusCode.OUT_OF_RANGE: RejectedError,
    grpc.StatusCode.ABORTED: RejectedError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: NotFeasibleError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: NotFeasibleError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDeniedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
}


_TOO_LARGE = re.compile(r"(?P<way>Sent|Received) message larger than max \((?P<bytes>\d+) vs\. (?P<most>\d+)\)")
_LOOPBACK = ("127.", "localhost:", "[::1]:")


def service_error(error: Exception, *, peer: str, address: str) -> ServiceError:
    """Turns what grpc raised into the class that names the side at fault.

    Args:
        error: What the stub raised; grpc makes it a grpc.Call as well.
        peer: Which program was asked, e.g. "scheduler".
        address: Where it was looked for.
    """
    if not isinstance(error, grpc.Call):
        return BrokenServiceError(str(error), code=grpc.StatusCode.UNKNOWN)
    code = error.code()
    status = _rich_status(error)
    reason, remedy, metadata = _read_details(status)
    message = _message_of(error, code, peer, address) if status is None else str(status.message)
    # Without details no service of ours has answered.
    if not remedy and status is None and code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        remedy = f"is the {peer} running at {address}? `cotenant doctor` checks; `cotenant up` starts one"
    if status is None and _TOO_LARGE.search(error.details() or ""):
        remedy = (
            "send less at once: fewer tasks in an array, a graph without weights, a snapshot that names what was sent "
            "before (base)"
        )
    if code is grpc.StatusCode.UNAUTHENTICATED and address.startswith(_LOOPBACK):
        own = "cotenant up --predictor-port 0 --scheduler-port 0"
        remedy = (
            f"{remedy}; if your `cotenant up` has a --state-dir, set COTENANT_STATE_DIR to it; if it is another user's "
            f"`cotenant up`, start your own: {own}"
        ).removeprefix("; ")
    return _CLASSES.get(code, BrokenServiceError)(message, code=code, remedy=remedy, reason=reason, metadata=metadata)


def explain_mismatch(error: ServiceError, peer: str, address: str, tls: TlsFiles | None) -> ServiceError:
    """Looks at the port that did not answer; a disagreement about TLS is reported instead.

    Args:
        error: What `service_error` made of it.
        peer: Which program was asked.
        address: Where it was looked for.
        tls: What was shown and trusted; None = do not look.
    """
    if tls is None or not isinstance(error, UnavailableError) or error.reason:
        return error
    found = find_tls_mismatch(address, tls, peer=peer)
    return (
        error
        if found is None
        else TlsMismatchError(found.cause, code=error.code, remedy=found.remedy, reason="TLS_MISMATCH")
    )


def _message_of(call: grpc.Call, code: grpc.StatusCode, peer: str, address: str) -> str:
    details = (call.details() or "no details").strip()
    too_large = _TOO_LARGE.search(details)
    if too_large is not None:
        size, most = int(too_large["bytes"]) / 2**20, int(too_large["most"]) / 2**20
        return f"a message to or from the {peer} has {size:.1f} MiB, and one may have {most:g} MiB"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"the {peer} at {address} did not answer in time"
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"the {peer} at {address} cannot be reached"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"the program at {address} is not a {peer}, or an older one: {details}"
    return details


def _rich_status(call: grpc.Call) -> status_pb2.Status | None:
    try:
        return rpc_status.from_call(call)
    except ValueError:  # code or message of the details differ from the plain status: do not trust them
        return None


def _read_details(status: status_pb2.Status | None) -> tuple[str, str, dict[str, str]]:
    reason, remedy, metadata = "", "", dict[str, str]()
    violations: list[str] = []
    for detail in status.details if status is not None else ():
        info = _unpack(detail, error_details_pb2.ErrorInfo())
        if info is not None:
            reason, metadata = info.reason, dict(info.metadata)
            remedy = metadata.pop("remedy", remedy)
        help_ = _unpack(detail, error_details_pb2.Help())
        if help_ is not None and help_.links:
            remedy = remedy or help_.links[0].description
        bad = _unpack(detail, error_details_pb2.BadRequest())
        if bad is not None:
            violations += [f"{violation.field}: {violation.description}" for violation in bad.field_violations]
    if violations:
        metadata["fields"] = "; ".join(violations)
    return reason, remedy, metadata


def _unpack(packed: AnyMessage, into: Detail) -> Detail | None:
    return into if packed.Unpack(into) else None
