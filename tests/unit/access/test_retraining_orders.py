"""The predictor's log says who began and who cancelled a retraining."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cotenant.access.callers import Caller, answer_for
from cotenant.access.roles import Role
from cotenant.v1 import models_pb2
from predictor_service.errors import RetrainingBusyError
from predictor_service.grpc_api.model_servicer import ModelServicer
from predictor_service.retraining.operations import OperationState, RetrainingOperation

RUNNING = RetrainingOperation(retraining_id="r-1", state=OperationState.RUNNING, started_at_ms=1)
NO_CONTEXT = cast("Any", None)


def servicer(start: Callable[[], RetrainingOperation]) -> ModelServicer:
    operations = SimpleNamespace(start=lambda **_: start(), cancel=lambda _: RUNNING, served_version=lambda: "v1")
    pipeline = SimpleNamespace(answer=lambda context, method, request, produce: produce())
    return ModelServicer(cast("Any", operations), cast("Any", pipeline))


def busy() -> RetrainingOperation:
    raise RetrainingBusyError("one runs", remedy="wait")


def test_who_began_and_who_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    answer_for(Caller(role=Role.OPERATOR, name="olga", address="10.0.0.7"))
    try:
        with caplog.at_level(logging.WARNING):
            servicer(lambda: RUNNING).StartRetraining(models_pb2.StartRetrainingRequest(why="drift"), NO_CONTEXT)
            servicer(lambda: RUNNING).CancelRetraining(models_pb2.CancelRetrainingRequest(), NO_CONTEXT)
            with pytest.raises(RetrainingBusyError):
                servicer(busy).StartRetraining(models_pb2.StartRetrainingRequest(), NO_CONTEXT)
    finally:
        answer_for(Caller())
    said: list[Any] = [record for record in caplog.records if record.message == "retraining_ordered"]
    assert [(one.order, one.role, one.caller, one.address) for one in said] == [
        ("start", "operator", "olga", "10.0.0.7"),
        ("cancel", "operator", "olga", "10.0.0.7"),
    ]
    assert {one.retraining_id for one in said} == {"r-1"}
