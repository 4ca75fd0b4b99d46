"""Every error has a status with details that a program can read."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]

from scheduler_service import errors
from scheduler_service.errors import FieldViolation, SchedulerServiceError
from scheduler_service.grpc_api.status_codes import STATUS_OF, reason_of, status_of
from tests.support.cases import for_each

# Never raised themselves: they state which side's fault their subclasses are.
GROUPS = {errors.SchedulerServiceError, errors.CallerError, errors.PeerError, errors.ServiceError, errors.StateError}


def subclasses(kind: type[SchedulerServiceError]) -> Iterator[type[SchedulerServiceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


def made(kind: type[SchedulerServiceError]) -> SchedulerServiceError:
    if issubclass(kind, errors.InvalidRequestError):
        return kind(FieldViolation(field="spec.name", description="is wrong"))
    if issubclass(kind, errors.PredictorError):
        return kind("is down", code="PREDICTOR_UNAVAILABLE")
    return kind("something")


def test_the_table_is_complete_and_names_nothing_else() -> None:
    assert set(subclasses(SchedulerServiceError)) - GROUPS == set(STATUS_OF)


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = {line.strip("│├└─ ").split(" ")[0] for line in str(errors.__doc__).splitlines()}
    assert {kind.__name__ for kind in subclasses(SchedulerServiceError)} <= drawn


@for_each("kind", STATUS_OF)
def test_every_error_becomes_a_status_with_a_stable_reason(kind: type[SchedulerServiceError]) -> None:
    status = status_of(made(kind))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason_of(made(kind)), "scheduler.cotenant")
    assert status.message


def test_the_reason_is_the_name_in_capitals() -> None:
    assert reason_of(errors.StateFullError("x")) == "STATE_FULL"


def test_violations_and_delays_are_details() -> None:
    status = status_of(made(errors.InvalidRequestError))
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    assert [(one.field, one.description) for one in bad.field_violations] == [("spec.name", "is wrong")]
    full = status_of(errors.StateFullError("full"))
    retry = error_details_pb2.RetryInfo()
    assert full.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert full.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() > 0
