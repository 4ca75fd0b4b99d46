"""The calls about model versions."""

from __future__ import annotations

import logging

import grpc

from cotenant.access.callers import current_caller
from cotenant.v1 import models_pb2, models_pb2_grpc
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.retraining.operations import RetrainingOperation, RetrainingOperations

_logger = logging.getLogger(__name__)


class ModelServicer(models_pb2_grpc.ModelServiceServicer):
    """Answers `cotenant.v1.ModelService`.

    Args:
        operations: Runs the retrainings.
        pipeline: Admission, deadlines, errors, metrics.
    """

    def __init__(self, operations: RetrainingOperations, pipeline: RequestPipeline) -> None:
        self._operations = operations
        self._pipeline = pipeline

    def StartRetraining(  # noqa: N802 (named by the contract)
        self, request: models_pb2.StartRetrainingRequest, context: grpc.ServicerContext
    ) -> models_pb2.StartRetrainingResponse:
        """Starts a retraining and answers at once."""

        def start() -> models_pb2.StartRetrainingResponse:
            operation = self._operations.start(
                from_outcomes=request.from_outcomes,
                seed=request.seed if request.HasField("seed") else None,
                why=request.why,
            )
            _note("start", operation)
            return models_pb2.StartRetrainingResponse(retraining=self._message(operation))

        return self._pipeline.answer(context, "StartRetraining", request, start)

    def GetRetraining(  # noqa: N802 (named by the contract)
        self, request: models_pb2.GetRetrainingRequest, context: grpc.ServicerContext
    ) -> models_pb2.GetRetrainingResponse:
        """Reports how far a retraining is, or how it ended."""
        return self._pipeline.answer(
            context,
            "GetRetraining",
            request,
            lambda: models_pb2.GetRetrainingResponse(
                retraining=self._message(self._operations.get(request.retraining_id))
            ),
        )

    def CancelRetraining(  # noqa: N802 (named by the contract)
        self, request: models_pb2.CancelRetrainingRequest, context: grpc.ServicerContext
    ) -> models_pb2.CancelRetrainingResponse:
        """Ends a retraining; the served version stays."""

        def cancel() -> models_pb2.CancelRetrainingResponse:
            operation = self._operations.cancel(request.retraining_id)
            _note("cancel", operation)
            return models_pb2.CancelRetrainingResponse(retraining=self._message(operation))

        return self._pipeline.answer(context, "CancelRetraining", request, cancel)

    def _message(self, operation: RetrainingOperation) -> models_pb2.Retraining:
        return models_pb2.Retraining(
            retraining_id=operation.retraining_id,
            state=models_pb2.RetrainingState.Value(f"RETRAINING_STATE_{operation.state.value}"),
            progress=operation.progress,
            version=operation.version,
            served_version=self._operations.served_version(),
            reasons=operation.reasons,
            started_at_ms=operation.started_at_ms,
            finished_at_ms=operation.finished_at_ms,
        )


def _note(order: str, operation: RetrainingOperation) -> None:
    """Logs who ordered what; the predictor's counterpart of the scheduler's audit."""
    caller = current_caller()
    by = {"role": caller.role or "", "caller": caller.name, "address": caller.address}
    _logger.warning("retraining_ordered", extra={"order": order, "retraining_id": operation.retraining_id, **by})
