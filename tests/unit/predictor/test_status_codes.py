"""Every error of the predictor has a status, a reason and, where one exists, a remedy."""

from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]

from predictor_service import errors
from predictor_service.grpc_api.status_codes import STATUS_CODES, status_of
from tests.support.cases import for_each


def all_subclasses(kind: type[errors.PredictorError]) -> Iterator[type[errors.PredictorError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from all_subclasses(child)


def test_every_error_class_has_its_own_entry() -> None:
    assert set(all_subclasses(errors.PredictorError)) == set(STATUS_CODES)


@for_each("kind", list(STATUS_CODES))
def test_a_callers_fault_is_never_reported_as_ours(kind: type[errors.PredictorError]) -> None:
    blames_us = STATUS_CODES[kind] in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
    assert not (issubclass(kind, errors.CallerError) and blames_us)


def test_a_status_carries_reason_remedy_and_field() -> None:
    error = errors.UnknownDeviceError("device 'x' is unknown", remedy="known: a, b", details={"field": "device"})
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    status = status_of(error)
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.reason, info.metadata["remedy"]) == ("UNKNOWN_DEVICE", "known: a, b")
    assert bad.field_violations[0].field == "device"


def test_an_overloaded_service_says_when_to_come_back() -> None:
    retry = error_details_pb2.RetryInfo()
    assert status_of(errors.OverloadedError("busy")).details[-1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() > 0
