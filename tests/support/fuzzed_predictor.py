"""Random calls of one role at the services of the predictor, inside this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import grpc

from cotenant.access.server_rules import access_rules
from cotenant.v1 import models_pb2_grpc, prediction_pb2_grpc
from predictor_service.grpc_api import server
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.metrics import ServiceMetrics
from predictor_service.grpc_api.model_servicer import ModelServicer
from predictor_service.grpc_api.prediction_servicer import PredictionServicer
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from predictor_service.retraining.operations import OperationState, RetrainingOperation, RetrainingOperations
from tests.support.fuzzed_calls import methods_of
from tests.support.fuzzed_roles import AbortedError, CallContext, CallDetails, Fuzzer, through
from tests.support.predictor_service import open_predictor


class IdleRetrainings(RetrainingOperations):
    """Retrainings that are under way until they are cancelled, without a process."""

    def start(
        self, *, from_outcomes: bool, seed: int | None, why: str, devices: Sequence[str] = ()
    ) -> RetrainingOperation:
        with patch.object(self, "_spawn", lambda *_: None), patch.object(self, "_watch", lambda *_: None):
            return super().start(from_outcomes=from_outcomes, seed=seed, why=why, devices=devices)

    def _end(self, retraining_id: str) -> None:
        ended = RetrainingOperation(retraining_id=retraining_id, state=OperationState.CANCELLED, started_at_ms=1)
        self._put(ended)


def fuzz_predictor(fuzzer: Fuzzer, folder: Path, callers: Path, *, calls: int) -> None:
    queue = AdmissionQueue(threads=2)
    journal, profiles = OutcomeJournal(folder / "journal.sqlite"), ProfileStore(folder / FILE_NAME)
    pipeline = RequestPipeline(ServiceMetrics(), queue)
    try:
        if fuzzer.tally.service == "models":
            retrainings = IdleRetrainings(folder, folder, 1, lambda: None, lambda: None)
            models_pb2_grpc.add_ModelServiceServicer_to_server(
                ModelServicer(retrainings, pipeline), cast("Any", fuzzer)
            )
        else:
            servicer = PredictionServicer(open_predictor(folder / "graphs"), journal, pipeline, profiles)
            prediction_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, cast("Any", fuzzer))
        options = server.ServerOptions(address="127.0.0.1:0", callers_file=callers)
        fuzzer.note_reached(is_loop=False)
        interceptors = server.interceptors_for(access_rules(options))
        for path, handler in fuzzer.handlers.items():
            fuzzer.handlers[path] = through(interceptors, _finding(handler))(CallDetails(method=path))
        for _ in range(calls):
            _call(fuzzer)
    finally:
        queue.shutdown()
        journal.close()
        profiles.close()


def _finding(handler: Any) -> Callable[[Any], Any]:
    return lambda _: handler


def _call(fuzzer: Fuzzer) -> None:
    method = fuzzer.drawn.choice(methods_of((fuzzer.descriptor,)))
    path = f"/{fuzzer.descriptor.full_name}/{method.name}"
    handler, context = fuzzer.handlers[path], CallContext(fuzzer.metadata)
    requests = [handler.request_deserializer(content) for content in fuzzer.contents(method)]
    answers: list[bytes] = []
    try:
        answer = (
            handler.stream_unary(iter(requests), context)
            if method.client_streaming
            else handler.unary_unary(requests[0], context)
        )
        answers.append(handler.response_serializer(answer))
    except AbortedError:
        pass
    except Exception as error:
        context.code, context.details = grpc.StatusCode.UNKNOWN, repr(error)
    fuzzer.count(path, context, answers)
